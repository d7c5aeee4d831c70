"""Keys and values in pages of one pool, owned by the segments of a forest of prefixes.

A `Segment` is a run of tokens after another segment: all branches of a prompt refer to the same segments, so a fork is
a reference and copies nothing. Its keys and values are stored in as many pages of the pool as its tokens need, and the
pages return to the pool as soon as the last reference is dropped (after vLLM's paged cache, Kwon et al. 2023, arXiv
2309.06180, with the radix tree of Zheng et al. 2023, arXiv 2312.07104, in `cache`).

A `Shelf` stores pages side by side in sheets of 16 positions. Within a sheet, keys have the positions last and values
the head dimension last, so that a product over a sheet reads contiguous memory. A page is a whole sheet, except where
segments are so short that half a page for each would waste memory (`STEP_PAGE`). A shelf grows by doubling, and unused
pages only occupy address space; memory of freed pages returns to the system when it exceeds an eighth of what may be in
use (`PagePool.return_memory`). Where copies are cheap, a segment repeats the content of the page before it in its first
page, if that is short, so that a chain of short segments is read in fewer pages. Cost: on average half a page per
segment. Left out: pages shared by two segments.
"""

from __future__ import annotations

import contextlib
import heapq
import mmap
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
import torch

from ttc.engines.shared.shape import Dims

Slots: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

SHEET = 16
"""Positions stored side by side, as many as kernels load into a register."""
PAGE = SHEET
"""Default page size in tokens."""
STEP_PAGE = 4
"""Page size in tokens where a segment is a step of a few tokens."""
_REPEATED = SHEET // 2
"""Most tokens that a segment repeats: beyond this the memory costs more than the faster reading gains."""

_HUGE = 1 << 22
"""Bytes from which the system's huge pages pay off, as in numpy."""


