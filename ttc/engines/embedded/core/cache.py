"""What is kept between requests: a radix tree from token ids to segments of keys and values.

`PrefixTree` finds the longest known prefix of a prompt, and forgets the least recently used leaves when memory is
wanted (after RadixAttention, Zheng et al. 2023, arXiv 2312.07104). What a search still needs is pinned: it is forgotten
last, and what the search has left is forgotten at once. Segments in use stay alive by ordinary references; forgetting
one only stops it being found.

Where a prompt leaves a segment in its middle, that segment is split, which copies it once.
"""

from __future__ import annotations

import heapq
import weakref
from typing import NamedTuple

import torch

from ttc.engines.embedded.core.pool import PagePool, Segment

__all__ = ["Match", "PrefixEntry", "PrefixTree"]

_JOINED = 64
"""A segment up to this long is copied together with what stands between it and the tree, so chains stay short."""


class Match(NamedTuple):
    """The longest known prefix: its segment (None when nothing is known) and its length."""

    segment: Segment | None
    length: int


class PrefixEntry:
    """`ids` and their segment; the root has none. `pins` counts the paths of searches that end here.

    `hidden` (1, D) is what the model made of the last token, where a prompt ended with it. The entry is held by the one
    above it only, so that what is forgotten is free at once.
    """

    __slots__ = ("__weakref__", "_above", "children", "hidden", "ids", "pins", "segment", "used")

    def __init__(self, above: PrefixEntry | None, ids: tuple[int, ...], segment: Segment | None, used: int) -> None:
        self.above, self.ids, self.segment, self.used = above, ids, segment, used
        self.children: dict[int, PrefixEntry] = {}
        self.hidden: torch.Tensor | None = None
        self.pins = 0

    @property
    def above(self) -> PrefixEntry | None:
        """The entry whose tokens come before; None for the root and for what is forgotten."""
        return self._above() if self._above is not None else None

    @above.setter
    def above(self, entry: PrefixEntry | None) -> None:
        self._above = weakref.ref(entry) if entry is not None else None

    @property
    def droppable(self) -> bool:
        """Whether forgetting it frees its memory and hurts nobody: no branch, no pin, no row that continues it."""
        return not (self.children or self.pins or self.segment is None or self.segment.num_children)


