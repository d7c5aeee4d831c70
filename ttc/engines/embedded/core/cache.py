"""The prefix cache: a radix tree from token ids to segments of keys and values.

`PrefixTree` finds the longest cached prefix of a prompt, and evicts the least recently used leaves when memory is short
(after RadixAttention, Zheng et al. 2023, arXiv 2312.07104). What a search still needs is pinned and evicted last; what
a search has pruned is dropped at once. Segments in use stay alive by ordinary references: evicting one only removes it
from lookup.

Where a prompt diverges in the middle of a segment, that segment is split, which copies it once. Of a recurrent model,
only prefixes with a state are found.
"""

from __future__ import annotations

import heapq
import weakref
from typing import NamedTuple

import torch

from ttc.engines.embedded.core.pool import PagePool, Segment

_JOINED = 64
"""A segment up to this length is merged with its uncached predecessors by a copy, so that chains stay short."""


class Match(NamedTuple):
    """The longest cached prefix: its segment (None when nothing matches) and its length in tokens."""

    segment: Segment | None
    length: int


class PrefixEntry:
    """`ids` and their segment; the root has none. `pins` counts the search paths that end here.

    `hidden` (1, D) is the hidden state of the last token, where a prompt ended with it. Only its parent refers to an
    entry, so that dropping one frees its memory at once.
    """

    __slots__ = ("__weakref__", "_above", "children", "hidden", "ids", "pins", "segment", "used")

    def __init__(self, above: PrefixEntry | None, ids: tuple[int, ...], segment: Segment | None, used: int) -> None:
        self.above, self.ids, self.segment, self.used = above, ids, segment, used
        self.children: dict[int, PrefixEntry] = {}
        self.hidden: torch.Tensor | None = None
        self.pins = 0

    @property
    def above(self) -> PrefixEntry | None:
        """The parent entry, whose tokens come before; None for the root and for entries that were dropped."""
        return self._above() if self._above is not None else None

    @above.setter
    def above(self, entry: PrefixEntry | None) -> None:
        self._above = weakref.ref(entry) if entry is not None else None

    @property
    def droppable(self) -> bool:
        """Whether dropping it frees memory and affects nothing in use: no child, no pin, no row that continues it."""
        return not (self.children or self.pins or self.segment is None or self.segment.num_children)


