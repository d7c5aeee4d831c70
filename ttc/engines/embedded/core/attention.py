"""Attention of new tokens over a forest of prefixes, without storing all scores at once.

`PagedAttention` reads keys in place from their pages, including those of the new tokens, with a compiled kernel that
multiplies each key by twelve queries at a time (`native.attend_together`). Items of different lengths need no padding,
and nothing is copied; of a layer with a window, keys before it are passed over. Cost: a prefix shared by several items
is read once for each of them. On a CPU with compiled kernels it handles all new tokens, unless torch's fused kernel is
faster there (bf16 with AMX, `Body.fuses`). Even then it handles items with few new tokens each (`is_step`), as a reward
model has them after every step of a search.

`PrefixAttention` handles all others with torch's fused kernel, which works block by block (FlashAttention, Dao et al.
2022, arXiv 2205.14135). It computes attention in parts: each run of tokens that several items share is read once for
all of them; what only one item reads is batched with that of items of similar length; each item's own new tokens come
last, with a causal mask. Parts are joined by their log-sum-exp, which is exact (Hydragen, Juravsky et al. 2024, arXiv
2402.05099; FlashInfer, Ye et al. 2025, arXiv 2501.01005). Cost: a copy of the prefixes' keys and values in order of
position, for one layer at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from ttc.engines.embedded.core.pool import SHEET, PagePool, Segment
from ttc.engines.shared.compute import native

_WORTH = 2 << 20
"""Bytes that reading a shared run of tokens once must save per layer to be worth a matrix product of its own."""

_SHORT = 8192
"""`PagedAttention` is faster than copying the keys up to this product of an item's new tokens and the keys each reads.
"""

NO_KEYS = -1e30
"""Log-sum-exp over an empty set of keys, as in `native.attend`."""

APART = 32
"""Mean number of new tokens per item from which items of different lengths are attended one by one."""

Slots: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

Partial: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Outputs (..., T, D), and the log-sum-exp (..., T) of the scores behind each."""


def partial_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, mask: torch.Tensor | None = None
) -> Partial:
    """Softmax attention over a subset of the keys: q (N, H, T, D), k and v (N, H, S, D), additive mask (N, 1, 1, S)."""
    if q.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, total = kernel(q, k, v, 0.0, causal, attn_mask=mask, scale=1.0)
        return out, total
    scores = torch.matmul(q, k.transpose(2, 3)).float()
    if mask is not None:
        scores += mask
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return torch.matmul(scores.softmax(-1).to(v.dtype), v), scores.logsumexp(-1)


@dataclass(frozen=True, slots=True)
class _Run:
    """Keys that are read in one product: `count` groups of `size` keys each in the buffer, from `start` on.

    The queries are those of `tokens` (None: all), arranged as (count, width) cells by `cells` where items differ in
    length.
    """

    start: int
    count: int
    size: int
    tokens: torch.Tensor | None
    cells: torch.Tensor | None
    width: int
    mask: torch.Tensor | None


