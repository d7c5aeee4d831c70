"""The warm interpreter that programs are forked from: `python zygote.py ROOT DESCRIPTOR [PACKAGES]`, by `pool`.

It reads lines of JSON on the control stream, each with four descriptors attached, and forks one cell for each:

    {"cell": 1, "role": 0, "limits": {...}, "landlock": 7, ...}    a line to the zygote
    {"kill": 1}
    {"cell": 1, "status": 9, "late": true, "cpu_s": 4.9}           a line back when the cell has ended

It never sees a program or a test. A cell past its wall time is killed; at the end of the control stream all are.

The standard library is held in its memory, so that a cell, which has no file system, can still import it. What programs
use most is imported beforehand, and so is everything that is compiled C, which cannot be loaded from memory later. Left
out: what has no use in a confined program (tests, idle, Tk, the installers).
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import gc
import importlib.machinery
import importlib.util
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from typing import Any

_COUNT_AGAIN_S = 1.0


@dataclass(slots=True)
class _Cell:
    pid: int
    deadline: float
    late: bool = False


class Zygote:
    """Forks cells and ends them; one thread, one loop."""

    def __init__(self, control: socket.socket) -> None:
        from ttc.sandbox import cell, kernel, limits
        from ttc.sandbox.cell import script
        from ttc.sandbox.driving import drive
        from ttc.sandbox.serving import serve

        self._cell, self._limits = cell, limits
        self._modes = {"script": script, "serve": serve, "drive": drive}
        self._filter = kernel.prepare() if kernel.is_supported() else None
        self._control = control
        self._cells: dict[int, _Cell] = {}
        self._descriptors: list[int] = []
        self._buffer = b""
        self._users: dict[int, int | None] = {}
        self._threads, self._counted = 0, -_COUNT_AGAIN_S
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the control stream ends."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        self._send({"ready": True})
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll(self._wait_ms())}
                if self._wake in ready:
                    os.read(self._wake, 4096)
                self._reap()
                self._kill_late()
                if self._control.fileno() in ready and not self._receive():
                    return
        finally:
            for each in self._cells.values():
                _kill(each.pid)

    def _wait_ms(self) -> float | None:
        if not self._cells:
            return None
        return max(0.0, min(each.deadline for each in self._cells.values()) - time.monotonic()) * 1000 + 1

    def _receive(self) -> bool:
        """Process the lines that have arrived; False at the end of the stream."""
        data, descriptors, _, _ = socket.recv_fds(self._control, 65_536, 16)
        self._descriptors += descriptors
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            request = json.loads(line)
            if "kill" in request:
                cell = self._cells.get(request["kill"])
                if cell:
                    _kill(cell.pid)
            else:
                own_descriptors, self._descriptors = self._descriptors[:4], self._descriptors[4:]
                self._fork(request, tuple(own_descriptors))
        return bool(data)

    def _fork(self, request: Mapping[str, Any], descriptors: tuple[int, ...]) -> None:
        limits = self._limits.ResourceLimits(**request["limits"])
        user = self._user(request["role"], request["users"]) if request["confined"] else None
        confinement = self._cell.Confinement(
            request["landlock"],
            self._filter if request["seccomp"] else None,
            user,
            self._max_threads(request, limits.threads, user),
            limits,
        )
        parent = os.getpid()
        # The fork confines itself before it reads the program. The parent must close its copies of the streams at once,
        # or the host would wait for an end of stream that never comes.
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._cell.enter(descriptors, parent, confinement, self._modes)
        for descriptor in descriptors:
            os.close(descriptor)
        self._cells[request["cell"]] = _Cell(pid, time.monotonic() + limits.wall_s)

    def _user(self, role: int, num_mapped: int) -> int | None:
        """The user of cells of this role: cells that run together have different ones."""
        if role not in self._users:
            self._users[role] = self._limits.unused_user(os.getpid() * 2 + role, num_mapped)
        return self._users[role]

    def _max_threads(self, request: Mapping[str, Any], threads: int, user: int | None) -> int | None:
        """The thread limit for the cell's user: of an unused user, of a namespace, or of all the user's threads."""
        if user is not None:
            return threads
        if request["namespaced"]:
            return threads + 1 + len(self._cells) * threads
        if os.getuid() == 0 or not os.path.isdir("/proc/self"):
            return None
        if time.monotonic() - self._counted > _COUNT_AGAIN_S:
            self._threads, self._counted = self._limits.count_threads(os.getuid()), time.monotonic()
        return self._threads + threads

    def _reap(self) -> None:
        for number, each in list(self._cells.items()):
            pid, status, usage = os.wait4(each.pid, os.WNOHANG)
            if pid:
                del self._cells[number]
                cpu_s = usage.ru_utime + usage.ru_stime
                self._send({"cell": number, "status": status, "late": each.late, "cpu_s": cpu_s})

    def _kill_late(self) -> None:
        now = time.monotonic()
        for each in self._cells.values():
            if each.deadline < now and not each.late:
                each.late = True
                _kill(each.pid)
        for each in self._cells.values():
            if each.late:
                each.deadline = now + 1.0

    def _send(self, message: Mapping[str, Any]) -> None:
        # the host may be gone; then the end of the stream is read next
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(json.dumps(message).encode("ascii") + b"\n")


# -- the standard library in memory ------------------------------------------------------------------------------------
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
        # in one shared mapping, which a fork does not copy
        self._memory = mmap.mmap(-1, sum(len(source) for _, _, source in sources.values()))
        self._places: dict[str, tuple[str, bool, slice]] = {}
        for name, (origin, is_package, source) in sources.items():
            start = self._memory.tell()
            self._memory.write(source)
            self._places[name] = origin, is_package, slice(start, start + len(source))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec; None when it is not in the standard library."""
        if fullname not in self._places:
            return None
        origin, is_package, _ = self._places[fullname]
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=is_package)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's source."""
        origin, _, place = self._places[module.__name__]
        exec(compile(self._memory[place], origin, "exec", dont_inherit=True), module.__dict__)


