"""One decoding step for many branches of a forest, on a CPU with compiled kernels.

Every live branch is a row, whose context is a chain of segments. Long segments that many rows read are attended once
for all of them (prefix sharing as in Hydragen, Juravsky et al. 2024, arXiv 2402.05099, and DeFT, Yao et al. 2024, arXiv
2404.00242): by torch's fused kernel, which uses the matrix units, or by a compiled one where torch's is slower
(`Body.fuses`). The rest is read row by row, and the two parts are joined by their log-sum-exp, which is exact. Short
segments, and those that few rows read, stay in the processor's cache between rows. In layers with a window every row
reads its last keys for itself.

Cost: for torch's kernel, a copy of the shared keys and values, one layer at a time; a new plan when rows are added or
removed. Without numba, `invariant` decodes, in torch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ttc.engines.embedded.core.attention import NO_KEYS, partial_attention
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import SHEET, PagePool, Segment
from ttc.engines.shared.shape import Dims

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_WORTH = 4096
"""Product of keys and readers from which on shared keys are attended together."""
_FEW = 4
"""Segments with fewer readers than this are read by each row for itself."""
_SLACK = 4
"""Pages that a row may open before a new plan is made."""


class _Together(NamedTuple):
    """Rows, and the runs that all of them read: first slots, and number of tokens of each."""

    rows: Numbers
    slots: Numbers
    counts: Numbers


class _Fused:
    """Attention over shared keys by torch's fused kernel, which copies one layer's keys in order first."""

    def __init__(self, shared: _Together, dims: Dims, dtype: torch.dtype, kernels: ModuleType) -> None:
        slots = np.concatenate([np.arange(slot, slot + count) for slot, count in zip(*shared[1:], strict=True)])
        self._kernels, self._rows = kernels, shared.rows
        self._at = (slots // SHEET, slots % SHEET, np.arange(len(slots)))
        self._index = torch.from_numpy(self._rows)
        self._shape = (len(self._rows), dims.num_kv_heads, dims.group, dims.head_dim)
        self._keys, self._values = torch.empty(2, len(slots), dims.num_kv_heads, dims.head_dim, dtype=dtype)

    def __call__(self, q: torch.Tensor, layer: tuple[Any, Any], seed: Any, totals: Any) -> None:
        """Add to the partial results `seed` and `totals` of `native.attend`."""
        kernels = self._kernels
        kernels.load(*layer, *self._at, *map(kernels.array, (self._keys, self._values)))
        # (1, kv heads, rows * group, D), and (1, kv heads, keys, D)
        queries = q[self._index].view(self._shape).transpose(0, 1).flatten(1, 2)[None]
        keys, values = (x.transpose(0, 1)[None] for x in (self._keys, self._values))
        part, weight = (x[0].contiguous() for x in partial_attention(queries, keys, values))
        kernels.join(kernels.array(part), weight.float().numpy(), self._rows, seed, totals)


class _InPlace:
    """Attention over shared keys by a compiled kernel, which reads them in place."""

    def __init__(self, shared: _Together, dims: Dims, _: torch.dtype, kernels: ModuleType) -> None:
        rows, slots, counts = shared
        limits = np.full(len(rows), counts.sum())
        self._kernels, self._tiles = kernels, kernels.tile_table([len(rows)], dims.group)
        ends = np.array([0, len(rows)]), np.array([0]), np.array([len(slots)])
        self._table = (ends[0], rows, limits, np.zeros_like(limits), slots, counts, *ends[1:])
        self._numbers = int(limits.sum()) * dims.num_heads * dims.head_dim

    def __call__(self, q: torch.Tensor, layer: tuple[Any, Any], seed: Any, totals: Any) -> None:
        """Add to the partial results `seed` and `totals` of `native.attend`."""
        kernels, tiles = self._kernels, self._tiles
        work = (kernels.array(q), *layer, tiles, *self._table, seed, totals)
        kernels.attend_together(len(tiles), self._numbers, *work)


class _Table(NamedTuple):
    """The runs of a chain that a row reads for itself: first slots and lengths; `own` are its last segment's pages."""

    above: _Table | None
    own: list[int]
    length: int
    repeats: int
    slots: list[int]
    counts: list[int]


_NOTHING = _Table(None, [], 0, 0, [], [])


def _repeats(segment: Segment, apart: Collection[Segment]) -> int:
    """Tokens before a segment that are read from its own first page; 0 where rows read some of them together."""
    part = segment.parent
    while apart and part is not None and part.end > segment.start - segment.repeats:
        if part in apart:
            return 0
        part = part.parent
    return segment.repeats


