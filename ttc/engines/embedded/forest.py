"""One decoding step for many branches of a forest, on a CPU: every key is read once for all rows below it.

Every live branch is a row, whose context is a chain of segments of the pool. All pages of a shelf are multiplied at
once, in place, each with the queries of the rows that read it (the same sharing as DeFT, Yao et al. 2024, arXiv
2404.00242, and cascade attention, FlashInfer, Ye et al. 2025, arXiv 2501.01005). One maximum per row makes all its
pages comparable; their sums are added up by row. The shelves differ in how many rows read a page, so that a page of one
row is not padded to many queries, and in their pages: where many rows read a page, long ones make better products.

Cost: what lies between pages in use is multiplied, too, so pages in use are kept together (`Pool.gather`), and the rows
of a page are padded to the most of its shelf. Left out: sliding windows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.engines.embedded.model import Body
from ttc.engines.embedded.pool import Segment, Shelf

__all__ = ["NEVER", "PAGE_SIZES", "ForestDecoder"]

NEVER = -1e30
"""Hides a key; finite, so that a page in which nothing may be seen stays a number."""

_LEAST = -80.0
"""Of a score below its row's highest: exp of it is 1e-35, and of less it takes a CPU thirty times as long."""

PAGE_SIZES = (16, 16, 64, 64)
"""Tokens of a page on the shelves of a decoder's pool."""

_SHORT = 48
"""Tokens from which on a segment that several rows read is worth pages of 64."""


def _shelf(readers: int, length: int, shelf: int) -> int:
    """The shelf for a segment that lies on `shelf` now: by how many rows read it and how long it is.

    0: one row. 1: up to 8 rows, and few tokens. 2: up to 32. 3: more. It stays where it is while that costs little.
    """
    if readers == 1:
        return 0
    best = 1 if readers <= 8 and length < _SHORT else 2 if readers <= 32 else 3
    return best if best > shelf or (shelf == 3 and readers <= 16) else shelf


class _Sweep:
    """What a step reads of one shelf: which rows read which page, and which of its keys are there."""

    def __init__(self, index: int, shelf: Shelf, num_rows: int) -> None:
        self.index, self.shelf, self.num_rows = index, shelf, num_rows
        self.top = 0  # pages read: 0 .. top - 1
        self.most = 1  # rows that read one page
        self._readers: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def add(self, segment: Segment, rows: list[int]) -> None:
        """Let `rows` read all pages of `segment`."""
        size = self.shelf.size
        for i, page in enumerate(segment.pages):
            self._readers[page] = rows
            self._lengths[page] = min(segment.length - i * size, size)
        self.most = max(self.most, len(rows))

    @property
    def pages(self) -> dict[int, list[int]]:
        """The rows of every page in use."""
        return self._readers

    def prepare(self) -> None:
        """Lay the pages out; those between that nobody reads go to row `num_rows`, which is thrown away."""
        capacity, nobody = len(self.shelf.owners), self.num_rows
        self.top = max(self._readers, default=-1) + 1
        rows = torch.full((capacity, self.most), nobody)
        lengths = torch.full((capacity,), self.shelf.size)
        pages = list(self._readers)
        rows[pages] = torch.tensor([r + [nobody] * (self.most - len(r)) for r in self._readers.values()])
        lengths[pages] = torch.tensor([self._lengths[page] for page in pages])
        beyond = torch.arange(self.shelf.size)[None] >= lengths[:, None]
        self._mask = torch.zeros(beyond.shape, dtype=self.shelf.dtype).masked_fill_(beyond, NEVER)
        self._rows = rows
        self._cut()

    def open(self, page: int, row: int) -> None:
        """Let one row read a new page, which holds nothing yet."""
        if page >= len(self._rows):
            capacity = len(self.shelf.owners)
            rows = torch.full((capacity, self.most), self.num_rows)
            mask = torch.zeros(capacity, self.shelf.size, dtype=self.shelf.dtype)
            rows[: len(self._rows)], mask[: len(self._rows)] = self._rows, self._mask
            self._rows, self._mask = rows, mask
        self._rows[page, 0] = row
        self._mask[page] = NEVER
        if page >= self.top:
            self.top = page + 1
        self._cut()

    def _cut(self) -> None:
        self.rows = self._rows[: self.top].flatten()  # (pages * most)
        self.queries = self.rows.clamp(max=self.num_rows - 1)
        self.mask = self._mask[: self.top, None, None]  # (pages, 1, 1, size), shares memory with what `show` changes

    def show(self, pages: torch.Tensor, offsets: torch.Tensor) -> None:
        """Let the keys at these places be seen."""
        self._mask[pages, offsets] = 0.0