def install_library(packages: str | None = None) -> None:
    """Make the standard library importable from memory and nothing importable from elsewhere.

    With `packages`, a folder or "-", event loops work without sockets, and numpy is loaded from there if it is there.
    """
    root = os.path.dirname(os.__file__)
    library = Library(_read(root))
    _preload(os.path.join(root, "lib-dynload"))
    if packages is not None:
        _enrich(packages)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # the module `site` is not run here
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
                # a file of the distribution may be a broken link; then the module is not importable
                with contextlib.suppress(OSError), open(path, "rb") as stream:
                    modules[".".join(parts)] = (path, stem == "__init__", stream.read())
    return modules


def _preload(compiled: str) -> None:
    stems = {name.split(".")[0] for name in os.listdir(compiled)} if os.path.isdir(compiled) else set()
    names = sorted(stem for stem in stems if not stem.startswith(_NOT_LOADED))
    # asyncio before its compiled part, which would otherwise import it while half of its own names are missing, and
    # asyncio would have no current task (CPython 3.12 and later)
    for name in ("asyncio", *names, *_COMMON):
        # modules that this build of Python lacks, or whose system library is absent, are absent for programs as well
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


_NUMPY = ("numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.polynomial", "numpy.ma", "numpy.testing")


def _enrich(packages: str) -> None:
    from asyncio import selector_events

    # an event loop wakes itself through a socket pair, which a cell may not have; a pipe works as well
    selector_events.BaseSelectorEventLoop._make_self_pipe = _make_self_pipe  # type: ignore[attr-defined]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.path.append(packages)
    for name in _NUMPY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class PipeEnd:
    """One end of a pipe, as an event loop uses a socket to wake itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # with fcntl, since a cell may change the flags of a descriptor, but make no other call on a device
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_NONBLOCK)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def recv(self, size: int) -> bytes:
        """Read."""
        return os.read(self._descriptor, size)

    def send(self, data: bytes) -> int:
        """Write."""
        return os.write(self._descriptor, data)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def _make_self_pipe(loop: Any) -> None:
    loop._ssock, loop._csock = map(PipeEnd, os.pipe())
    loop._internal_fds += 1
    loop._add_reader(loop._ssock.fileno(), loop._read_from_self)


# -- the process -------------------------------------------------------------------------------------------------------
def _kill(pid: int) -> None:
    """Kill a cell; where nothing keeps it from starting processes, those of its group with it."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _nothing(_number: int, _frame: types.FrameType | None) -> None:
    """A handler, so that the end of a cell wakes the loop."""


def _forget() -> None:
    """Leave programs nothing of this package to import by name, no environment and no arguments."""
    for name in [name for name in sys.modules if name == "ttc" or name.startswith("ttc.")]:
        del sys.modules[name]
    os.environ.clear()
    sys.argv[:] = ["program.py"]


def main() -> None:
    """Load what cells need, forget where it came from, and serve."""
    root, descriptor, *packages = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    sys.path.insert(0, root)
    zygote = Zygote(socket.socket(fileno=descriptor))
    sys.path.remove(root)
    install_library(*packages)
    _forget()
    gc.collect()
    gc.freeze()
    zygote.run()


if __name__ == "__main__":
    main()