class PrefixTree:
    """Maps token ids to segments of `pool`."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._clock = 0
        self._root = PrefixEntry(None, (), None, 0)

    def find(self, ids: tuple[int, ...]) -> Match:
        """Return the longest known prefix of `ids`; touches it."""
        entry, depth, part = self._descend(ids)
        if part is not None:
            entry = self._split(part, depth)
        return Match(entry.segment, depth)

    def length(self, ids: tuple[int, ...]) -> int:
        """How many tokens of `ids` are known."""
        return self._descend(ids)[1]

    def insert(self, ids: tuple[int, ...], segment: Segment) -> PrefixEntry:
        """Remember `segment` as the keys and values of `ids` (segment.end == len(ids)); what is known stays.

        The caller may use `segment` on; where all of it is new, its pages become the tree's. Returns the entry in which
        `ids` ends.
        """
        entry, depth, part = self._descend(ids)
        if depth == len(ids):
            return part or entry
        if part is not None:
            entry = self._split(part, depth)
        between = segment.parent
        if between is not None and between.start == depth and max(between.length, segment.length) >= _JOINED:
            between.adopt(entry.segment)
            entry, depth = self._add(entry, ids[depth : between.end], between), between.end
        return self._add(entry, ids[depth:], segment.after(entry.segment))

    def absorb(self, ids: tuple[int, ...], segment: Segment) -> Segment:
        """Append `segment`, the end of `ids`, to the entry it continues, where nobody else does; returns what has it.

        Not to one that ends a whole prompt, which may be asked for again.
        Otherwise each step of a path would leave a page for the one token that its next step was started with.
        """
        entry, depth, part = self._descend(ids)
        holder = entry.segment
        continues = part is None and holder is segment.parent and depth == segment.start
        ends = entry.hidden is not None and segment.length > 0
        if not continues or holder is None or entry.children or holder.num_children > 1 or ends:
            return segment
        if segment.length:
            self._pool.carry(segment, segment.start, segment.end, holder)
            entry.ids += ids[depth:]
        return holder

    def join(self, ids: tuple[int, ...]) -> None:
        """Bring what ends with `ids` together with what is before it and leads nowhere else any more.

        A search leaves most branches, and what it goes on with would be read step by step, each in pages of its own.
        Only where a copy costs next to nothing.
        """
        entry, depth, part = self._descend(ids)
        if part is not None or depth < len(ids) or not self._pool.copies_fast:
            return
        above = entry.above
        while above is not None and self._can_join(entry, above):
            self._join(entry, above)
            above = entry.above

    @staticmethod
    def _can_join(entry: PrefixEntry, above: PrefixEntry) -> bool:
        """Whether nobody reads what is above an entry without it, and nobody has a place behind it."""
        lower, upper = entry.segment, above.segment
        if lower is None or upper is None or above.above is None or above.hidden is not None:
            return False
        alone = lower.parent is upper and upper.num_children == 1 and len(above.children) == 1
        return alone and not lower.num_children and lower.length <= _JOINED

    def _join(self, entry: PrefixEntry, above: PrefixEntry) -> None:
        """Let `entry` begin where the one above it does, which is nobody's from now on."""
        lower, upper, top = entry.segment, above.segment, above.above
        if lower is None or upper is None or top is None:
            raise RuntimeError("an entry is joined with one that is forgotten")
        self._pool.carry(lower, lower.start, lower.end, upper)
        entry.ids, entry.segment, entry.above = above.ids + entry.ids, upper, top
        top.children[entry.ids[0]] = entry
        above.above = above.segment = None
        above.children = {}

    def end(self, ids: tuple[int, ...], hidden: torch.Tensor) -> None:
        """Remember with known `ids`, a whole prompt, the hidden state (1, D) of the last."""
        entry, depth, part = self._descend(ids)
        if part is None and depth == len(ids):
            entry.hidden = hidden.clone()

    def whole(self, ids: tuple[int, ...]) -> tuple[Segment, torch.Tensor] | None:
        """The segment and last hidden state (1, D) of a prompt that was computed before and ended with `ids`."""
        entry, depth, part = self._descend(ids)
        if part is not None or depth < len(ids) or entry.segment is None or entry.hidden is None:
            return None
        return entry.segment, entry.hidden

    def pin(self, entry: PrefixEntry) -> bool:
        """Keep an entry until `unpin`; False when it has been forgotten already."""
        entry.pins += entry.segment is not None
        return entry.segment is not None

    def unpin(self, entry: PrefixEntry) -> None:
        """Take a pin back."""
        entry.pins -= 1

    def forget(self, entry: PrefixEntry) -> None:
        """Drop an entry that nobody has pinned or continues, and what is above it up to where another branch leaves."""
        while entry.droppable:
            above = entry.above
            self._remove(entry)
            if above is None or above is self._root:
                return
            entry = above

    def evict(self, max_tokens: int) -> bool:
        """Forget least recently used leaves until the pool holds at most `max_tokens`; False when pins forbid it."""
        if self._pool.num_tokens <= max_tokens:
            return True
        leaves = [(entry.used, id(entry), entry) for entry in self._leaves() if entry.droppable]
        heapq.heapify(leaves)
        while leaves and self._pool.num_tokens > max_tokens:
            _, _, leaf = heapq.heappop(leaves)
            above = leaf.above
            self._remove(leaf)
            if above is not None and above.droppable:
                heapq.heappush(leaves, (above.used, id(above), above))
        return self._pool.num_tokens <= max_tokens

    def _leaves(self) -> list[PrefixEntry]:
        stack, leaves = [self._root], list[PrefixEntry]()
        while stack:
            entry = stack.pop()
            stack.extend(entry.children.values())
            if not entry.children and entry is not self._root:
                leaves.append(entry)
        return leaves

    def _add(self, above: PrefixEntry, ids: tuple[int, ...], segment: Segment) -> PrefixEntry:
        self._clock += 1
        entry = PrefixEntry(above, ids, segment, self._clock)
        above.children[entry.ids[0]] = entry
        return entry

    def _remove(self, entry: PrefixEntry) -> None:
        if entry.above is not None:
            del entry.above.children[entry.ids[0]]
        entry.above = entry.segment = entry.hidden = None

    def _descend(self, ids: tuple[int, ...]) -> tuple[PrefixEntry, int, PrefixEntry | None]:
        """Walk down: the last whole entry, the matched length, and the child that was entered but not left.

        Touches all that it meets, at once: of a path only the last may be forgotten next.
        """
        self._clock += 1
        clock, entry, depth, length = self._clock, self._root, 0, len(ids)
        while depth < length:
            child = entry.children.get(ids[depth])
            if child is None:
                break
            child.used = clock
            span = child.ids
            end = depth + len(span)
            if ids[depth:end] == span:
                entry, depth = child, end
                continue
            pairs = zip(span, ids[depth:end], strict=False)
            same = next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(span), length - depth))
            return entry, depth + same, child
        return entry, depth, None

    def _split(self, entry: PrefixEntry, depth: int) -> PrefixEntry:
        """Cut `entry` at absolute position `depth`; return the new upper one."""
        if entry.segment is None or entry.above is None:
            raise RuntimeError("the root of a prefix tree cannot be split")
        offset = depth - entry.segment.start
        upper = PrefixEntry(entry.above, entry.ids[:offset], entry.segment.split(depth), entry.used)
        entry.above.children[entry.ids[0]] = upper
        entry.ids, entry.above = entry.ids[offset:], upper
        upper.children[entry.ids[0]] = entry
        return upper
