"""One decoding step for many branches of a forest, on a CPU: every key is read once for all rows below it.

Every live branch is a row, whose context is a chain of segments of the pool. Their pages are multiplied in at most five
sweeps (the same sharing as DeFT, Yao et al. 2024, arXiv 2404.00242, and cascade attention, FlashInfer, Ye et al. 2025,
arXiv 2501.01005), each of some fifteen operations a layer: one maximum per row makes all its pages comparable, and
their sums are added up by row.

- tails: what a row samples, in pages of 16, where they lie. A product of 16 keys costs two thirds of one of 64, so a
  tail hands its keys on to pages of 64 from time to time;
- short: short segments that several rows read, copied together (twice the reading) for as many rows at once as is
  cheapest; chains of many are read as trunks instead (`trunks`);
- common: long segments that several rows read, in pages of 64, where they lie; the rows of a page are padded to the
  most of any, which multiplies more but reads nothing twice;
- own: long segments of one row, in pages of 64, where they lie;
- trunks: copies of chains of short segments, in pages of 64, of which each row sees as much as is of its own chain.

Cost: what lies between pages in use is multiplied, too, so pages in use are kept together (`PagePool.gather`). Left
out: sliding windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import Segment, Shelf
from ttc.engines.embedded.core.trunks import TrunkRows, Trunks

__all__ = ["NEVER", "PAGE_SIZES", "ForestDecoder"]

NEVER = -1e30
"""Hides a key; finite, so that a page in which nothing may be seen stays a number."""

_LEAST = -80.0
"""Of a score below its row's highest: exp of it is 1e-35, and of less it takes a CPU thirty times as long."""

_TAILS, _COMMON, _OWN = range(3)
"""Shelves: of tails and short segments, of long segments that several rows read, of long ones of one row."""

PAGE_SIZES = (16, 64, 64)
"""Tokens of a page on each shelf."""

_LONG = 32
"""Tokens from which on a segment may be worth pages of 64."""

_TAIL = 96
"""Tokens at which tails hand on what fills pages of 64; sooner where a step is planned anyway."""

_FEW = 4
"""Rows of a page up to which one may stay on the shelf of common segments when the others have left it."""

_SPARE = 32
"""Pages by which the table of a sweep grows at least."""

_COPY = 5
"""What copying a page costs, in the time it takes to multiply it for one row more."""


