"""Files in memory for a program that uses temporary ones: a confined program has no file system for them.

`install` replaces, in this process, `open` and the functions of `os` and `tempfile` that take a path, for paths under
one folder that exists only in memory; all other paths go to the originals, and are refused there. It is not part of the
confinement: it shares the process with the program. Left out: links, descriptors (`mkstemp`), permissions, times.
"""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

FOLDER = "/tmp"


class MemoryFiles:
    """Paths under `FOLDER` and their contents: bytes of a file, None for a folder."""

    def __init__(self) -> None:
        self.paths: dict[str, bytes | None] = {FOLDER: None}
        self._numbers = itertools.count()

    def name(self, prefix: str | None = None, suffix: str | None = None, folder: str | None = None) -> str:
        """A path that is not in use."""
        return f"{folder or FOLDER}/{prefix or 'tmp'}{next(self._numbers):08d}{suffix or ''}"

    def open(self, path: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *rest: Any) -> Any:
        """Open a file; its content is stored when it is closed or flushed."""
        where = self.at(path) or str(path)
        if "r" in mode and self.paths.get(where) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if "x" in mode and where in self.paths:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if self.paths.get(where.rpartition("/")[0], b"") is not None or (
            where in self.paths and not self.is_file(where)
        ):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        raw = MemoryFile(self, where, mode)
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding or "utf-8", write_through=True)

    def at(self, path: Any) -> str | None:
        """The path in memory that `path` refers to; None when it is not one."""
        if isinstance(path, int) or not isinstance(path, (str, os.PathLike)):
            return None
        where = os.path.normpath(os.fspath(path))
        return where if where == FOLDER or where.startswith(f"{FOLDER}/") else None

    def is_file(self, path: str) -> bool:
        """Whether there is a file."""
        return self.paths.get(path) is not None

    def stat(self, path: str) -> os.stat_result:
        """Kind and size; other fields are 0."""
        content = self.known(path)
        kind = stat.S_IFDIR | 0o700 if content is None else stat.S_IFREG | 0o600
        return os.stat_result((kind, 0, 0, 1, 0, 0, len(content or b""), 0, 0, 0))

    def listdir(self, path: str) -> list[str]:
        """The names in a folder."""
        self.known(path)
        return sorted(each.rpartition("/")[2] for each in self.paths if each.rpartition("/")[0] == path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a folder."""
        if path in self.paths:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.known(path.rpartition("/")[0])
        self.paths[path] = None

    def remove(self, path: str) -> None:
        """Remove a file, or a folder that is empty."""
        self.known(path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        del self.paths[path]

    def rename(self, path: str, new: Any) -> None:
        """Give a file another name."""
        content = self.known(path)
        del self.paths[path]
        self.paths[self.at(new) or str(new)] = content

    def rmtree(self, path: str, *_: Any, **__: Any) -> None:
        """Remove a folder with all its contents."""
        for each in [each for each in self.paths if each == path or each.startswith(f"{path}/")]:
            del self.paths[each]

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """The contents of a folder and of those below."""
        names = self.listdir(path)
        folders = [name for name in names if not self.is_file(f"{path}/{name}")]
        yield path, folders, [name for name in names if self.is_file(f"{path}/{name}")]
        for name in folders:
            yield from self.walk(f"{path}/{name}")

    def known(self, path: str) -> bytes | None:
        """The content of a path. Raises FileNotFoundError."""
        if path not in self.paths:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.paths[path]


class MemoryFile(io.BytesIO):
    """A file that writes its content back."""

    def __init__(self, files: MemoryFiles, path: str, mode: str, *, stays: bool = True) -> None:
        super().__init__(b"" if "w" in mode or "x" in mode else files.paths.get(path) or b"")
        self._files, self.name, self._mode, self._stays = files, path, mode, stays
        if "a" in mode:
            self.seek(0, io.SEEK_END)
        if not self.is_read_only:
            self.flush()

    @property
    def is_read_only(self) -> bool:
        """Whether it is open for reading only."""
        return not set(self._mode) & set("wax+")

    def write(self, data: Any, /) -> int:
        """Write, and store the content."""
        count = super().write(data)
        self.flush()
        return count

    def flush(self) -> None:
        """Store the content."""
        if not self.is_read_only and not self.closed:
            self._files.paths[self.name] = self.getvalue()

    def close(self) -> None:
        """Close, and remove a temporary file."""
        if not self.closed and not self._stays:
            self._files.paths.pop(self.name, None)
        super().close()


class _Folder:
    """A folder that is removed with its context."""

    def __init__(self, files: MemoryFiles, suffix: Any = None, prefix: Any = None, dir: Any = None, **_: Any) -> None:
        self._files, self.name = files, files.name(prefix, suffix, dir)
        files.mkdir(self.name)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it."""
        with suppress(FileNotFoundError):
            self._files.rmtree(self.name)


def install() -> None:
    """Install the files in memory in this process."""
    files = MemoryFiles()
    before = builtins.open
    builtins.open = io.open = lambda path, *args, **kwargs: (  # type: ignore[assignment]
        before(path, *args, **kwargs) if files.at(path) is None else files.open(path, *args, **kwargs)
    )
    table: dict[str, Any] = {"listdir": files.listdir, "mkdir": files.mkdir, "walk": files.walk}
    table |= dict.fromkeys(("stat", "lstat"), files.stat)
    table |= dict.fromkeys(("remove", "unlink", "rmdir"), files.remove)
    table |= {"rename": files.rename, "replace": files.rename}
    for name, function in table.items():
        setattr(os, name, _routed(files, function, getattr(os, name)))
    setattr(shutil, "rmtree", _routed(files, files.rmtree, shutil.rmtree))  # noqa: B010
    factories = {"TemporaryFile": _temporary(files), "NamedTemporaryFile": _temporary(files)}
    factories |= {"SpooledTemporaryFile": lambda max_size=0, *args, **kwargs: _temporary(files)(*args, **kwargs)}
    factories |= {"TemporaryDirectory": lambda *args, **kwargs: _Folder(files, *args, **kwargs)}
    factories |= {"mkdtemp": lambda *args, **kwargs: _Folder(files, *args, **kwargs).name, "gettempdir": lambda: FOLDER}
    for name, function in factories.items():
        setattr(tempfile, name, function)


def _routed(files: MemoryFiles, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def routed(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        where = files.at(path)
        if where is None:
            return theirs(path, *args, **kwargs)
        return ours(where, *args, **{name: value for name, value in kwargs.items() if name == "mode"})

    return routed


def _temporary(files: MemoryFiles) -> Callable[..., Any]:
    def temporary(
        mode: str = "w+b", buffering: int = -1, encoding: str | None = None, newline: str | None = None,
        suffix: str | None = None, prefix: str | None = None, dir: str | None = None, delete: bool = True, **_: Any,
    ) -> Any:  # fmt: skip
        path = files.name(prefix, suffix, dir)
        raw = MemoryFile(files, path, mode, stays=not delete)
        if "b" in mode:
            return raw
        text = io.TextIOWrapper(raw, encoding or "utf-8", write_through=True)
        return text

    return temporary
