"""The pool of pages on a GPU: allocated once; in a page token by token, as the kernels read them.

It differs from the CPU's `PagePool` in its layout and in its fixed size, so peak memory is what was configured. Taking
a page when none is free raises MemoryError, after which the batch continues with fewer rows. Page numbers are copied to
the device without waiting for queued work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from ttc.engines.embedded.core.pool import PAGE, PagePool, Segment, Shelf
from ttc.engines.shared.shape import Dims

Send: TypeAlias = Callable[[NDArray[Any]], torch.Tensor]
"""Copies numbers from the host to the device without waiting."""


def page_bytes(dims: Dims, itemsize: int) -> int:
    """Memory of one page over all layers."""
    return PAGE * dims.kv_bytes(itemsize)


class DeviceShelf(Shelf):
    """`num_pages` pages; `stored` (2, layers, pages, kv heads, PAGE, D), of which `keys` and `values` are views."""

    def __init__(self, dims: Dims, dtype: torch.dtype, device: torch.device, num_pages: int) -> None:
        self._num_pages = num_pages
        super().__init__(dims, dtype, device, PAGE)
        self.free = list(range(num_pages))
        self.num_pages = num_pages

    def _allocate(self, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        dims = self.dims
        shape = (2, dims.num_layers, self._num_pages, dims.num_kv_heads, self.size, dims.head_dim)
        # zeros, since a weight of 0 times NaN in a slot that was never written would be NaN
        self.stored = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self.stored[0].transpose(3, 4), self.stored[1]

    def _grow(self) -> None:
        raise self.full()

    def full(self) -> MemoryError:
        """The error where no page is free."""
        return MemoryError(
            f"all {self._num_pages} pages of keys and values ({self.stored.nbytes >> 20} MiB) are in use: "
            "raise kv_bytes, or ask for fewer or shorter sequences"
        )

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each (pages, kv heads, PAGE, D) and contiguous."""
        return self.stored[0, index], self.stored[1, index]


class DevicePool(PagePool):
    """A `PagePool` whose shelf is a `DeviceShelf`."""

    shelf: DeviceShelf

    def __init__(self, dims: Dims, dtype: torch.dtype, device: torch.device, num_pages: int, send: Send) -> None:
        self.shelf = DeviceShelf(dims, dtype, device, num_pages)
        self._kernels = None
        self.state_tokens, self._states = 0, WeakSet()
        self.returned: deque[list[int]] = deque()
        self.version = 0
        self._send = send

    def check_free(self, lengths: Iterable[int]) -> None:
        """See `PagePool.check_free`; checked before computing anything that would be discarded."""
        self._collect()
        if sum(-(-length // PAGE) for length in lengths) > len(self.shelf.free):
            raise self.shelf.full()

    def return_memory(self, most: int) -> None:
        """Does nothing: all memory is allocated at the start."""

    def places(self, segment: Segment, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PagePool.places`."""
        pages, offsets = self._send(np.stack(np.divmod(self.slots(segment, start, count), PAGE)))
        return pages, offsets

    def append(self, segment: Segment, kv: torch.Tensor) -> None:
        """See `PagePool.append`; one kernel launch."""
        count = kv.shape[3]
        if count:
            self.reserve(segment, count)
            pages, offsets = self.places(segment, segment.length, count)
            self.shelf.stored[:, :, pages, :, offsets] = kv.permute(3, 1, 0, 2, 4)
            segment.length += count

    def read(self, segment: Segment, start: int, end: int) -> torch.Tensor:
        """See `PagePool.read`."""
        pages, offsets = self.places(segment, start - segment.start, end - start)
        stored = self.shelf.stored[:, :, pages, :, offsets]  # (tokens, 2, layers, kv heads, D)
        return stored.permute(2, 1, 3, 0, 4)

    def trim(self, segment: Segment) -> None:
        """Return the pages of `segment` that were reserved for tokens that were never sampled."""
        needed = -(-segment.length // PAGE)
        if needed < len(segment.pages):
            self.returned.append(segment.pages[needed:])
            del segment.pages[needed:]

    def room(self, segment: Segment) -> int:
        """Tokens that still fit into the pages of `segment`."""
        return len(segment.pages) * PAGE - segment.length