class PrefixTree:
    """Maps token ids to segments of `pool`."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.clear()

    def clear(self) -> None:
        """Drop all entries."""
        self._clock = 0
        self._root = PrefixEntry(None, (), None, 0)

    def find(self, ids: tuple[int, ...]) -> Match:
        """Return the longest cached prefix of `ids`, and mark it as used."""
        entry, depth, part = self._descend(ids)
        if self._pool.stateful:
            return _with_state(entry)
        if part is not None:
            entry = self._split(part, depth)
        return Match(entry.segment, depth)

    def length(self, ids: tuple[int, ...]) -> int:
        """How many tokens of `ids` are cached."""
        entry, depth, _ = self._descend(ids)
        return _with_state(entry).length if self._pool.stateful else depth

    def fork(self, ids: tuple[int, ...]) -> int:
        """How many tokens of `ids` some text began with, whether or not they can be continued."""
        return self._descend(ids)[1]

    def insert(self, ids: tuple[int, ...], segment: Segment) -> PrefixEntry:
        """Store `segment` as the keys and values of `ids` (segment.end == len(ids)); cached tokens are not replaced.

        The caller may continue to use `segment`; if all of it is new, the tree takes over its pages. Returns the entry
        in which `ids` ends.
        """
        entry, depth, part = self._descend(ids)
        if depth == len(ids):
            return self._keep_state(part or entry, depth, segment) if self._pool.stateful else part or entry
        if part is not None:
            entry = self._split(part, depth)
        between = segment.parent
        if between is not None and between.start == depth and max(between.length, segment.length) >= _JOINED:
            between.adopt(entry.segment)
            entry, depth = self._add(entry, ids[depth : between.end], between), between.end
        return self._add(entry, ids[depth:], segment.after(entry.segment))

    def _keep_state(self, entry: PrefixEntry, depth: int, segment: Segment) -> PrefixEntry:
        """Give the entry that holds position `depth` the state of `segment`, which ends there; returns it."""
        if entry.segment is not None and entry.segment.end > depth:
            entry = self._split(entry, depth)
        if entry.segment is not None and entry.segment.state is None:
            self._pool.keep(entry.segment, segment.state)
        return entry

    def absorb(self, ids: tuple[int, ...], segment: Segment) -> Segment:
        """Append `segment`, the end of `ids`, to the entry it continues if nothing else does; returns both as one.

        Not to an entry that ends a whole prompt, since that prompt may be requested again, nor to one that ends with a
        state. Without this, each step of a path would leave a page with the single token that its next step started
        with.
        """
        if segment.length and self._pool.stateful:
            return segment
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
        """Merge the entry that ends with `ids` into its parent where nothing else continues the parent.

        A search abandons most branches; without merging, the remaining path would be read step by step, each step in
        its own pages. Done only where copying is cheap.
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
        """Whether the parent is used only through this entry, and no row appends to it."""
        lower, upper = entry.segment, above.segment
        if lower is None or upper is None or above.above is None or above.hidden is not None:
            return False
        alone = lower.parent is upper and upper.num_children == 1 and len(above.children) == 1
        return alone and not lower.num_children and lower.length <= _JOINED

    def _join(self, entry: PrefixEntry, above: PrefixEntry) -> None:
        """Extend `entry` to begin where its parent does; the parent is dropped."""
        lower, upper, top = entry.segment, above.segment, above.above
        if lower is None or upper is None or top is None:
            raise RuntimeError("an entry is joined with one that is forgotten")
        self._pool.carry(lower, lower.start, lower.end, upper)
        entry.ids, entry.segment, entry.above = above.ids + entry.ids, upper, top
        top.children[entry.ids[0]] = entry
        above.above = above.segment = None
        above.children = {}

    def end(self, ids: tuple[int, ...], hidden: torch.Tensor) -> None:
        """Store the hidden state (1, D) of the last token of a whole prompt `ids` that is cached."""
        entry, depth, part = self._descend(ids)
        if part is None and depth == len(ids):
            entry.hidden = hidden.clone()

    def whole(self, ids: tuple[int, ...]) -> tuple[Segment, torch.Tensor] | None:
        """The segment and last hidden state (1, D) of an earlier prompt that was exactly `ids`, if any."""
        entry, depth, part = self._descend(ids)
        if part is not None or depth < len(ids) or entry.segment is None or entry.hidden is None:
            return None
        if self._pool.stateful and entry.segment.state is None:
            return None
        return entry.segment, entry.hidden

    def pin(self, entry: PrefixEntry) -> bool:
        """Protect an entry from eviction until `unpin`; False when it has been dropped already."""
        entry.pins += entry.segment is not None
        return entry.segment is not None

    def unpin(self, entry: PrefixEntry) -> None:
        """Remove one pin."""
        entry.pins -= 1

    def forget(self, entry: PrefixEntry) -> None:
        """Drop an entry that is neither pinned nor continued, and its ancestors up to the next branch."""
        while entry.droppable:
            above = entry.above
            self._remove(entry)
            if above is None or above is self._root:
                return
            entry = above

    def evict(self, max_tokens: int) -> bool:
        """Evict least recently used leaves until the pool holds at most `max_tokens`; False when pins prevent it.

        States between which texts continue go first: a branch there can be computed again from the state before.
        """
        if self._pool.num_tokens <= max_tokens:
            return True
        if self._pool.stateful:
            self._drop_states(max_tokens)
        leaves = [(entry.used, id(entry), entry) for entry in self._leaves() if entry.droppable]
        heapq.heapify(leaves)
        while leaves and self._pool.num_tokens > max_tokens:
            _, _, leaf = heapq.heappop(leaves)
            above = leaf.above
            self._remove(leaf)
            if above is not None and above.droppable:
                heapq.heappush(leaves, (above.used, id(above), above))
        return self._pool.num_tokens <= max_tokens

    def _drop_states(self, max_tokens: int) -> None:
        inner = [entry for entry in self._entries() if entry.children]
        for entry in sorted(inner, key=lambda entry: entry.used):
            if self._pool.num_tokens <= max_tokens:
                return
            segment = entry.segment
            if segment is not None and segment.num_children <= len(entry.children):  # else a row may start here
                segment.state = None

    def _leaves(self) -> list[PrefixEntry]:
        return [entry for entry in self._entries() if not entry.children]

    def _entries(self) -> list[PrefixEntry]:
        """All entries but the root."""
        stack, entries = [self._root], list[PrefixEntry]()
        while stack:
            entry = stack.pop()
            stack.extend(entry.children.values())
            entries.append(entry)
        return entries[1:]

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
        """Descend: the last fully matched entry, the matched length, and the child that matched partly, if any.

        Marks all entries on the way as used with one time stamp, so that of a path only its last entry is evicted next.
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
        """Split `entry` at absolute position `depth`; return the new upper entry."""
        if entry.segment is None or entry.above is None:
            raise RuntimeError("the root of a prefix tree cannot be split")
        offset = depth - entry.segment.start
        upper = PrefixEntry(entry.above, entry.ids[:offset], entry.segment.split(depth), entry.used)
        entry.above.children[entry.ids[0]] = upper
        entry.ids, entry.above = entry.ids[offset:], upper
        upper.children[entry.ids[0]] = entry
        return upper


def _with_state(entry: PrefixEntry) -> Match:
    """The longest prefix after which a state was kept, up to the end of `entry`."""
    at: PrefixEntry | None = entry
    while at is not None and at.segment is not None:
        if at.segment.state is not None:
            return Match(at.segment, at.segment.end)
        at = at.above
    return Match(None, 0)
