"""One decoding step for many branches of a forest, on a CPU: every key is read once for all rows below it.

Every live branch is a row, whose context is a chain of segments of the pool. Their pages are multiplied in three sweeps
(the same sharing as DeFT, Yao et al. 2024, arXiv 2404.00242, and cascade attention, FlashInfer, Ye et al. 2025, arXiv
2501.01005): pages of one row, in place; short segments that several rows read, copied together for up to four rows
each; long ones, on a shelf of their own with longer pages, in place and for all their rows at once. One maximum per row
makes all its pages comparable; their sums are added up by row.

Cost: what lies between pages in use is multiplied, too, so pages in use are kept together (`PagePool.gather`), and the
rows of a long page are padded to the most of any. Left out: sliding windows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ttc.engines.embedded.model import Body
from ttc.engines.embedded.pool import Segment, Shelf

__all__ = ["NEVER", "PAGE_SIZES", "ForestDecoder"]

NEVER = -1e30
"""Hides a key; finite, so that a page in which nothing may be seen stays a number."""

_LEAST = -80.0
"""Of a score below its row's highest: exp of it is 1e-35, and of less it takes a CPU thirty times as long."""

PAGE_SIZES = (16, 64)
"""Tokens of a page: on the shelf of most segments, and on that of long ones that several rows read."""

_LONG = 48
"""Tokens from which on a segment that several rows read is worth pages of 64, multiplied in place."""

_SHARE = 4
"""Rows that read one copy of a page on the first shelf; where more do, it is read as often as it takes."""


