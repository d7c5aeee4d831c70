"""Records on disk: one JSON object per line, appended as each problem ends.

A file of records can be read at any moment and survives any death of its writer: every append is flushed and synced
before the next one starts, and a last line that was torn by a kill is ignored by readers and cut off by the next
writer. What is wrong with a line (`ttc.encoding`) is a `RecordError` that names file, line and field.

Left out: compression, indexes, migration of older schemas (there is one schema so far).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from ttc.core import Record
from ttc.durable import sync_folder
from ttc.encoding import decode, encode
from ttc.errors import ConfigError, RecordError

__all__ = [
    "SCHEMA",
    "LineFile",
    "RecordFile",
    "decode",
    "encode",
    "from_json",
    "iterate",
    "read",
    "read_at",
    "scan",
    "to_json",
]

SCHEMA = 1


def to_json(record: Record) -> dict[str, Any]:
    """Return `record` as plain JSON data; numbers that JSON lacks become "inf", "-inf" and "nan"."""
    return {"schema": SCHEMA, **encode(record)}


def from_json(data: Any) -> Record:
    """Rebuild a record from `to_json` data; raises RecordError naming the field."""
    if not isinstance(data, dict):
        raise RecordError(f"a record must be a JSON object, got {type(data).__name__}")
    if data.get("schema") != SCHEMA:
        raise RecordError(f"schema: this version reads {SCHEMA}, got {data.get('schema')!r}")
    return decode(Record, {key: value for key, value in data.items() if key != "schema"})


def iterate(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, JSON value) of a JSON-lines file, without a torn last line; blank lines are skipped.

    Raises RecordError naming file and line where a line that ends in a newline is not JSON.
    """
    for number, _, data in _lines(path):
        yield number, data


def _lines(path: Path) -> Iterator[tuple[int, int, Any]]:
    """Yield (line number, byte at which the line begins, JSON value); see `iterate`."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            if line.strip():
                try:
                    yield number, start, json.loads(line)
                except ValueError as exc:
                    raise RecordError(f"{path}, line {number}: not JSON ({exc})") from exc
            start += len(line)


def read(path: Path) -> list[Record]:
    """Read all whole records of `path` in file order; a missing file raises ConfigError."""
    return [record for _, record in scan(path)]


def scan(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield (byte at which its line begins, record) of all whole records of `path`; raises like `read`."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; expected a file of records")
    for number, start, data in _lines(path):
        try:
            yield start, from_json(data)
        except RecordError as exc:
            raise RecordError(f"{path}, line {number}: {exc}") from exc


def read_at(file: BinaryIO, place: int) -> Record:
    """Read the record whose line begins at byte `place` of a file that `scan` or `RecordFile.append` has told of."""
    file.seek(place)
    return from_json(json.loads(file.readline()))


class LineFile:
    """An append-only file of JSON lines, open for one writer.

    Opening cuts off a torn last line. `write` may be called from any thread. A second writer on the same file is
    refused.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, creating it; raises ConfigError while another process writes to it."""
        self.path = path
        self._lock = threading.Lock()
        is_new = not path.exists()
        self._file: BinaryIO = path.open("a+b")
        try:
            _lock_exclusively(self._file, path)
            if is_new:
                sync_folder(path.parent)
            _cut_torn_line(self._file)
        except BaseException:
            self._file.close()
            raise

    def write(self, data: Mapping[str, Any], *, sync: bool = True) -> int:
        """Write one line whole; return the byte at which it begins.

        `sync` waits until it is on the disk, without it a loss of power may take it.
        """
        line = json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
            return self._file.tell() - len(line)

    def close(self) -> None:
        """Bring what was written to the disk and let the next writer in."""
        with self._lock:
            if not self._file.closed:
                os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        """Return the open file."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


class RecordFile(LineFile):
    """An append-only file of records; `append` returns when the record is on the disk."""

    def append(self, record: Record) -> int:
        """Write one record and wait until it is on the disk; return the byte at which its line begins."""
        return self.write(to_json(record))


def _lock_exclusively(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise ConfigError(f"{path} is being written by another process; wait for it or choose another folder") from exc


def _cut_torn_line(file: BinaryIO) -> None:
    """Truncate after the last newline; a line longer than one block is searched backwards block by block."""
    end = file.seek(0, os.SEEK_END)
    keep = end
    while keep > 0:
        start = max(0, keep - 65536)
        file.seek(start)
        newline = file.read(keep - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        file.truncate(keep)