def _follow(slots: list[int], counts: list[int], segment: Segment, repeats: int, length: int) -> None:
    """Append the runs of a segment's first `length` tokens; replaces the last `repeats` tokens before them."""
    rest = repeats
    while rest and counts[-1] <= rest:
        rest -= counts.pop()
        slots.pop()
    if rest:  # the repeated tokens were stored in other runs than those listed here
        counts[-1] -= rest
    runs = segment.runs_of(-repeats, length)
    slots += runs[0]
    counts += runs[1]


def _table_of(segment: Segment, apart: Collection[Segment], tables: dict[Segment, _Table]) -> _Table:
    """The table of a chain without its segments `apart`; `tables` caches the segments this plan has visited.

    Most rows, and most of each chain, stay from plan to plan, so an earlier table is reused while the segment has the
    same pages and its parent the same table.
    """
    chain: list[Segment] = []
    part: Segment | None = segment
    while part is not None and part not in tables:
        chain.append(part)
        part = part.parent
    table = _NOTHING if part is None else tables[part]
    for part in reversed(chain):
        if part not in apart:
            known, repeats = part.table, _repeats(part, apart)
            if not (
                isinstance(known, _Table)
                and known.above is table
                and known.own is part.pages
                and known.length == part.length
                and known.repeats == repeats
            ):
                slots, counts = list(table.slots), list(table.counts)
                _follow(slots, counts, part, repeats, part.length)
                known = part.table = _Table(table, part.pages, part.length, repeats, slots, counts)
            table = known
        tables[part] = table
    return table


def _may_share(segments: Sequence[Segment]) -> bool:
    """Whether the rows have enough keys in common to be worth reading together; a quick check that mostly fails."""
    readers: dict[Segment, int] = {}
    for parent, count in Counter(segment.parent for segment in segments).items():
        part = parent
        while part is not None:
            num = readers[part] = readers.get(part, 0) + count
            if num >= _FEW and num * part.end >= _WORTH:
                return True
            part = part.parent
    return False


def _read_together(segments: Sequence[Segment]) -> dict[tuple[int, ...], list[Segment]]:
    """The segments that several rows read together, by those rows."""
    readers: dict[Segment, list[int]] = {}
    for row, segment in enumerate(segments):
        part = segment.parent
        while part is not None:
            if part.length:
                readers.setdefault(part, []).append(row)
            part = part.parent
    together: dict[tuple[int, ...], list[Segment]] = {}
    for part, rows in readers.items():
        if len(rows) >= _FEW:
            together.setdefault(tuple(rows), []).append(part)
    return {rows: parts for rows, parts in together.items() if len(rows) * _tokens(parts) >= _WORTH}


class _Plan:
    """Which runs each row reads for itself, which runs rows read together, and where each row writes its next token.

    With a `window`, a row reads its last tokens only, and all for itself.
    """

    def __init__(self, pool: PagePool, segments: Sequence[Segment], window: int | None = None) -> None:
        self._size, self._window = pool.shelf.size, window
        shared = _read_together(segments) if window is None and _may_share(segments) else {}
        self.shared = [_together(rows, parts) for rows, parts in shared.items()]
        apart = {part for parts in shared.values() for part in parts}
        tables: dict[Segment, _Table] = {}
        slots, counts, firsts, lasts = list[int](), list[int](), list[int](), list[int]()
        for segment in segments:
            firsts.append(len(slots))
            if segment.parent is not None:
                table = _table_of(segment.parent, apart, tables)
                slots += table.slots
                counts += table.counts
            _follow(slots, counts, segment, _repeats(segment, apart), segment.length + 1)
            if window is not None:
                firsts[-1] = _pass_over(slots, counts, firsts[-1], segment.end + 1 - window)
            lasts.append(len(slots))
            slots += [0] * _SLACK
            counts += [0] * _SLACK
        self.slots, self.counts, self.firsts, self.lasts = (
            np.array(x, np.int64) for x in (slots, counts, firsts, lasts)
        )
        self._limit = self.lasts + _SLACK
        self._lengths = np.array([segment.end + 1 for segment in segments])
        last = self.slots[self.lasts - 1] + self.counts[self.lasts - 1] - 1
        self.sheets, self.offsets = last // SHEET, last % SHEET

    def advance(self) -> list[int] | None:
        """Advance every row by one token; returns rows that first need a page (`open`), or None: make a new plan."""
        full: Numbers = np.flatnonzero((self.offsets + 1) % self._size == 0)
        if (self.lasts[full] == self._limit[full]).any():
            return None
        self.offsets += 1
        self.counts[self.lasts - 1] += 1
        self.counts[self.lasts[full] - 1] -= 1
        if self._window is not None:
            self._slide(self._window)
        rows: list[int] = full.tolist()
        return rows

    def _slide(self, window: int) -> None:
        """Leave out the oldest token of the rows that now have one too many."""
        self._lengths += 1
        rows = np.flatnonzero(self._lengths > window)
        runs = self.firsts[rows]
        self.slots[runs] += 1
        self.counts[runs] -= 1
        self.firsts[rows] += self.counts[runs] == 0

    def open(self, row: int, page: int) -> None:
        """Let a row write to a new page."""
        slot = page * self._size
        self.slots[self.lasts[row]], self.counts[self.lasts[row]] = slot, 1
        self.lasts[row] += 1
        self.sheets[row], self.offsets[row] = slot // SHEET, slot % SHEET