class ForestDecoder:
    """The `Decoder` for CPUs."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.num_rows = 0
        self._segments: list[Segment] = []
        self._sweeps: list[_Sweep] | None = None
        self._version = -1
        self._pages = self._offsets = torch.empty(0, dtype=torch.long)  # where every row writes its next token

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`."""
        self._segments.append(segment)
        self.num_rows += 1
        self._sweeps = None
        return self.num_rows - 1

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        self._segments[row] = self._segments[-1]
        self._segments.pop()
        self.num_rows -= 1
        self._sweeps = None

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`."""
        if self._sweeps is None or self._version != self.body.pool.version:
            self._plan()
        else:
            self._advance()
        sweeps = self._sweeps or []
        sweeps[0].show(self._pages, self._offsets)
        positions = torch.tensor([segment.end for segment in self._segments])
        hidden = self.body.forward(torch.as_tensor(tokens), positions, self._attend)
        for segment in self._segments:
            segment.length += 1
        return hidden

    def _plan(self) -> None:
        """Find out which rows read which segments, and bring their pages where a step reads them."""
        pool, rows = self.body.pool, self._segments
        readers: dict[Segment, list[int]] = {}
        for row, segment in enumerate(rows):
            pool.reserve(segment, 1)
            part: Segment | None = segment
            while part is not None:
                if part.pages:
                    readers.setdefault(part, []).append(row)
                part = part.parent
        for part, members in readers.items():
            pool.move(part, _shelf(len(members), part.length, part.shelf))
        sweeps = [_Sweep(i, shelf, len(rows)) for i, shelf in enumerate(pool.shelves)]
        for index in range(len(sweeps)):
            pool.gather(index, [page for part in readers if part.shelf == index for page in part.pages])
        for part, members in readers.items():
            sweeps[part.shelf].add(part, members)
        for sweep in sweeps:
            if sweep.pages:
                sweep.prepare()
        self._sweeps = [sweep for sweep in sweeps if sweep.pages]
        size = pool.shelves[0].size
        self._pages = torch.tensor([segment.pages[segment.length // size] for segment in rows])
        self._offsets = torch.tensor([segment.length % size for segment in rows])
        self._version = pool.version

    def _advance(self) -> None:
        """Move every row's place one further, into a new page where one is full."""
        pool, sweeps = self.body.pool, self._sweeps or []
        size = sweeps[0].shelf.size
        self._offsets += 1
        for row in (self._offsets == size).nonzero().flatten().tolist():
            segment = self._segments[row]
            pool.reserve(segment, 1)
            sweeps[0].open(segment.pages[-1], row)
            self._pages[row], self._offsets[row] = segment.pages[-1], 0

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        dims, num, sweeps = self.body.dims, self.num_rows, self._sweeps or []
        own = sweeps[0].shelf
        own.keys[layer][self._pages, :, :, self._offsets] = k
        own.values[layer][self._pages, :, self._offsets] = v
        q = q.view(num, dims.num_kv_heads, dims.group, -1)
        scores = [_scores(sweep, layer, q) for sweep in sweeps]  # (pages, kv heads, most * group, size) each
        peaks = q.new_full((num + 1, dims.num_kv_heads, dims.group), NEVER, dtype=torch.float32)
        for sweep, values in zip(sweeps, scores, strict=True):
            highest = _by_row(values.amax(-1, keepdim=True), sweep)[..., 0]
            peaks.scatter_reduce_(0, sweep.rows[:, None, None].expand_as(highest), highest, "amax")
        out = q.new_zeros(num + 1, *q.shape[1:], dtype=torch.float32)
        mass = torch.zeros_like(peaks)
        for sweep, values in zip(sweeps, scores, strict=True):
            weights = (
                values.sub_(_by_page(peaks.index_select(0, sweep.rows)[..., None], sweep)).clamp_(min=_LEAST).exp_()
            )
            mass.index_add_(0, sweep.rows, _by_row(weights.sum(-1, keepdim=True), sweep)[..., 0])
            pages = sweep.shelf.values[layer, : sweep.top].flatten(0, 1)
            part = torch.bmm(weights.to(q.dtype).flatten(0, 1), pages).view(*weights.shape[:3], -1)
            out.index_add_(0, sweep.rows, _by_row(part, sweep).float())
        return (out[:num] / mass[:num, ..., None]).to(q.dtype).view(num, -1)


def _scores(sweep: _Sweep, layer: int, q: torch.Tensor) -> torch.Tensor:
    """Scores of all pages of a shelf for the rows that read them: fp32 (pages, kv heads, most * group, size)."""
    queries = _by_page(q.index_select(0, sweep.queries), sweep)
    pages = sweep.shelf.keys[layer, : sweep.top].flatten(0, 1)
    scores = torch.bmm(queries.flatten(0, 1), pages).view(*queries.shape[:3], -1)
    return scores.float().add_(sweep.mask)


def _by_page(x: torch.Tensor, sweep: _Sweep) -> torch.Tensor:
    """(pages * most, kv heads, group, N) -> (pages, kv heads, most * group, N)."""
    if sweep.most == 1:
        return x
    shape = (sweep.top, sweep.most, *x.shape[1:])
    return x.view(shape).transpose(1, 2).flatten(2, 3)


def _by_row(x: torch.Tensor, sweep: _Sweep) -> torch.Tensor:
    """(pages, kv heads, most * group, N) -> (pages * most, kv heads, group, N)."""
    if sweep.most == 1:
        return x
    top, heads, _, num = x.shape
    return x.view(top, heads, sweep.most, -1, num).transpose(1, 2).flatten(0, 1)
