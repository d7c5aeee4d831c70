"""CUDA graphs, streams and events on the CPU: what `torch.cuda` is to `ttc.engines.embedded.device.runtime`.

As on a device, nothing runs when it is queued. The main stream runs as late as it may (an event is waited for), a side
stream at once, after what it was told to wait for: the worst schedule that the calls allow. A graph records what the
stream of the current device gets, on the tensors it got, and a capture runs nothing. Triton launches under the
interpreter are queued and recorded like torch's operations. What the host writes or reads without an event is not
ordered, as it would not be.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Work = Callable[[], None]


class EmulatedGraph:
    def __init__(self, cuda: EmulatedCuda) -> None:
        self.cuda, self.works = cuda, []

    def replay(self) -> None:
        self.cuda.counts["replays"] += 1
        self.cuda.queue += self.works


class EmulatedStream:
    """`side` streams run at once."""

    def __init__(self, cuda: EmulatedCuda, side: bool) -> None:
        self.cuda, self.side = cuda, side

    def wait_stream(self, other: EmulatedStream) -> None:
        if self.side and not other.side:
            self.cuda.flush()


class EmulatedEvent:
    def __init__(self, cuda: EmulatedCuda) -> None:
        self.cuda, self.place = cuda, 0

    def record(self, stream: EmulatedStream) -> None:
        self.place = self.cuda.finished + len(self.cuda.queue)

    def synchronize(self) -> None:
        self.cuda.counts["waits"] += 1
        self.cuda.flush(self.place - self.cuda.finished)


class EmulatedCuda(TorchDispatchMode):
    """Use as a context; `home` is the number of the device on which all tensors are said to lie."""

    def __init__(self, home: int = 0) -> None:
        super().__init__()
        self.home, self.current, self.finished = home, 0, 0
        self.queue: list[Work] = []
        self.counts: Counter[str] = Counter()
        self.main, self.running = EmulatedStream(self, False), False
        self.stream_now, self.recording = self.main, None

    # -- the names of torch.cuda -------------------------------------------------------------------------------------

    def Stream(self, device: torch.device) -> EmulatedStream:
        return EmulatedStream(self, True)

    def Event(self) -> EmulatedEvent:
        return EmulatedEvent(self)

    def CUDAGraph(self) -> EmulatedGraph:
        return EmulatedGraph(self)

    def current_stream(self, device: torch.device) -> EmulatedStream:
        return self.stream_now

    @contextlib.contextmanager
    def stream(self, stream: EmulatedStream) -> Iterator[None]:
        self.stream_now, before = stream, self.stream_now
        yield
        self.stream_now = before

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.current, before = device.index or 0, self.current
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph: EmulatedGraph, capture_error_mode: str) -> Iterator[None]:
        self.recording = (graph, self.current)
        yield
        self.recording = None

    # -- how work gets to the device ---------------------------------------------------------------------------------

    def launch(self, work: Work) -> None:
        """Record, queue or run."""
        if self.recording is not None and self.recording[1] == self.home:
            self.recording[0].works.append(work)
        elif self.stream_now.side:
            self.run(work)
        else:
            self.counts["launches"] += 1
            self.queue.append(work)

    def flush(self, count: int | None = None) -> None:
        """Run the first `count` of what is queued, none if that is less than one, or all."""
        count = len(self.queue) if count is None else max(count, 0)
        ready, self.queue = self.queue[:count], self.queue[count:]
        self.finished += len(ready)
        with _disable_current_modes():  # what runs need not be asked for leave, one operation at a time
            for work in ready:
                self.run(work)

    def run(self, work: Work) -> None:
        self.running, before = True, self.running
        try:
            work()
        finally:
            self.running = before

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.running or not _launches(function):
            return function(*args, **kwargs)
        if _reads(function):
            if self.recording is not None:
                raise RuntimeError(f"{function} reads a value of the device during a capture")
            self.counts["reads"] += 1
            self.flush()
            return function(*args, **kwargs)
        written = [
            kwargs[a.name] if a.kwarg_only else args[i]
            for i, a in enumerate(function._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        if written:
            self.launch(lambda: function(*args, **kwargs))
            return written[0] if len(written) == 1 else tuple(written)
        results = function(*args, **kwargs)  # its values are wrong by now; what counts is memory of the right shape
        _poison(results)
        self.launch(lambda: _fill(results, function(*args, **kwargs)))
        return results


@functools.cache
def _launches(function: Any) -> bool:
    """Whether it is a kernel: not a view, not an allocation."""
    views = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
    name = function._schema.name
    return not views and not name.startswith(("aten::empty", "aten::new_empty", "aten::lift", "aten::is_pinned"))


def _reads(function: Any) -> bool:
    return function._schema.name in {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero"}


def _tensors(results: Any) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def _poison(results: Any) -> None:
    for tensor in _tensors(results):
        tensor.fill_(float("nan") if tensor.is_floating_point() else 0)


def _fill(results: Any, values: Any) -> None:
    for tensor, value in zip(_tensors(results), _tensors(values), strict=True):
        tensor.copy_(value)
