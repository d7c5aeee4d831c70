"""Copies of chains of short segments, for decoding on a CPU: a row reads a few long pages instead of many short ones.

A search whose steps are lines, or labels by continuations from every step, leaves chains of many short segments, each
in a page of its own: a row behind fourteen steps of nine tokens would multiply fourteen pages of 16. A `Trunk` has what
a path of such segments says, end to end in pages of 64. All rows whose chain begins on the path read the trunk, each up
to where its chain leaves it, which is a mask in the product. Of several ways on, a path takes the one that most rows go
(heavy paths, Sleator and Tarjan 1983), so a row meets few trunks, however deep the tree.

A trunk is known by positions: what a chain says of them never changes, however it is cut. It lasts as long as rows
read it, and is shortened to what is alive of its path.

Cost: at most one copy of the keys and values of short segments, made once and only where a page stands for at least
three; never more than the pool can spare. Left out: segments that are long already.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ttc.engines.embedded.core.pool import PagePool, Segment

__all__ = ["Trunk", "TrunkRows", "Trunks"]

_WORTH = 3
"""Short pages that a long one must stand for."""


class Trunk:
    """What the positions [start, end) of a path say: a segment in the pool of copies, and the path's own segments."""

    def __init__(self, copy: Segment, start: int) -> None:
        self.copy, self.start = copy, start
        self._path: list[tuple[weakref.ref[Segment], int]] = []  # each with the position after it

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.copy.length

    def grow(self, path: Sequence[Segment]) -> None:
        """Copy the segments that come next on the path."""
        last = path[-1]
        self.copy.pool.append(self.copy, last.pool.read_chain(last, self.end, last.end))
        self._path += [(weakref.ref(part), part.end) for part in path]

    def alive(self) -> Segment | None:
        """The last segment of the path that is still there; what was copied of those behind it is dropped."""
        while self._path:
            reference, end = self._path[-1]
            part = reference()
            if part is not None:
                self._cut(end - self.start)
                return part
            self._path.pop()
        return None

    def _cut(self, length: int) -> None:
        copy, size = self.copy, self.copy.pool.shelves[0].size
        num = -(-length // size)
        if num < len(copy.pages):
            copy.pool.returned.append((0, copy.pages[num:]))
            copy.pages = copy.pages[:num]
        copy.length = length


class TrunkRows(NamedTuple):
    """How many tokens of a trunk's copy each row reads, most first."""

    copy: Segment
    rows: list[tuple[int, int]]


class Trunks:
    """All trunks of a decoder."""

    def __init__(self, pool: PagePool, size: int) -> None:
        """Copies of what is in `pool`, in pages of `size` tokens."""
        shelf = pool.shelves[0]
        self.copies = PagePool(shelf.dims, shelf.dtype, shelf.device, (size,))
        self._short, self._size = shelf.size, size
        self._trunks: list[Trunk] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that the pages of all copies could hold."""
        return self.copies.num_tokens

    def lay(
        self, readers: Mapping[Segment, Sequence[int]], short: Collection[Segment], spare: int
    ) -> tuple[list[TrunkRows], set[Segment]]:
        """Copy what is worth it; returns what rows read of trunks, and the segments that they need not read any more.

        Args:
            readers: the rows that read each segment.
            short: those of the segments that may be copied.
            spare: tokens that copies may take.
        """
        if self.num_tokens > spare:
            self._trunks.clear()
        self.copies.return_memory(spare)
        holders = self._holders(readers)
        ways: dict[Segment | None, list[Segment]] = {}
        for part in sorted(short, key=lambda part: part.start):
            if part not in holders:
                ways.setdefault(_above(part), []).append(part)
        for above, parts in ways.items():  # those above come first, since they start earlier
            for part in sorted(parts, key=lambda part: -len(readers[part])):
                if part not in holders:
                    self._copy(_heavy(part, ways, readers), above, holders, spare)
        return self._readings(readers, holders), set(holders)

    def _holders(self, readers: Mapping[Segment, Sequence[int]]) -> dict[Segment, Trunk]:
        """The segments that a trunk speaks for; trunks that nobody reads are dropped."""
        holders: dict[Segment, Trunk] = {}
        kept: list[Trunk] = []
        for trunk in self._trunks:
            part, read = trunk.alive(), False
            while part is not None and part.start >= trunk.start:
                if part.end <= trunk.end and part in readers:
                    holders[part], read = trunk, True
                part = part.parent
            if read:
                kept.append(trunk)
        self._trunks = kept
        return holders

    def _copy(self, path: Sequence[Segment], above: Segment | None, holders: dict[Segment, Trunk], spare: int) -> None:
        """Let the trunk that ends above the path, or a new one, speak for the path, if that is worth it."""
        trunk = holders.get(above) if above is not None else None
        if trunk is not None and trunk.end != path[0].start:
            trunk = None
        length = path[-1].end - path[0].start
        pages = -(-length // self._size)
        if trunk is not None:
            pages = -(-(trunk.copy.length + length) // self._size) - len(trunk.copy.pages)
        if sum(-(-part.length // self._short) for part in path) < _WORTH * pages:
            return
        if self.num_tokens + pages * self._size > spare:
            return
        if trunk is None:
            trunk = Trunk(self.copies.segment(), path[0].start)
            self._trunks.append(trunk)
        trunk.grow(path)
        holders.update(dict.fromkeys(path, trunk))

    def _readings(self, readers: Mapping[Segment, Sequence[int]], holders: Mapping[Segment, Trunk]) -> list[TrunkRows]:
        """Up to where each row reads each trunk: to the end of its last segment there."""
        ends: dict[Trunk, dict[int, int]] = {}
        for part, trunk in sorted(holders.items(), key=lambda pair: pair[0].start):
            ends.setdefault(trunk, {}).update(dict.fromkeys(readers[part], part.end - trunk.start))
        self.copies.gather(0, [page for trunk in ends for page in trunk.copy.pages])
        return [TrunkRows(trunk.copy, sorted(rows.items(), key=lambda pair: -pair[1])) for trunk, rows in ends.items()]


def _above(part: Segment) -> Segment | None:
    """The segment before it that has tokens."""
    above = part.parent
    while above is not None and not above.length:
        above = above.parent
    return above


def _heavy(
    part: Segment, ways: Mapping[Segment | None, Sequence[Segment]], readers: Mapping[Segment, Sequence[int]]
) -> list[Segment]:
    """The path from a segment on along which most rows go."""
    path = [part]
    while on := ways.get(path[-1]):
        path.append(max(on, key=lambda part: len(readers[part])))
    return path
