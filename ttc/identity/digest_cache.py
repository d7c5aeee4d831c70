"""Digests of large files, remembered between processes, so that weights that nobody touched are not read again.

One JSON file, `ttc/digests.json` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache). A digest is trusted only
while everything that the system says of the file is as it was: path, device, inode, size, and the times of its last
change of content and of attributes, to the nanosecond. The second of these times cannot be set back by a user, so a
file that was changed and given its old time is read again.

A file that was changed within two seconds before it was read is not remembered: another change within the grain of the
file system's clock would not show. Losing the file costs a second per gigabyte, so where it cannot be read or written
(a read-only or absent home, a full disk, two writers at once) it is done without. Left out: file systems that keep the
old times of a changed file.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from ttc.durable import replace_text

__all__ = ["LARGE", "remembered"]

LARGE = 1 << 23
"""Bytes from which on a file's digest is remembered; below it, reading is as quick as looking up."""
_SETTLED_NS = 2_000_000_000
_MAX_ENTRIES = 4096
_STAMP_FIELDS = 6


def remembered(path: Path, compute: Callable[[Path], str]) -> str:
    """Return the digest of the file at `path`, by `compute` where it is not known of exactly this content.

    Raises:
        OSError: the file cannot be read.
    """
    before = path.stat()
    if before.st_size < LARGE:
        return compute(path)
    key, stamp, started = os.path.realpath(path), _stamp(before), time.time_ns()
    file = _file()
    entry = _entries(file).get(key)
    if entry is not None and entry[:-1] == stamp:
        return str(entry[-1])
    digest = compute(path)
    is_settled = max(before.st_mtime_ns, before.st_ctime_ns) < started - _SETTLED_NS
    if file is not None and is_settled and _stamp(path.stat()) == stamp:
        _remember(file, key, [*stamp, digest])
    return digest


def _stamp(status: os.stat_result) -> list[int | str]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _file() -> Path | None:
    """Where digests are remembered, or None where there is no cache folder; a relative one is none, by the standard."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(folder) / "ttc" / "digests.json" if os.path.isabs(folder) else None


def _entries(file: Path | None) -> dict[str, list[int | str]]:
    """What is remembered, by path; nothing where the file is absent or damaged."""
    if file is None:
        return {}
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(rows, dict):
        return {}
    return {key: row for key, row in rows.items() if isinstance(row, list) and _is_entry(row)}


def _is_entry(row: list[object]) -> bool:
    *stamp, digest = row if row else [None]
    return len(row) == _STAMP_FIELDS and all(isinstance(field, int) for field in stamp) and isinstance(digest, str)


def _remember(file: Path, key: str, entry: list[int | str]) -> None:
    """Add an entry as the newest. Of two processes that write at once one entry may be lost, and is computed again."""
    entries = _entries(file)
    entries.pop(key, None)
    newest = dict(list(entries.items())[1 - _MAX_ENTRIES :])
    with contextlib.suppress(OSError):  # the cache saves time and decides nothing
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps({**newest, key: entry}))
