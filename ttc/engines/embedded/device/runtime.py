"""The parts of CUDA that the step uses: device, streams, events, graphs.

`cuda` is `torch.cuda`, or an emulation with the same names. A graph records the streams of the *current* device, so
everything runs under `torch.cuda.device(device)`: without it, a step on `cuda:1` captures nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Replayable(Protocol):
    """A captured graph."""

    def replay(self) -> None:
        """Queue it."""
        ...


class Mark(Protocol):
    """A point in the device's queue."""

    def synchronize(self) -> None:
        """Wait until the device has passed it: the only blocking call of a look."""
        ...


class CudaRuntime:
    """CUDA on one device; tensors live on `device`, or wherever an emulation keeps them."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """A context that makes the device the current one."""
        context: contextlib.AbstractContextManager[Any] = self._cuda.device(self.device)
        return context

    def apart(self, work: Callable[[], None]) -> None:
        """Run `work` on its own stream, after all work queued so far; later work waits for it."""
        current, side = self._cuda.current_stream(self.device), self._cuda.Stream(self.device)
        side.wait_stream(current)
        with self._cuda.stream(side):
            work()
        current.wait_stream(side)

    def capture(self, work: Callable[[], None]) -> Replayable:
        """Capture `work` as a graph without running it."""
        graph: Replayable = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        return graph

    def mark(self) -> Mark:
        """Mark the end of the work queued so far."""
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self.device))
        mark: Mark = event
        return mark

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """A pinned host tensor of the same shape, for copies that do not block."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
