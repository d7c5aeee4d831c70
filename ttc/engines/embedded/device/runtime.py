"""The few things of CUDA that the step uses, in one place: device, streams, events, graphs.

`cuda` is `torch.cuda`, or an emulation with the same names. A graph records the streams of the *current* device, so
all of it runs under `torch.cuda.device(device)`: without that, a step on `cuda:1` captures nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["CudaRuntime", "Mark", "Replayable"]


class Replayable(Protocol):
    """A captured graph."""

    def replay(self) -> None:
        """Queue it."""
        ...


class Mark(Protocol):
    """A place in the queue of the device."""

    def synchronize(self) -> None:
        """Wait until the device has passed it: the one blocking call of a look."""
        ...


class CudaRuntime:
    """CUDA on one device; tensors live on `device`, or wherever an emulation keeps them."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """Make the device the current one."""
        context: contextlib.AbstractContextManager[Any] = self._cuda.device(self.device)
        return context

    def apart(self, work: Callable[[], None]) -> None:
        """Run `work` on a stream of its own, behind all that is queued by now; what is queued later waits for it."""
        current, side = self._cuda.current_stream(self.device), self._cuda.Stream(self.device)
        side.wait_stream(current)
        with self._cuda.stream(side):
            work()
        current.wait_stream(side)

    def capture(self, work: Callable[[], None]) -> Replayable:
        """Record `work` without running it."""
        graph: Replayable = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        return graph

    def mark(self) -> Mark:
        """Mark the end of what is queued by now."""
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self.device))
        mark: Mark = event
        return mark

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """A host tensor of the same shape, from and to which copies do not block."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