def _pass_over(slots: list[int], counts: list[int], run: int, tokens: int) -> int:
    """Leave out the first `tokens` tokens of runs from index `run` on; returns the index of the first that is left."""
    while tokens > 0:
        step = min(tokens, counts[run])
        slots[run] += step
        counts[run] -= step
        tokens -= step
        run += counts[run] == 0
    return run


def _together(rows: Sequence[int], parts: Sequence[Segment]) -> _Together:
    runs = zip(*(part.runs_of(0, part.length) for part in parts), strict=True)
    return _Together(np.array(rows, np.int64), *(np.array(list(itertools.chain(*column)), np.int64) for column in runs))


def _tokens(parts: Sequence[Segment]) -> int:
    return sum(part.length for part in parts)


class PagedDecoder:
    """The `Decoder` for CPUs; `kernels` is the result of `compute.native`."""

    def __init__(self, body: Body, kernels: ModuleType) -> None:
        self.body = body
        self.num_rows = 0
        self._kernels = kernels
        self._shelf = body.pool.shelf
        self._segments: list[Segment] = []
        self._plans: dict[int | None, _Plan] = {}
        """By the window of a layer; empty: to be made."""
        self._version = -1

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`."""
        self._segments.append(segment)
        self.num_rows += 1
        self._plans = {}
        return self.num_rows - 1

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        self._segments[row] = self._segments[-1]
        self._segments.pop()
        self.num_rows -= 1
        self._plans = {}

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`."""
        self._prepare()
        positions = torch.tensor([segment.end for segment in self._segments])
        hidden = self.body.forward(torch.as_tensor(tokens), positions, self._attend)
        for segment in self._segments:
            segment.length += 1
        return hidden

    def _prepare(self) -> None:
        """Advance the plans to the next token of every row, or make new ones."""
        pool = self.body.pool
        current = self._version == pool.version
        full = [plan.advance() for plan in self._plans.values()] if current else []
        if not full or None in full:
            self._plan_anew()
            return
        for row in full[0] or ():
            pool.reserve(self._segments[row], 1)
            for plan in self._plans.values():
                plan.open(row, self._segments[row].pages[-1])

    def _plan_anew(self) -> None:
        """Make plans for the current rows, and the buffers that a step uses."""
        body, pool = self.body, self.body.pool
        for segment in self._segments:
            pool.reserve(segment, 1)
        self._plans = {window: _Plan(pool, self._segments, window) for window in {*body.windows}}
        self._version = pool.version
        kind: type[_Fused | _InPlace] = _Fused if body.fuses else _InPlace
        shared = self._plans[None].shared if None in self._plans else []
        self._shared = [kind(together, body.dims, body.dtype, self._kernels) for together in shared]
        shape = (self.num_rows, body.dims.num_heads)
        self._seed, self._totals = np.empty(shape, np.float32), np.empty((*shape, body.dims.head_dim), np.float32)
        self._seed.fill(NO_KEYS)
        out = torch.empty(*self._totals.shape, dtype=body.dtype)
        self._out, self._written = out.view(self.num_rows, -1), self._kernels.array(out)

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `model.Attend`; the next layer overwrites the returned tensor."""
        window, kernels, at = self.body.windows[layer], self._kernels, self._shelf.arrays(layer)
        plan = self._plans[window]
        kernels.store(len(k), 2 * k.numel(), kernels.array(k), kernels.array(v), plan.sheets, plan.offsets, *at)
        if self._shared:
            self._seed.fill(NO_KEYS)
            for attend in self._shared if window is None else ():
                attend(q, at, self._seed, self._totals)
        table = (plan.slots, plan.counts, plan.firsts, plan.lasts)
        numbers = 2 * plan.slots.size * at[0][0].size  # as many keys as values in a sheet
        kernels.attend(len(q), numbers, kernels.array(q), *at, *table, self._seed, self._totals, self._written)
        return self._out
