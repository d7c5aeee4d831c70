"""The pool of pages on a GPU: allocated once, token after token within a page, as the kernels read them.

It is the `PagePool` of a CPU but for the layout, and for its size: it never grows, so peak memory is what was asked
for; whoever takes a page that is not there gets a MemoryError, after which the batch goes on with fewer rows. Numbers
of pages go to the device without waiting for what is queued there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ttc.engines.embedded.core.pool import PAGE, PagePool, Segment, Shelf
from ttc.engines.shared.shape import Dims

__all__ = ["DevicePool", "DeviceShelf", "Send", "page_bytes"]

Send: TypeAlias = Callable[[NDArray[Any]], torch.Tensor]
"""From numbers of the host to the device, without a wait."""


def page_bytes(dims: Dims, itemsize: int) -> int:
    """Memory of one page of all layers."""
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
        # Zeros: what no token has written yet must be a number, since a weight of 0 times NaN is NaN.
        self.stored = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self.stored[0].transpose(3, 4), self.stored[1]

    def _grow(self) -> None:
        raise self.full()

    def full(self) -> MemoryError:
        """What to say where no page is free."""
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
        self.returned: deque[list[int]] = deque()
        self.version = 0
        self._send = send

    def check_free(self, lengths: Iterable[int]) -> None:
        """See `PagePool.check_free`: before anything is computed that would be thrown away."""
        self._collect()
        if sum(-(-length // PAGE) for length in lengths) > len(self.shelf.free):
            raise self.shelf.full()

    def return_memory(self, most: int) -> None:
        """Nothing: its memory was taken when it began."""

    def places(self, segment: Segment, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PagePool.places`."""
        pages, offsets = self._send(np.stack(np.divmod(self.slots(segment, start, count), PAGE)))
        return pages, offsets

    def append(self, segment: Segment, kv: torch.Tensor) -> None:
        """See `PagePool.append`; one launch."""
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
        """Give back the pages that `segment` was given for tokens that never came."""
        needed = -(-segment.length // PAGE)
        if needed < len(segment.pages):
            self.returned.append(segment.pages[needed:])
            del segment.pages[needed:]

    def room(self, segment: Segment) -> int:
        """Tokens that the pages of `segment` still hold."""
        return len(segment.pages) * PAGE - segment.length