class Segment:
    """Keys and values of the tokens at absolute positions [start, end), after `parent`.

    The content of a chain at a position never changes; its division into segments may, since the prefix tree splits
    them in place. Only the last segment of a chain grows.
    """

    __slots__ = (
        *("__weakref__", "length", "num_children", "pages", "parent"),
        *("pool", "repeats", "start", "state", "table"),
    )

    def __init__(self, pool: PagePool, parent: Segment | None) -> None:
        self.pool, self.parent = pool, parent
        self.start: int = parent.end if parent is not None else 0
        self.length = 0
        self.pages: list[int] = []
        self.repeats = 0
        """Tokens before `start` that its first page repeats, so that readers can skip the page before."""
        self.num_children = 0
        self.table: object = None
        """Cached by a decoder for its next plan."""
        self.state: Any = parent.state if parent is not None else None
        """What a recurrent model knows after the last token of the chain; None where it was not kept (`keep`)."""
        if parent is not None:
            parent.num_children += 1

    def __del__(self) -> None:
        """Return the pages; may run in any thread."""
        if self.parent is not None:
            self.parent.num_children -= 1
        if self.pages:
            self.pool.returned.append(self.pages)

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.length

    def chain(self) -> list[Segment]:
        """The segments from the root to this one."""
        segments: list[Segment] = []
        segment: Segment | None = self
        while segment is not None:
            segments.append(segment)
            segment = segment.parent
        return segments[::-1]

    def upto(self, end: int) -> Segment | None:
        """The first `end` tokens of this chain: whole segments are shared, the cut one is copied up to it."""
        segment: Segment | None = self
        while segment is not None and segment.start >= end:
            segment = segment.parent
        if segment is None or segment.end <= end:
            return segment
        return self.pool.copy(segment, segment.start, end, segment.parent)

    def after(self, parent: Segment | None) -> Segment:
        """The tokens of this chain after `parent`, which covers its beginning, as one segment after `parent`."""
        start = parent.end if parent is not None else 0
        if self.start == start:
            self.adopt(parent)
            return self
        return self.pool.copy(self, start, self.end, parent)

    def runs_of(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """The runs that hold its own tokens [first, last), none across a sheet boundary: first slots, and lengths.

        Repeated tokens have negative indices, from -`repeats` on.
        """
        size = self.pool.shelf.size
        first, last = first + self.repeats, last + self.repeats
        slots, counts = list[int](), list[int]()
        for page in self.pages[first // size : -(-last // size)]:
            slot = page * size
            if slot % SHEET and slots and slot == slots[-1] + counts[-1]:
                counts[-1] += size
            else:
                slots.append(slot)
                counts.append(size)
        if slots:
            counts[-1] -= -last % size
            slots[0] += first % size
            counts[0] -= first % size
        return slots, counts

    def adopt(self, parent: Segment | None) -> None:
        """Replace the parent by one with the same content; the memory of the old one may be freed."""
        if parent is self.parent:
            return
        self.pool.version += 1
        if self.parent is not None:
            self.parent.num_children -= 1
        if parent is not None:
            parent.num_children += 1
        self.parent = parent

    def split(self, at: int) -> Segment:
        """Move the tokens before position `at` to a new segment, which becomes this one's parent."""
        head = self.pool.cut(self, at)
        head.state = None
        self.adopt(head)
        self.start, self.length = at, self.end - at
        self.pool.version += 1
        return head


class PageSpace(NamedTuple):
    """Keys or values of all layers, (layers, sheets, ...), initially zero.

    On a CPU this is address space: memory is allocated on the first write and freed by `forget`.
    """

    tensor: torch.Tensor
    memory: mmap.mmap | None

    @classmethod
    def new(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> PageSpace:
        """Zeros of this shape."""
        if device.type != "cpu" or not hasattr(mmap, "MADV_DONTNEED"):
            return cls(torch.zeros(shape, dtype=dtype, device=device), None)
        size = int(np.prod(shape)) * dtype.itemsize
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # the kernel has no huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(torch.frombuffer(memory, dtype=dtype).view(shape), memory)

    def forget(self, layer: int, start: int, end: int) -> None:
        """Free the memory of sheets [start, end) of a layer, except system pages shared with other sheets."""
        if self.memory is None:
            return
        size = self.tensor.itemsize
        first, last = (self.tensor.stride(0) * layer + self.tensor.stride(1) * sheet for sheet in (start, end))
        first, last = -(-first * size // mmap.PAGESIZE) * mmap.PAGESIZE, last * size // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self.memory.madvise(mmap.MADV_DONTNEED, first, last - first)


class Shelf:
    """Sheets of pages: keys (layers, sheets, kv heads, D, SHEET) and values (layers, sheets, kv heads, SHEET, D).

    A slot numbers a token's position: `slot % SHEET` of sheet `slot // SHEET`, or `slot % size` of page `slot // size`.
    """

    def __init__(self, dims: Dims, dtype: torch.dtype, device: torch.device, size: int) -> None:
        """`size` is the page size, a divisor of SHEET."""
        self.dims, self.dtype, self.device, self.size = dims, dtype, device, size
        self.keys, self.values = self._allocate(8)
        self._all: tuple[Any, Any] | None = None
        self._arrays: list[tuple[Any, Any]] = []
        self.num_pages = 8 * SHEET // size
        self.num_used = 0  # pages that belong to a segment
        self.written: set[int] = set()  # sheets that occupy memory: used now or before
        self.free = list(range(self.num_pages))  # a heap: taking the lowest page first keeps used pages together

    def _allocate(self, sheets: int) -> tuple[torch.Tensor, torch.Tensor]:
        dims = self.dims
        lead = (dims.num_layers, sheets, dims.num_kv_heads)
        shapes = (*lead, dims.head_dim, SHEET), (*lead, SHEET, dims.head_dim)
        # zeros, since a step also reads slots that no token has written
        self._spaces = [PageSpace.new(shape, self.dtype, self.device) for shape in shapes]
        return self._spaces[0].tensor, self._spaces[1].tensor

    def all_arrays(self) -> tuple[Any, Any]:
        """Keys and values of all layers as arrays for compiled kernels (`native`); valid until the shelf grows."""
        if self._all is None:
            kind = torch.uint16 if self.dtype == torch.bfloat16 else self.dtype
            self._all = self.keys.view(kind).numpy(), self.values.view(kind).numpy()
        return self._all

    def arrays(self, layer: int) -> tuple[Any, Any]:
        """Keys and values of one layer as arrays for compiled kernels; valid until the shelf grows."""
        if not self._arrays:
            self._arrays = list(zip(*self.all_arrays(), strict=True))
        return self._arrays[layer]

    def take(self) -> int:
        """Take the lowest free page."""
        if not self.free:
            self._grow()
        self.num_used += 1
        page = heapq.heappop(self.free)
        self.written.add(page * self.size // SHEET)
        return page

    def _grow(self) -> None:
        have, old, sheets = self.num_pages, self._spaces, self.keys.shape[1]
        self.keys, self.values = self._allocate(2 * sheets)
        self._all, self._arrays = None, []
        for source, target in zip(old, self._spaces, strict=True):
            for layer in range(self.dims.num_layers):  # layer by layer, so that at most one layer exists twice
                target.tensor[layer, :sheets] = source.tensor[layer]
                source.forget(layer, 0, sheets)
        self.num_pages = 2 * have
        self.free += range(have, 2 * have)  # sorted and above all others, so the list is still a heap

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages."""
        self.num_used -= len(pages)
        for page in pages:
            heapq.heappush(self.free, page)

    def return_memory(self) -> None:
        """Return the memory of sheets without a used page to the system."""
        free = Counter(page * self.size // SHEET for page in self.free)
        idle = {sheet for sheet in self.written if free[sheet] * self.size == SHEET}
        starts = sorted(sheet for sheet in idle if sheet - 1 not in idle)
        ends = sorted(sheet + 1 for sheet in idle if sheet + 1 not in idle)
        for start, end in zip(starts, ends, strict=True):
            for space in self._spaces:
                for layer in range(self.dims.num_layers):
                    space.forget(layer, start, end)
        self.written.difference_update(idle)


class PagePool:
    """All keys and values of one model, in pages that it assigns to segments."""

    def __init__(
        self,
        dims: Dims,
        dtype: torch.dtype,
        device: torch.device,
        page_size: int = PAGE,
        kernels: ModuleType | None = None,
        state_tokens: int = 0,
    ) -> None:
        """`kernels` is the result of `compute.native` where the model uses it; then it also copies.

        `state_tokens` is what a state of a recurrent model occupies, in tokens; 0 for other models.
        """
        self.shelf = Shelf(dims, dtype, device, page_size)
        self.state_tokens = state_tokens
        self._states: WeakSet[Any] = WeakSet()
        self._kernels = kernels
        self.returned: deque[list[int]] = deque()
        self.version = 0
        """Incremented whenever pages of a segment in use may have moved."""

    @property
    def copies_fast(self) -> bool:
        """Whether `carry` is a compiled kernel."""
        return self._kernels is not None

    @property
    def _repeats(self) -> bool:
        """Whether segments repeat tokens: only where copies are cheap, and not with small pages, which save memory."""
        return self._kernels is not None and self.shelf.size == SHEET

    @property
    def stateful(self) -> bool:
        """Whether a chain can be continued only where a state was kept."""
        return self.state_tokens > 0

    @property
    def slack(self) -> int:
        """Tokens that the pages of a new segment may hold beyond its own, and its state."""
        return (1 + self._repeats) * self.shelf.size + self.state_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that all used pages and states could hold."""
        self._collect()
        return self.shelf.num_used * self.shelf.size + len(self._states) * self.state_tokens

    def keep(self, segment: Segment, state: Any) -> None:
        """Set the state after the last token of `segment`; segments that continue it refer to it, too."""
        segment.state = state
        if state is not None:
            self._states.add(state)

    def return_memory(self, most: int) -> None:
        """Free memory of unused pages where up to `most` tokens may be in use: an eighth more may stay."""
        self._collect()
        if len(self.shelf.written) * SHEET > most + most // 8:
            self.shelf.return_memory()

    def segment(self, parent: Segment | None = None) -> Segment:
        """A new segment without tokens."""
        return Segment(self, parent)

    def check_free(self, lengths: Iterable[int]) -> None:
        """Raise MemoryError if new segments of these lengths do not fit; this pool grows instead."""

    def reserve(self, segment: Segment, count: int) -> None:
        """Assign pages to `segment` for `count` more tokens."""
        self._collect()
        before = self._last_page(segment.parent) if self._repeats and not segment.pages else None
        segment.repeats += len(before or ())
        missing = -(-(segment.repeats + segment.length + count) // self.shelf.size) - len(segment.pages)
        for _ in range(missing):  # one by one, so that on MemoryError the segment keeps the pages already taken
            segment.pages.append(self.shelf.take())
        if before is not None:
            self._move(np.array(before), segment.pages[0] * self.shelf.size + np.arange(len(before)))

    def _last_page(self, segment: Segment | None) -> range | None:
        """The used slots of a chain's last page, where they are few enough to be repeated; else None."""
        while segment is not None and not segment.length:
            segment = segment.parent
        if segment is None:
            return None
        pages, used = divmod(segment.repeats + segment.length, self.shelf.size)
        if not 0 < used <= _REPEATED:
            return None
        start = segment.pages[pages] * self.shelf.size
        return range(start, start + used)

    def cut(self, segment: Segment, at: int) -> Segment:
        """Move the pages before position `at` to a new segment with the same parent; the rest keeps its own pages.

        The page that is cut stays with the rest, and the part before `at` is copied from it; without repeats it stays
        with the first part, and all that follows is copied.
        """
        head, size = self.segment(segment.parent), self.shelf.size
        head.length, head.repeats = at - segment.start, segment.repeats
        whole, used = divmod(head.repeats + head.length, size)
        if used and not self._repeats:
            tail = self.copy(segment, at, segment.end, None)
            kept, rest = segment.pages[: whole + 1], segment.pages[whole + 1 :]
            head.pages, segment.pages, tail.pages = kept, tail.pages, rest  # these are freed with `tail`
            return head
        head.pages, segment.pages, segment.repeats = segment.pages[:whole], segment.pages[whole:], used
        if used:
            self._collect()
            head.pages.append(self.shelf.take())
            places = np.arange(used)
            self._move(segment.pages[0] * size + places, head.pages[-1] * size + places)
        return head

    def places(self, segment: Segment, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sheet and offset (count each) of tokens of `segment`, from its own index `start` on."""
        slots = torch.from_numpy(self.slots(segment, start, count)).to(self.shelf.device)
        return slots // SHEET, slots % SHEET

    def slots(self, segment: Segment, start: int, count: int) -> Slots:
        """Slots (count) of tokens of `segment`, from its own index `start` on."""
        size, start = self.shelf.size, start + segment.repeats
        first = start // size
        pages = np.array(segment.pages[first : -(-(start + count) // size)], np.int64)
        return (pages[:, None] * size + np.arange(size)).ravel()[start - first * size :][:count]

    def append(self, segment: Segment, kv: torch.Tensor) -> None:
        """Append tokens to `segment`: kv (layers, 2, kv heads, count, D)."""
        count = kv.shape[3]
        if not count:
            return
        self.reserve(segment, count)
        shelf, (sheets, offsets) = self.shelf, self.places(segment, segment.length, count)
        shelf.keys[:, sheets, :, :, offsets] = kv[:, 0].permute(2, 0, 1, 3)
        shelf.values[:, sheets, :, offsets] = kv[:, 1].permute(2, 0, 1, 3)
        segment.length += count

    def read(self, segment: Segment, start: int, end: int) -> torch.Tensor:
        """Keys and values of positions [start, end), all within `segment`: (layers, 2, kv heads, count, D)."""
        shelf, dims = self.shelf, self.shelf.dims
        shape = (dims.num_layers, 2, dims.num_kv_heads, end - start, dims.head_dim)
        out, at = torch.empty(shape, dtype=shelf.dtype, device=shelf.device), 0
        for slot, count in zip(*segment.runs_of(start - segment.start, end - segment.start), strict=True):
            sheet, offset = divmod(slot, SHEET)
            out[:, 0, :, at : at + count] = shelf.keys[:, sheet, ..., offset : offset + count].transpose(2, 3)
            out[:, 1, :, at : at + count] = shelf.values[:, sheet, :, offset : offset + count]
            at += count
        return out

    def read_chain(self, segment: Segment, start: int, end: int) -> torch.Tensor:
        """Keys and values of positions [start, end) of a chain: (layers, 2, kv heads, end - start, D)."""
        parts = [self.read(part, first, last) for part, first, last in _spans(segment, start, end)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 3)

    def carry(self, segment: Segment, start: int, end: int, target: Segment) -> None:
        """Append positions [start, end) of the chain of `segment` to `target`."""
        if end <= start:
            return
        if self._kernels is None:
            self.append(target, self.read_chain(segment, start, end))
            return
        self.reserve(target, end - start)
        spans = _spans(segment, start, end)
        sources = np.concatenate([self.slots(part, first - part.start, last - first) for part, first, last in spans])
        self._move(sources, self.slots(target, target.length, end - start))
        target.length += end - start

    def _move(self, sources: Slots, targets: Slots) -> None:
        if self._kernels is None:
            raise RuntimeError("only compiled kernels copy from slot to slot")
        self._kernels.move(*self.shelf.all_arrays(), sources, targets)

    def copy(self, segment: Segment, start: int, end: int, parent: Segment | None) -> Segment:
        """Copy positions [start, end) of a chain to one new segment after `parent`."""
        copy = self.segment(parent)
        copy.start = start
        self.carry(segment, start, end, copy)
        copy.state = segment.state if end == segment.end else None
        return copy

    def _collect(self) -> None:
        while self.returned:
            self.shelf.give_back(self.returned.popleft())


def _spans(segment: Segment, start: int, end: int) -> list[tuple[Segment, int, int]]:
    """The segments of a chain that contain positions [start, end), with the part of each."""
    spans: list[tuple[Segment, int, int]] = []
    part: Segment | None = segment
    while part is not None and part.end > start:
        if part.start < end:
            spans.append((part, max(start, part.start), min(end, part.end)))
        part = part.parent
    return spans[::-1]
