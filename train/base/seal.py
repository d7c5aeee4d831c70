"""The seal of a folder: a file SHA256SUMS that tells later whether every other file is as it was written.

It is in the format of coreutils, so `sha256sum -c SHA256SUMS` checks a folder by hand. Cost: every byte is read once
more, about a second per gigabyte. Left out: signatures; a seal finds damage, not intent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ttc.durable import replace_text, sync_tree
from ttc.errors import TrainingError

SUMS = "SHA256SUMS"


def sums_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` but its seal, by relative path, in the order of paths."""
    return {name: _digest(folder / name) for name in _names(folder)}


def seal(folder: Path) -> None:
    """Bring what is in `folder` to the disk, then write its seal."""
    sync_tree(folder)
    replace_text(folder / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums_of(folder).items()))


def first_flaw(folder: Path) -> str:
    """The first thing by which `folder` is not what its seal says, naming the file; empty when it is whole."""
    path = folder / SUMS
    if not path.is_file():
        return f"{SUMS} is missing, so it was not written to its end"
    pairs = [line.partition("  ") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    sums = {name: digest for digest, _, name in pairs}
    extra = [name for name in _names(folder) if name not in sums]
    return next(iter([*flaws(folder, sums), *(f"{name} is not in {SUMS}" for name in extra)]), "")


def numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The folders in `folder` of such a name, by the number that its first group holds, in their order."""
    places = folder.iterdir() if folder.is_dir() else ()
    named = [(name.fullmatch(place.name), place) for place in places if place.is_dir()]
    return sorted((int(match[1]), place) for match, place in named if match is not None)


def newest_whole(
    folder: Path, name: re.Pattern[str], log: Callable[[str], None], most: int | None = None
) -> Path | None:
    """The sealed checkpoint of the highest number, `most` at most, that is whole; None when there is no checkpoint.

    Those above it that are not whole are told to `log`, with their first flaw and what is used instead.

    Raises:
        TrainingError: there are checkpoints and none is whole; names the files.
    """
    broken: list[str] = []
    for number, place in reversed(numbered(folder, name)):
        if most is not None and number > most:
            continue
        flaw = first_flaw(place)
        if not flaw:
            for text in broken:
                log(f"{folder.name}/{text}; {place.name} is used instead")
            return place
        broken.append(f"{place.name} is not whole: {flaw}")
    if broken:
        raise TrainingError(
            f"{folder} holds no whole checkpoint: {'; '.join(broken)}. Put back the files of one of them, or delete "
            "the folder to begin the stage anew"
        )
    return None


def flaws(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """What of the files named by `sums` (relative path to SHA-256) is missing below `folder`, or another content."""
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