class PrefixAttention:
    """Attention of one batch: writes each layer's new keys and values into their pages, then attends."""

    def __init__(self, pool: PagePool, items: Sequence[tuple[Segment, int]]) -> None:
        """`items`: (segment, new tokens); pages for the new tokens are reserved, `length` does not count them yet."""
        shelf, dims = pool.shelf, pool.shelf.dims
        self._pool, self._dims, self._device = pool, dims, shelf.device
        self._lengths = [count for _, count in items]
        places = [pool.places(segment, segment.length, count) for segment, count in items]
        self._sheets, self._offsets = (torch.cat(parts) for parts in zip(*places, strict=True))
        self._starts = torch.tensor([0, *self._lengths]).cumsum(0).tolist()
        self._gathers: tuple[list[Slots], list[Slots]] = ([], [])  # slots to read, and indices of the buffer to write
        self._runs: list[_Run] = []
        self._num = 0
        self._plan([segment for segment, _ in items])
        shape = (self._num, dims.num_kv_heads, dims.head_dim)
        self._keys = torch.zeros(shape, dtype=shelf.dtype, device=self._device)
        self._values = torch.zeros(shape, dtype=shelf.dtype, device=self._device)
        self._source = self._gathered() if self._num else None
        self._own = self._cells(range(len(items)))
        self._kernels = native(self._device, shelf.dtype)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend: q (T, heads, D) scaled, k and v (T, kv heads, D), all items concatenated -> (T, heads * D)."""
        self._exchange(layer, k, v)
        out, total = self._within(q, k, v)  # (T, heads, D), (T, heads)
        for run in self._runs:
            self._join(out, total, run, q)
        return out.flatten(1)

    def _exchange(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write new keys and values into their pages, and copy the prefixes into the buffer."""
        shelf, kernels = self._pool.shelf, self._kernels
        if kernels is None:
            shelf.keys[layer][self._sheets, :, :, self._offsets] = k
            shelf.values[layer][self._sheets, :, self._offsets] = v
            if self._source is not None:
                sheets, offsets, places = self._source
                self._keys[places] = shelf.keys[layer][sheets, :, :, offsets]
                self._values[places] = shelf.values[layer][sheets, :, offsets]
        else:
            arrays, at = shelf.arrays(layer), (self._sheets.numpy(), self._offsets.numpy())
            kernels.store(len(k), 2 * k.numel(), *map(kernels.array, (k, v)), *at, *arrays)
            if self._source is not None:
                ends = map(kernels.array, (self._keys, self._values))
                kernels.load(*arrays, *(index.numpy() for index in self._source), *ends)

    # -- the plan ----------------------------------------------------------------------------------------------------

    def _plan(self, segments: Sequence[Segment]) -> None:
        """Arrange the buffer: first the runs that several items share, then the private runs of each item."""
        shared, private = self._divide(segments)
        for sharers, parts in shared.items():
            tokens = None if len(sharers) == len(segments) else self._tokens(sharers)
            size = sum(part.length for part in parts)
            self._runs.append(_Run(self._num, 1, size, tokens, None, 0, None))
            self._gather(parts, self._num)
            self._num += size
        for bucket in _alike({i: sum(part.length for part in parts) for i, parts in private.items()}):
            self._add_private(bucket, private)

    def _divide(
        self, segments: Sequence[Segment]
    ) -> tuple[dict[tuple[int, ...], list[Segment]], dict[int, list[Segment]]]:
        """Split segments into those read once, by the items that share them, and private ones, by their item."""
        readers: dict[Segment, list[int]] = {}
        for i, segment in enumerate(segments):
            for part in segment.chain():
                if part.length:
                    readers.setdefault(part, []).append(i)
        shared: dict[tuple[int, ...], list[Segment]] = {}
        private: dict[int, list[Segment]] = {}
        runs: Counter[tuple[int, ...]] = Counter()
        for part, items in readers.items():
            runs[tuple(items)] += part.length
        token = 2 * self._dims.num_kv_heads * self._dims.head_dim * self._pool.shelf.dtype.itemsize
        for part, items in readers.items():
            if runs[tuple(items)] * (len(items) - 1) * token >= _WORTH:
                shared.setdefault(tuple(items), []).append(part)
                continue
            for item in items:
                private.setdefault(item, []).append(part)
        return shared, private

    def _add_private(self, bucket: Sequence[int], private: dict[int, list[Segment]]) -> None:
        sizes = [sum(part.length for part in private[i]) for i in bucket]
        size = max(sizes)
        for place, i in enumerate(bucket):
            self._gather(private[i], self._num + place * size)
        mask = None
        if min(sizes) < size:
            beyond = torch.arange(size)[None] >= torch.tensor(sizes)[:, None]
            mask = torch.zeros(beyond.shape, dtype=self._pool.shelf.dtype).masked_fill_(beyond, float("-inf"))
            mask = mask[:, None, None].to(self._device)
        tokens = None if len(bucket) == len(self._lengths) else self._tokens(bucket)
        cells, width = self._cells(bucket)
        self._runs.append(_Run(self._num, len(bucket), size, tokens, cells, width, mask))
        self._num += len(bucket) * size

    def _gather(self, parts: Sequence[Segment], start: int) -> None:
        for part in parts:
            slots, places = self._gathers
            slots.append(self._pool.slots(part, 0, part.length))
            places.append(np.arange(start, start + part.length))
            start += part.length

    def _gathered(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sheets and offsets of all prefix tokens, and their indices in the buffer."""
        slots, places = (torch.from_numpy(np.concatenate(column)).to(self._device) for column in self._gathers)
        return slots // SHEET, slots % SHEET, places

    def _tokens(self, items: Sequence[int]) -> torch.Tensor:
        """Indices of the new tokens of `items`."""
        spans = [torch.arange(self._starts[i], self._starts[i + 1]) for i in items]
        return torch.cat(spans).to(self._device)

    def _cells(self, items: Sequence[int]) -> tuple[torch.Tensor | None, int]:
        """Where the tokens of `items` go in a (len(items), longest) grid, None when they fill it; and its width."""
        lengths = [self._lengths[i] for i in items]
        width = max(lengths)
        if min(lengths) == width:
            return None, width
        rows = [torch.arange(length) + place * width for place, length in enumerate(lengths)]
        return torch.cat(rows).to(self._device), width

    # -- one layer ---------------------------------------------------------------------------------------------------

    def _grid(self, x: torch.Tensor, cells: torch.Tensor | None, width: int) -> torch.Tensor:
        """(tokens, heads, D) -> (items, width, heads, D)."""
        if cells is None:
            return x.reshape(-1, width, *x.shape[1:])
        count = -(-int(cells[-1] + 1) // width)
        return x.new_zeros(count * width, *x.shape[1:]).index_copy_(0, cells, x).view(count, width, *x.shape[1:])

    def _within(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Partial:
        """Attention of every item over its own new tokens."""
        dims, (cells, width) = self._dims, self._own
        if cells is not None and q.device.type == "cpu" and self._starts[-1] >= APART * len(self._lengths):
            return self._one_by_one(q, k, v)
        queries, keys, values = (self._grid(x, cells, width) for x in (q, k, v))
        num = queries.shape[0]
        queries = queries.view(num, width, dims.num_kv_heads, dims.group, -1).permute(0, 2, 3, 1, 4)
        shape = (num * dims.num_kv_heads, 1, width, dims.head_dim)
        keys, values = (x.transpose(1, 2).reshape(shape).expand(-1, dims.group, -1, -1) for x in (keys, values))
        # (items * kv heads, group, T, D): the query heads of a group share their keys through a stride of 0
        out, total = partial_attention(queries.reshape(shape[0], dims.group, width, -1), keys, values, causal=True)
        out = out.reshape(num, dims.num_heads, width, -1).transpose(1, 2).flatten(0, 1)
        total = total.reshape(num, dims.num_heads, width).transpose(1, 2).flatten(0, 1)
        return (out.contiguous(), total.contiguous()) if cells is None else (out[cells], total[cells])

    def _one_by_one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Partial:
        """The same, one item after another, without padding or copying the inputs."""
        dims = self._dims
        shape = (len(q), dims.num_kv_heads, dims.group)
        out, total = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(shape, dtype=torch.float32)
        outs, queries = (x.view(*shape, -1).permute(1, 2, 0, 3) for x in (out, q))  # (kv heads, group, T, D)
        keys, values = (x.transpose(0, 1).unsqueeze(1).expand(-1, dims.group, -1, -1) for x in (k, v))
        totals = total.permute(1, 2, 0)
        for start, end in itertools.pairwise(self._starts):
            parts = (x[:, :, start:end] for x in (queries, keys, values))
            outs[:, :, start:end], totals[:, :, start:end] = partial_attention(*parts, causal=True)
        return out, total.flatten(1)

    def _join(self, out: torch.Tensor, total: torch.Tensor, run: _Run, q: torch.Tensor) -> None:
        """Add the contribution of the keys of `run` to `out` and `total`."""
        dims = self._dims
        mine = q if run.tokens is None else q[run.tokens]
        grid = mine[None] if run.width == 0 else self._grid(mine, run.cells, run.width)
        num, width = grid.shape[:2]
        queries = grid.view(num, width, dims.num_kv_heads, dims.group, -1).transpose(1, 2).flatten(2, 3)
        span = slice(run.start, run.start + run.count * run.size)
        keys, values = (
            x[span].view(run.count, run.size, dims.num_kv_heads, -1).transpose(1, 2) for x in (self._keys, self._values)
        )
        part, weight = partial_attention(queries, keys, values, mask=run.mask)  # (N, kv heads, T * group, D)
        part = (
            part.reshape(num, dims.num_kv_heads, width, dims.group, -1)
            .transpose(1, 2)
            .reshape(num * width, *q.shape[1:])
        )
        weight = weight.reshape(num, dims.num_kv_heads, width, dims.group).transpose(1, 2).reshape(num * width, -1)
        if run.cells is not None:
            part, weight = part[run.cells], weight[run.cells]
        if run.tokens is None:
            _merge(out, total, part, weight)
            return
        part_out, part_total = out[run.tokens], total[run.tokens]
        _merge(part_out, part_total, part, weight)
        out[run.tokens], total[run.tokens] = part_out, part_total


def _merge(out: torch.Tensor, total: torch.Tensor, part: torch.Tensor, weight: torch.Tensor) -> None:
    """Join two partial results in place, each weighted by its sum of exp(scores)."""
    share = torch.sigmoid(weight - total).unsqueeze(-1).to(out.dtype)
    out.lerp_(part, share)
    torch.logaddexp(total, weight, out=total)


def _alike(sizes: dict[int, int]) -> list[list[int]]:
    """Group items so that the largest of a group is at most twice its smallest (or 32), which limits the padding."""
    groups: list[list[int]] = []
    smallest = 0
    for i in sorted(sizes, key=lambda i: sizes[i]):
        if groups and sizes[i] <= max(2 * smallest, 32):
            groups[-1].append(i)
        else:
            groups.append([i])
            smallest = sizes[i]
    return [sorted(group) for group in groups]


def is_step(start: int, count: int) -> bool:
    """Whether `count` new tokens after `start` cached ones are few enough for `PagedAttention` despite `Body.fuses`."""
    return count * (start + count) <= _SHORT


class PagedAttention:
    """Attention of one batch: writes each layer's new keys and values into their pages, reads all keys in place."""

    def __init__(
        self,
        pool: PagePool,
        items: Sequence[tuple[Segment, int]],
        kernels: ModuleType,
        windows: Sequence[int | None],
    ) -> None:
        """`items`: (segment, new tokens); pages for the new tokens are reserved, `length` does not count them yet.

        `windows` as in `Body`.
        """
        self._shelf, self._kernels, dims = pool.shelf, kernels, pool.shelf.dims
        slots, counts, ends = _runs_of(items)
        at = np.concatenate([pool.slots(segment, segment.length, count) for segment, count in items])
        self._sheets, self._offsets = at // SHEET, at % SHEET
        lengths = [count for _, count in items]
        limits = np.concatenate([np.arange(segment.end + 1, segment.end + count + 1) for segment, count in items])
        self._rows = (kernels.tile_table(lengths, dims.group), np.cumsum([0, *lengths]), np.arange(len(at)), limits)
        self._runs = tuple(np.array(x, np.int64) for x in (slots, counts, ends[:-1], ends[1:]))
        self._windows = windows
        self._floors = {window: np.maximum(limits - (window or limits), 0) for window in {*windows}}
        shape = (len(at), dims.num_heads, dims.head_dim)
        self._seed, self._totals = np.empty(shape[:2], np.float32), torch.empty(shape)
        self._out = torch.empty(shape, dtype=pool.shelf.dtype)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `model.Attend`; the next layer overwrites the returned tensor."""
        kernels, at = self._kernels, self._shelf.arrays(layer)
        kernels.store(len(k), 2 * k.numel(), *map(kernels.array, (k, v)), self._sheets, self._offsets, *at)
        self._seed.fill(NO_KEYS)
        floors = self._floors[self._windows[layer]]
        work = (kernels.array(q), *at, *self._rows, floors, *self._runs, self._seed, self._totals.numpy())
        reads = int((self._rows[-1] - floors).sum())
        kernels.attend_together(len(self._rows[0]), reads * q[0].numel(), *work)
        return self._out.copy_(self._totals).flatten(1)


def _runs_of(items: Sequence[tuple[Segment, int]]) -> tuple[list[int], list[int], list[int]]:
    """Runs that each item reads, its new tokens last: first slots, token counts, and the index where an item ends."""
    slots, counts, ends = list[int](), list[int](), [0]
    before: dict[Segment | None, tuple[list[int], list[int]]] = {}
    for segment, count in items:
        if segment.parent not in before:  # siblings share the lookup of their common prefix
            before[segment.parent] = _runs_before(segment)
        own_slots, own_counts = segment.runs_of(0, segment.length + count)
        shared_slots, shared_counts = before[segment.parent]
        slots += [*shared_slots, *own_slots]
        counts += [*shared_counts, *own_counts]
        ends.append(len(slots))
    return slots, counts, ends


def _runs_before(segment: Segment) -> tuple[list[int], list[int]]:
    """The runs of everything before a segment (`Segment.runs_of`)."""
    parts = [part.runs_of(0, part.length) for part in segment.chain()[:-1]]
    return [slot for slots, _ in parts for slot in slots], [count for _, counts in parts for count in counts]