class _Sweep:
    """Pages that a step multiplies together: which rows read which, and which of their keys are there.

    `gathered` pages are copied together for every product; others are multiplied where they lie. Rows and heads are
    numbered together, row * kv heads + head: so queries are laid out by page, and what comes of them is added up by
    row, without a copy for the turn of axes.
    """

    def __init__(self, shelf: Shelf, num_rows: int, gathered: bool = False) -> None:
        self.shelf, self.num_rows, self.gathered = shelf, num_rows, gathered
        self.top = 0  # pages read: 0 .. top - 1
        self.most = 1  # rows that read one page
        self._parts: list[tuple[list[int], list[int]]] = []  # pages, and the rows that read all of them
        self._ends: dict[int, int] = {}  # pages that are not full

    def add(self, segment: Segment, rows: list[int]) -> None:
        """Let `rows` read all pages of `segment`."""
        self._parts.append((segment.pages, rows))
        full, rest = divmod(segment.length, self.shelf.size)
        if rest:
            self._ends[segment.pages[full]] = rest
            full += 1
        for page in segment.pages[full:]:
            self._ends[page] = 0

    @property
    def empty(self) -> bool:
        """Whether nobody reads any page."""
        return not self._parts

    def prepare(self) -> None:
        """Lay the pages out; those between that nobody reads go to row `num_rows`, which is thrown away."""
        self.most = most = self._cheapest() if self.gathered else max(len(rows) for _, rows in self._parts)
        chunks = [
            (pages, rows[start : start + most]) for pages, rows in self._parts for start in range(0, len(rows), most)
        ]
        index = [page for pages, _ in chunks for page in pages]
        last = max(index) + 1
        mask = np.zeros((last, self.shelf.size), np.float32)
        if self._ends:
            beyond = np.arange(self.shelf.size) >= np.array(list(self._ends.values()))[:, None]
            mask[list(self._ends)] = np.where(beyond, NEVER, 0.0)
        readers = np.full((len(index) if self.gathered else last, most), self.num_rows)
        place = 0
        for pages, rows in chunks:
            readers[slice(place, place + len(pages)) if self.gathered else pages, : len(rows)] = rows
            place += len(pages)
        if self.gathered:
            heads = self.shelf.dims.num_kv_heads
            self._places = torch.from_numpy((np.array(index)[:, None] * heads + np.arange(heads)).ravel())
            mask = mask[index]
        self._rows, self._mask = torch.from_numpy(readers), torch.from_numpy(mask).to(self.shelf.dtype)
        self.top = len(readers)
        self.settle()

    def _cheapest(self) -> int:
        """For how many rows at once pages are copied together; where more read one, it is copied again."""
        pages: Counter[int] = Counter()  # by the number of rows that read them
        for part, rows in self._parts:
            pages[len(rows)] += len(part)

        def cost(most: int) -> int:
            return sum(count * -(-num // most) for num, count in pages.items()) * (_COPY + most)

        return min((2, 4, 8, 16, 32), key=cost)

    def pages(self, flat: torch.Tensor) -> torch.Tensor:
        """What one layer's `flat` keys or values of the shelf hold for the pages: (pages * kv heads, ...)."""
        return flat.index_select(0, self._places) if self.gathered else flat[: self._num_products]

    @property
    def cells(self) -> int:
        """Pairs of a page and one of its rows, for every kv head."""
        return len(self.sums)

    def open(self, page: int, row: int) -> None:
        """Let one row read a new page, which holds nothing yet; `settle` must follow."""
        if page >= len(self._rows):
            missing = page + _SPARE - len(self._rows)
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
        # (pages, kv heads, rows of a page, group, size), with 1 where all are alike; `show` changes the same memory
        self.mask = self._mask[: self.top, None, None, None]
        self._num_products = self.top * heads

    def show(self, pages: torch.Tensor, offsets: torch.Tensor) -> None:
        """Let the keys at these places be seen."""
        self._mask[pages, offsets] = 0.0


class _TrunkSweep(_Sweep):
    """Pages of trunks, of which every row sees its own number of keys."""

    def __init__(self, shelf: Shelf, num_rows: int, readings: Sequence[TrunkRows]) -> None:
        super().__init__(shelf, num_rows)
        self._readings = readings

    def prepare(self) -> None:
        """Lay the pages out, where they lie or copied together: whichever is cheaper."""
        size, heads = self.shelf.size, self.shelf.dims.num_kv_heads
        cells: list[tuple[int, list[tuple[int, int]]]] = []  # a page; its rows, and the keys that each sees
        for copy, rows in self._readings:
            for number, page in enumerate(copy.pages):
                own = [(row, length - number * size) for row, length in rows if length > number * size]
                if own:
                    cells.append((page, own))
        counts = [len(rows) for _, rows in cells]
        span = max(page for page, _ in cells) + 1
        costs = {most: sum(-(-num // most) * (_COPY + most) for num in counts) for most in (2, 4, 8, 16, 32)}
        self.most = min(costs, key=costs.__getitem__)
        self.gathered = costs[self.most] < span * max(counts)
        if self.gathered:
            cells = [
                (page, rows[start : start + self.most])
                for page, rows in cells
                for start in range(0, len(rows), self.most)
            ]
            index = np.array([page for page, _ in cells])
            self._places = torch.from_numpy((index[:, None] * heads + np.arange(heads)).ravel())
        else:
            self.most = max(counts)
        self.top = len(cells) if self.gathered else span
        readers = np.full((self.top, self.most), self.num_rows)
        seen = np.zeros((self.top, self.most), np.int64)
        for place, (page, rows) in enumerate(cells):
            line = place if self.gathered else page
            readers[line, : len(rows)], seen[line, : len(rows)] = zip(*rows, strict=True)
        mask = np.where(np.arange(size) >= seen[..., None], np.float32(NEVER), np.float32(0))
        self._rows, self._mask = torch.from_numpy(readers), torch.from_numpy(mask)
        self.settle()

    def settle(self) -> None:
        """See `_Sweep.settle`; the mask differs by row."""
        super().settle()
        self.mask = self._mask[:, None, :, None]


class _Part:
    """What one sweep has of the scratch memory of a step: its cells lie together, from `start` on."""

    def __init__(self, sweep: _Sweep, whole: _Scratch, start: int, offset: int) -> None:
        dims, size = sweep.shelf.dims, sweep.shelf.size
        cells, products = slice(start, start + sweep.cells), sweep.top * dims.num_kv_heads
        shape = (products, sweep.most * dims.group, -1)
        self.sweep, self.shelf = sweep, sweep.shelf
        self.queries = whole.queries[cells].view(shape)
        self.scores = whole.scores[offset : offset + sweep.cells * dims.group * size].view(*shape[:2], size)
        self.by_page = self.scores.view(sweep.top, dims.num_kv_heads, sweep.most, dims.group, size)
        self.sums = whole.sums[cells].view(shape)


class _Block:
    """The scores of neighbouring sweeps whose pages are of one size: what each of their cells comes to, at once."""

    def __init__(self, whole: _Scratch, cells: slice, scores: slice, size: int) -> None:
        self.scores = whole.scores[scores].view(-1, whole.peaks.shape[1], size)  # (cells, group, size)
        self.peaks, self.mass = whole.peaks[cells], whole.mass[cells]
        self.peaks_of_keys = self.peaks[..., None]


class _Scratch:
    """Memory that all layers of a step use one after another. A cell is a page, a kv head and a row that reads it.

    queries and sums (cells, group * D), peaks and mass (cells, group), scores flat, since pages differ in size. A line
    is a row and a kv head, and those behind the last row are thrown away: tops and masses (lines, group), totals
    (lines, group * D); `out` is what a layer gives, which the next one overwrites.
    """

    def __init__(self, sweeps: Sequence[_Sweep], num_rows: int, dtype: torch.dtype) -> None:
        dims = sweeps[0].shelf.dims
        self.lines = torch.cat([sweep.sums for sweep in sweeps])  # row * kv heads + head of every cell
        num_lines = num_rows * dims.num_kv_heads
        self.sources = self.lines.clamp(max=num_lines - 1)
        self.targets = self.lines[:, None].expand(-1, dims.group)
        width = dims.group * dims.head_dim
        self.queries = torch.empty(len(self.lines), width, dtype=dtype)
        self.sums = torch.empty(len(self.lines), width)
        self.peaks, self.mass = torch.empty(2, len(self.lines), dims.group)
        self.tops, self.masses = torch.empty(2, num_lines + dims.num_kv_heads, dims.group)
        self.totals = torch.empty(len(self.tops), width)
        self.out = self.totals[:num_lines].view(num_lines, dims.group, -1)
        self.whole = self.masses[:num_lines, :, None]
        counts = [sweep.cells * dims.group * sweep.shelf.size for sweep in sweeps]
        self.scores = torch.empty(sum(counts))
        self.parts: list[_Part] = []
        ends: dict[int, tuple[int, int]] = {}  # by the size of pages, which never falls: where its cells and scores end
        start = offset = 0
        for sweep, count in zip(sweeps, counts, strict=True):
            self.parts.append(_Part(sweep, self, start, offset))
            start, offset = start + sweep.cells, offset + count
            ends[sweep.shelf.size] = start, offset
        self.blocks: list[_Block] = []
        start = offset = 0
        for size, (cells, scores) in ends.items():
            self.blocks.append(_Block(self, slice(start, cells), slice(offset, scores), size))
            start, offset = cells, scores


class ForestDecoder:
    """The `Decoder` for CPUs."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.num_rows = 0
        self._segments: list[Segment] = []
        self._above: list[Segment | None] = []  # of every row, what its segment has handed on to
        self._sweeps: list[_Sweep] | None = None
        self._version = -1
        self._pages = self._offsets = torch.empty(0, dtype=torch.long)  # where every row writes its next token
        self._longest = 0  # length of the longest tail
        self._scratch: _Scratch | None = None
        self._trunks = Trunks(body.pool, PAGE_SIZES[_COMMON])

    @property
    def num_copied(self) -> int:
        """Tokens that copies of chains could hold, beside the pool."""
        return self._trunks.num_tokens

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`."""
        self._segments.append(segment)
        self._above.append(None)
        self.num_rows += 1
        self._sweeps = None
        return self.num_rows - 1

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        self._segments[row], self._above[row] = self._segments[-1], self._above[-1]
        self._segments.pop()
        self._above.pop()
        self.num_rows -= 1
        self._sweeps = None

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`."""
        pool = self.body.pool
        stale = self._version != pool.version or self.num_copied > pool.spare
        if self._sweeps is None or stale or self._longest >= _TAIL:
            self._plan()
        else:
            self._advance()
        if self._scratch is None:
            self._scratch = _Scratch(self._sweeps or [], self.num_rows, self.body.dtype)
        self._scratch.parts[0].sweep.show(self._pages, self._offsets)
        positions = torch.tensor([segment.end for segment in self._segments])
        hidden = self.body.forward(torch.as_tensor(tokens), positions, self._attend)
        for segment in self._segments:
            segment.length += 1
        self._longest += 1
        return hidden

    def _plan(self) -> None:
        """Find out which rows read which segments, and bring their pages where a step reads them."""
        pool, rows, size = self.body.pool, self._segments, PAGE_SIZES[_TAILS]
        for row, segment in enumerate(rows):
            if segment.length >= PAGE_SIZES[_OWN]:
                self._hand_up(row)
            if segment.length == len(segment.pages) * size:
                pool.reserve(segment, 1)
        readers = self._readers()
        tails = set(rows)
        short = [part for part, own in readers.items() if part not in tails and not _is_long(part, len(own))]
        readings, copied = self._trunks.lay(readers, short, pool.spare)
        readers = {part: own for part, own in readers.items() if part not in copied}
        self._place(readers)
        kinds: dict[tuple[int, bool], list[tuple[Segment, list[int]]]] = {}
        for part, members in readers.items():
            several = part.shelf == _COMMON or (part.shelf == _TAILS and len(members) > 1)
            kinds.setdefault((part.shelf, several), []).append((part, members))
        self._sweeps = []
        for (shelf, several), parts in sorted(kinds.items(), key=lambda pair: pair[0]):
            gathered = shelf == _TAILS and several
            if not gathered:
                pool.gather(shelf, [page for part, _ in parts for page in part.pages])
            sweep = _Sweep(pool.shelves[shelf], len(rows), gathered)
            for part, members in parts:
                sweep.add(part, members)
            self._sweeps.append(sweep)
        if readings:
            self._sweeps.append(_TrunkSweep(self._trunks.copies.shelves[0], len(rows), readings))
        for sweep in self._sweeps:
            sweep.prepare()
        self._scratch = None
        self._pages = torch.tensor([segment.pages[segment.length // size] for segment in rows])
        self._offsets = torch.tensor([segment.length % size for segment in rows])
        self._longest = max(segment.length for segment in rows)
        self._version = pool.version

    def _hand_up(self, row: int) -> None:
        """Move the tokens of a tail that fill long pages to a segment of their own, which comes before it."""
        pool, segment, above = self.body.pool, self._segments[row], self._above[row]
        if above is None or above.num_children > 1 or segment.parent is not above:
            above = self._above[row] = pool.segment(segment.parent)
            above.shelf = _OWN
            segment.adopt(above)
        pool.hand_up(segment, segment.length // PAGE_SIZES[_OWN] * PAGE_SIZES[_OWN])

    def _readers(self) -> dict[Segment, list[int]]:
        """The rows that read each segment."""
        readers: dict[Segment, list[int]] = {}
        for row, segment in enumerate(self._segments):
            part: Segment | None = segment
            while part is not None:
                if part.pages:
                    readers.setdefault(part, []).append(row)
                part = part.parent
        return readers

    def _place(self, readers: dict[Segment, list[int]]) -> None:
        """Put long segments on the shelf that fits the number of their readers; a move costs a few steps' reading."""
        tails = set(self._segments)
        long = {part: len(rows) for part, rows in readers.items() if part not in tails and _is_long(part, len(rows))}
        most = max(long.values(), default=1)
        for part, count in long.items():
            if count > 1 or (part.shelf == _COMMON and most <= _FEW):
                self.body.pool.move(part, _COMMON)
            else:
                self.body.pool.move(part, _OWN)

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
            self._scratch = None

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scratch = self._scratch
        if scratch is None:
            raise RuntimeError("a step is planned before it is computed")
        parts, blocks = scratch.parts, scratch.blocks
        tails = parts[0].shelf.views(layer)
        tails.keys[self._pages, :, :, self._offsets] = k
        tails.values[self._pages, :, self._offsets] = v
        # Queries by line: one for each row and kv head.
        torch.index_select(q.view(len(scratch.out), -1), 0, scratch.sources, out=scratch.queries)
        for part in parts:
            _multiply(part.queries, part.sweep.pages(part.shelf.views(layer).flat_keys), part.scores)
            part.by_page.add_(part.sweep.mask)
        for block in blocks:
            torch.amax(block.scores, -1, out=block.peaks)
        scratch.tops.fill_(NEVER).scatter_reduce_(0, scratch.targets, scratch.peaks, "amax")
        torch.index_select(scratch.tops, 0, scratch.lines, out=scratch.peaks)
        for block in blocks:
            block.scores.sub_(block.peaks_of_keys)
        scratch.scores.clamp_(min=_LEAST).exp_()
        for block in blocks:
            torch.sum(block.scores, -1, out=block.mass)
        for part in parts:
            _multiply(part.scores.to(q.dtype), part.sweep.pages(part.shelf.views(layer).flat_values), part.sums)
        scratch.masses.zero_().index_add_(0, scratch.lines, scratch.mass)
        scratch.totals.zero_().index_add_(0, scratch.lines, scratch.sums)
        return scratch.out.div_(scratch.whole).to(q.dtype).view(self.num_rows, -1)


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """The batched product, in fp32 memory whatever the dtype of its factors."""
    if left.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    else:
        out.copy_(torch.bmm(left, right))


def _is_long(segment: Segment, readers: int) -> bool:
    """Whether a segment is worth pages of 64: long, and what they round up is little beside it, or shared by many."""
    rest = -segment.length % PAGE_SIZES[_COMMON]
    return segment.shelf != _TAILS or (segment.length >= _LONG and rest <= segment.length // 3 + 4 * (readers - 1))
