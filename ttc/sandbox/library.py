"""The standard library in memory, so that an interpreter without a file system can still import it.

`install` reads the source of every module (about 12 MB) and makes it importable from there; `preload` imports what
programs use most, and everything that is compiled C, which cannot be loaded from memory later. Left out: what has no
use in a confined program (tests, idle, Tk, the installers).
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import mmap
import os
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder

_LEFT_OUT = {
    "__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "msilib", "pydoc_data", "site-packages", "test",
    "tests", "tkinter", "turtledemo", "venv",
}  # fmt: skip
_NOT_LOADED = ("_test", "_xx", "xx", "_tkinter", "_curses", "_ctypes_test", "_dbm", "_gdbm", "readline", "nis", "oss")
_COMMON = (
    "abc", "argparse", "array", "ast", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "concurrent.futures", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib",
    "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.utf_8", "encodings.utf_8_sig", "enum",
    "fractions", "functools", "gc", "hashlib", "heapq", "html", "inspect", "io", "itertools", "json", "keyword",
    "linecache", "locale", "logging", "math", "numbers", "operator", "pickle", "platform", "pprint", "queue", "random",
    "re", "secrets", "signal", "statistics", "string", "struct", "tempfile", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata", "unittest", "urllib.parse", "uuid", "warnings", "weakref", "zlib",
    "zoneinfo", "_strptime",
)  # fmt: skip


class Library(MetaPathFinder, Loader):
    """Imports modules from sources held in memory."""

    def __init__(self, sources: Mapping[str, tuple[str, bool, bytes]]) -> None:
        # In one shared mapping, which a fork does not copy.
        self._memory = mmap.mmap(-1, sum(len(source) for _, _, source in sources.values()))
        self._places: dict[str, tuple[str, bool, slice]] = {}
        for name, (origin, is_package, source) in sources.items():
            start = self._memory.tell()
            self._memory.write(source)
            self._places[name] = origin, is_package, slice(start, start + len(source))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where the module is; None when it is not of the standard library."""
        if fullname not in self._places:
            return None
        origin, is_package, _ = self._places[fullname]
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=is_package)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's source."""
        origin, _, place = self._places[module.__name__]
        exec(compile(self._memory[place], origin, "exec", dont_inherit=True), module.__dict__)


def install() -> None:
    """Make the standard library importable from memory and nothing importable from elsewhere."""
    root = os.path.dirname(os.__file__)
    library = Library(_read(root))
    _preload(os.path.join(root, "lib-dynload"))
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, library]


def _read(root: str) -> dict[str, tuple[str, bool, bytes]]:
    modules: dict[str, tuple[str, bool, bytes]] = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _LEFT_OUT and name.isidentifier()]
        package = os.path.relpath(folder, root).replace(os.sep, ".")
        for file in files:
            stem, extension = os.path.splitext(file)
            if extension == ".py":
                path = os.path.join(folder, file)
                parts = [part for part in (package, stem) if part not in (".", "__init__")]
                # A distribution's own file may be a link to what is not here; then it is not imported either.
                with contextlib.suppress(OSError), open(path, "rb") as stream:
                    modules[".".join(parts)] = (path, stem == "__init__", stream.read())
    return modules


def _preload(compiled: str) -> None:
    stems = {name.split(".")[0] for name in os.listdir(compiled)} if os.path.isdir(compiled) else set()
    names = sorted(stem for stem in stems if not stem.startswith(_NOT_LOADED))
    for name in (*names, *_COMMON):
        # A part that this build of Python lacks, or whose system library is absent, is absent for programs as well.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