class _Sweep:
    """Pages that a step multiplies together: which rows read which, and which of their keys are there.

    `gathered` pages are copied together for every product, up to `_SHARE` rows each; others are multiplied where they
    lie. Rows and heads are numbered together, row * kv heads + head: so queries are laid out by page, and what comes of
    them is added up by row, without a copy for the turn of axes.
    """

    def __init__(self, shelf: Shelf, num_rows: int, gathered: bool = False) -> None:
        self.shelf, self.num_rows, self.gathered = shelf, num_rows, gathered
        self.index = torch.empty(0, dtype=torch.long)
        self.top = 0  # pages read: 0 .. top - 1
        self.most = 1  # rows that read one page
        self._pages: list[int] = []
        self._readers: list[list[int]] = []
        self._ends: dict[int, int] = {}  # pages that are not full

    def add(self, segment: Segment, rows: list[int]) -> None:
        """Let `rows` read all pages of `segment`."""
        pages, step = segment.pages, _SHARE if self.gathered else len(rows)
        for start in range(0, len(rows), step):
            self._pages += pages
            self._readers += [rows[start : start + step]] * len(pages)
        self.most = max(self.most, min(len(rows), step))
        full, rest = divmod(segment.length, self.shelf.size)
        if rest:
            self._ends[pages[full]] = rest
            full += 1
        for page in pages[full:]:
            self._ends[page] = 0

    @property
    def empty(self) -> bool:
        """Whether nobody reads any page."""
        return not self._pages

    def prepare(self) -> None:
        """Lay the pages out; those between that nobody reads go to row `num_rows`, which is thrown away."""
        capacity, nobody, size = len(self.shelf.owners), self.num_rows, self.shelf.size
        self.top = max(self._pages) + 1
        self._rows = torch.full((capacity, self.most), nobody)
        padded = [rows + [nobody] * (self.most - len(rows)) for rows in self._readers]
        self._rows[self._pages] = torch.tensor(padded)
        self._mask = torch.zeros(capacity, size, dtype=self.shelf.dtype)
        if self._ends:
            beyond = torch.arange(size)[None] >= torch.tensor(list(self._ends.values()))[:, None]
            self._mask[list(self._ends)] = torch.zeros_like(beyond, dtype=self.shelf.dtype).masked_fill_(beyond, NEVER)
        if self.gathered:
            self.index, self.top = torch.tensor(self._pages), len(self._pages)
            self._rows, self._mask = torch.tensor(padded), self._mask[self._pages]
        self.settle()

    def pages(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the shelf's `tensor` of one layer holds for the pages: (pages * kv heads, ...)."""
        return (tensor.index_select(0, self.index) if self.gathered else tensor[: self.top]).flatten(0, 1)

    def open(self, page: int, row: int) -> None:
        """Let one row read a new page, which holds nothing yet; `settle` must follow."""
        missing = len(self.shelf.owners) - len(self._rows)
        if missing > 0:
            self._rows = F.pad(self._rows, (0, 0, 0, missing), value=self.num_rows)
            self._mask = F.pad(self._mask, (0, 0, 0, missing))
        self._rows[page, 0] = row
        self._mask[page] = NEVER
        self.top = max(self.top, page + 1)

    def settle(self) -> None:
        """Number the rows and heads of the pages as they are now."""
        heads = self.shelf.dims.num_kv_heads
        rows = self._rows[: self.top, None] * heads + torch.arange(heads)[None, :, None]
        self.sums = rows.flatten()  # (pages * kv heads * most)
        self.queries = self.sums.clamp(max=self.num_rows * heads - 1)
        self.mask = self._mask[: self.top, None]  # (pages, 1, size), shares memory with what `show` changes

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
        pool, rows, size = self.body.pool, self._segments, self.body.pool.shelves[0].size
        readers: dict[Segment, list[int]] = {}
        for row, segment in enumerate(rows):
            if segment.length == len(segment.pages) * size:
                pool.reserve(segment, 1)
            part: Segment | None = segment
            while part is not None:
                if part.pages:
                    readers.setdefault(part, []).append(row)
                part = part.parent
        for part, members in readers.items():
            if len(members) > 1 and part.length >= _LONG:
                pool.move(part, 1)
        pool.gather(
            0, [p for part, members in readers.items() if len(members) == 1 and not part.shelf for p in part.pages]
        )
        pool.gather(1, [page for part in readers if part.shelf for page in part.pages])
        alone, shared, long = sweeps = [
            _Sweep(pool.shelves[0], len(rows)),
            _Sweep(pool.shelves[0], len(rows), gathered=True),
            _Sweep(pool.shelves[1], len(rows)),
        ]
        for part, members in readers.items():
            (long if part.shelf else alone if len(members) == 1 else shared).add(part, members)
        self._sweeps = [sweep for sweep in sweeps if not sweep.empty]
        for sweep in self._sweeps:
            sweep.prepare()
        self._pages = torch.tensor([segment.pages[segment.length // size] for segment in rows])
        self._offsets = torch.tensor([segment.length % size for segment in rows])
        self._version = pool.version

    def _advance(self) -> None:
        """Move every row's place one further, into a new page where one is full."""
        pool, sweeps = self.body.pool, self._sweeps or []
        size = sweeps[0].shelf.size
        self._offsets += 1
        full = (self._offsets == size).nonzero().flatten().tolist()
        for row in full:
            segment = self._segments[row]
            pool.reserve(segment, 1)
            sweeps[0].open(segment.pages[-1], row)
            self._pages[row], self._offsets[row] = segment.pages[-1], 0
        if full:
            sweeps[0].settle()

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        dims, num, sweeps = self.body.dims, self.num_rows, self._sweeps or []
        own = sweeps[0].shelf
        own.keys[layer][self._pages, :, :, self._offsets] = k
        own.values[layer][self._pages, :, self._offsets] = v
        lines, group = num * dims.num_kv_heads, dims.group  # one line for each row and kv head, and one to throw away
        q = q.view(lines, -1)
        peaks = q.new_full((lines + dims.num_kv_heads, group), NEVER, dtype=torch.float32)
        scores = []
        for sweep in sweeps:
            shape = (sweep.top * dims.num_kv_heads, sweep.most * group, -1)
            queries = q.index_select(0, sweep.queries).view(shape)
            values = torch.bmm(queries, sweep.pages(sweep.shelf.keys[layer])).float()
            values.view(sweep.top, -1, sweep.shelf.size).add_(sweep.mask)
            highest = values.amax(-1).view(-1, group)
            peaks.scatter_reduce_(0, sweep.sums[:, None].expand_as(highest), highest, "amax")
            scores.append(values)  # (pages * kv heads, most * group, size)
        out = torch.zeros(len(peaks), q.shape[1])
        mass = torch.zeros_like(peaks)
        for sweep, values in zip(sweeps, scores, strict=True):
            shares = values.view(-1, group, sweep.shelf.size)
            shares.sub_(peaks.index_select(0, sweep.sums)[..., None]).clamp_(min=_LEAST).exp_()
            mass.index_add_(0, sweep.sums, shares.sum(-1))
            part = torch.bmm(values.to(q.dtype), sweep.pages(sweep.shelf.values[layer]))
            out.index_add_(0, sweep.sums, part.view(-1, q.shape[1]).float())
        out = out[:lines].view(lines, group, -1) / mass[:lines, :, None]
        return out.to(q.dtype).view(num, -1)
