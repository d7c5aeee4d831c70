"""Files, folders and links that are never half written: made beside their place, synced to the disk, then renamed.

A reader sees the old content or the new one, even after a kill or a power failure; a replaced folder is absent between
two renames. Remains of a killed writer are hidden beside the place (`is_scratch`) and do no harm. Cost: one sync per
file and per folder. Left out: several writers of one folder, which need a lock (`alone_in` for a moment,
`ttc.records.LineFile` for a run).

A sealed folder (`seal`) can be checked later: is each file as it was written? Cost: every byte is read once more,
about a second per gigabyte. Left out: signatures; a seal finds damage, not intent.

A disk-full error names the file that did not fit, whichever library wrote it (`about`): the system names none for a
write, and torch and safetensors have errors of their own. Half-written files are deleted, so that their space is free
again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room: of the disk, of the user's share, of what one file may take."""
_FOREIGN = re.compile(
    r"No space left on device|Disk quota exceeded|File too large"
    r"|PytorchStreamWriter failed writing|inline_container\.cc\S* \. unexpected pos"  # torch's ways to say so
)
SCRATCH = ".partial"
"""How the name of what is not whole yet ends; it begins with a dot."""
_SCRATCH = re.compile(r"\..+\.(partial|old)")


def replace_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all; `errors` handles what UTF-8 cannot encode."""
    with replaced_file(path) as scratch:
        scratch.write_bytes(text.encode("utf-8", errors))


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Give the path to write to; it takes the place of `path` at the end, and is deleted after an error."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with about(path):
        try:
            yield scratch
            _sync(scratch)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder to write to; it takes the place of `path`, a folder or a link, at the end.

    Its files are read by whoever may read what this process makes: safetensors writes them for the owner alone.
    """
    scratch, before = (path.with_name(f".{path.name}.{ending}") for ending in ("partial", "old"))
    for leftover in (scratch, before):
        shutil.rmtree(leftover, ignore_errors=True)
    with about(path):
        try:
            scratch.mkdir(parents=True)
            yield scratch
            readers = scratch.stat().st_mode & 0o666
            for state, file in ((place.lstat(), place) for place in scratch.rglob("*")):
                if S_ISREG(state.st_mode) and state.st_nlink == 1:  # linked files belong to others, too
                    file.chmod(S_IMODE(state.st_mode) | readers)
            sync_tree(scratch)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        os.replace(path, before)
    os.replace(scratch, path)
    sync_folder(path.parent)
    shutil.rmtree(before, ignore_errors=True)


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Turn a disk-full error inside, of any library, into an OSError that names `path`.

    Other OSErrors without a file name get it, too.
    """
    try:
        yield
    except OSError as exc:
        if exc.filename is None and exc.errno is not None:
            exc.filename = str(path)
        raise
    except Exception as exc:
        if _FOREIGN.search(str(exc)) is None:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from exc


def check_link(link: Path) -> None:
    """Raise OSError if there is a folder in the place of a link, as after a copy that followed links."""
    if link.is_dir() and not link.is_symlink():
        text = "a folder stands where a link belongs (a copy that followed links?); delete it, then go on"
        raise FileExistsError(errno.EEXIST, text, str(link))


def replace_link(link: Path, target: Path) -> None:
    """Point `link` at the folder `target`, by a relative path, in one step; raises like `check_link`."""
    check_link(link)
    scratch = link.with_name(f".{link.name}.{os.getpid()}.partial")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()), target_is_directory=True)
    os.replace(scratch, link)
    sync_folder(link.parent)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Let only one process at a time run the block for this folder; the others wait.

    Without waiting on file systems that cannot lock folders, as some network ones.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_scratch(path: Path) -> bool:
    """Whether `path` was left by a killed writer of this module."""
    return _SCRATCH.fullmatch(path.name) is not None


def sync_tree(folder: Path) -> None:
    """Sync every file and folder below `folder` to the disk."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(place, name))
        sync_folder(Path(place))


def sync_folder(folder: Path) -> None:
    """Sync the names in `folder` to the disk: without its name, a file is lost in a power failure."""
    try:
        _sync(folder)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # a network file system that cannot sync folders keeps names by itself
            raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


SUMS = "SHA256SUMS"
"""The seal of a folder, in the format of coreutils: `sha256sum -c SHA256SUMS` checks it by hand."""


def sums_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` but its seal, by relative path, in the order of paths."""
    return {name: _digest(folder / name) for name in _names(folder)}


def seal(folder: Path) -> None:
    """Sync the content of `folder` to the disk, then write its seal."""
    sync_tree(folder)
    replace_text(folder / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums_of(folder).items()))


def first_flaw(folder: Path) -> str:
    """The first difference between `folder` and its seal, naming the file; empty when it is intact."""
    path = folder / SUMS
    if not path.is_file():
        return f"{SUMS} is missing, so it was not written to its end"
    pairs = [line.partition("  ") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    sums = {name: digest for digest, _, name in pairs}
    extra = [name for name in _names(folder) if name not in sums]
    return next(iter([*flaws(folder, sums), *(f"{name} is not in {SUMS}" for name in extra)]), "")


def flaws(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """The files of `sums` (relative path to SHA-256) that are missing below `folder` or have other content."""
    return [flaw for name, digest in sums.items() if (flaw := _flaw(folder / name, name, digest))]


def _flaw(path: Path, name: str, digest: str) -> str:
    if not path.is_file():
        return f"{name} is missing"
    try:
        return "" if _digest(path) == digest else f"{name} ({path.stat().st_size:,} bytes) is not what was written"
    except OSError as exc:
        return f"{name} cannot be read ({exc.strerror})"


def _names(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
