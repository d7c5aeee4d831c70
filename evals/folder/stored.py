"""The records of a run, read from its folder when they are looked at: a sequence that holds none of them.

Kept in memory is where each line begins, eight bytes a problem. Every pass reads and decodes the file again (about a
millisecond for a record of twenty kilobytes), so whoever needs several things takes them in one pass. Runs below
`HELD_BYTES` are simply lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from ttc import records as store
from ttc.core import Record

__all__ = ["HELD_BYTES", "StoredRecords", "stored"]

HELD_BYTES = 8 << 20
"""A file of this size becomes about six times as large in memory."""


class StoredRecords(Sequence[Record]):
    """Records of a file by the places of their lines; read-only, and true as long as the file is only appended to."""

    def __init__(self, path: Path, places: Sequence[int]) -> None:
        """`places` are in the order in which the records are wanted."""
        self._path, self._places = path, places

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)

    def __iter__(self) -> Iterator[Record]:
        """Read one after the other."""
        with self._path.open("rb") as file:
            for place in self._places:
                yield store.read_at(file, place)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> StoredRecords: ...

    def __getitem__(self, index: int | slice) -> Record | StoredRecords:
        """Read one, or give a part that is not read yet."""
        if isinstance(index, slice):
            return StoredRecords(self._path, self._places[index])
        with self._path.open("rb") as file:
            return store.read_at(file, self._places[index])


def stored(path: Path, places: Sequence[int]) -> Sequence[Record]:
    """The records at `places` of the file at `path`: a list where the file is small, else read when looked at."""
    records = StoredRecords(path, places)
    return records if path.stat().st_size > HELD_BYTES else list(records)
