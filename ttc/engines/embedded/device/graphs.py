"""Captured graphs, one per bucket of rows, in a table tied to the addresses of the buffers they use.

A graph replays on the addresses it was captured with, whatever is stored there by then. So before every block the table
compares the addresses of all buffers with those at capture; if any has changed, it drops all graphs. Callers need not
invalidate anything.

Capture: the state is cloned *first*, then the warm-up runs on a side stream that waits for the clone, with all rows
stopped, so that it writes no keys. The first graph of a table is replayed once and compared with one eager step on the
live rows; both write the same keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import torch

from ttc.engines.embedded.device.runtime import CudaRuntime, Replayable
from ttc.errors import EngineError

_TOLERANCE = 0.05
"""Relative to the largest number: inside a capture a library may choose another kernel, which rounds differently."""


class Capturable(Protocol):
    """A step over static buffers."""

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """Every tensor whose address a step uses."""
        ...

    @property
    def variant(self) -> Hashable:
        """Anything else that a capture depends on, such as launch shapes."""
        ...

    @property
    def lasting(self) -> Sequence[torch.Tensor]:
        """Buffers that carry state between steps, except keys and values; with the records, which `halt` changes."""
        ...

    def eager(self, rows: int) -> None:
        """Queue one step."""
        ...

    def halt(self) -> None:
        """Queue a change that stops all rows."""
        ...

    def results(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Results of the last step: numbers (rows, any), and which rows ran."""
        ...


class GraphTable:
    """(Bucket, variant) -> captured graph."""

    def __init__(self, runtime: CudaRuntime, source: Capturable) -> None:
        self._runtime, self._source = runtime, source
        self._graphs: dict[tuple[int, Hashable], Replayable] = {}
        self._addresses: tuple[int, ...] = ()
        self._owned: tuple[torch.Tensor, ...] = ()
        self.captures = 0

    def replay(self, bucket: int, count: int) -> None:
        """Queue `count` steps of `bucket` rows, capturing the graph if needed."""
        held = tuple(self._source.held)
        addresses = tuple(tensor.data_ptr() for tensor in held)
        if addresses != self._addresses:
            if self._graphs:
                self._runtime.mark().synchronize()  # a running graph must not be destroyed
            self._graphs.clear()
            # The table keeps the graphs' tensors alive, so that their addresses are not reused.
            self._addresses, self._owned = addresses, held
        key = bucket, self._source.variant
        if key not in self._graphs:
            self._graphs[key] = self._capture(bucket, compare=not self._graphs)
        for _ in range(count):
            self._graphs[key].replay()

    def _capture(self, bucket: int, *, compare: bool) -> Replayable:
        self.captures += 1
        state = self._save()  # before the side stream starts, so that its warm-up does not change what is saved
        self._source.halt()
        self._runtime.apart(lambda: self._twice(bucket))
        self._restore(state)
        graph = self._runtime.capture(lambda: self._source.eager(bucket))
        if compare:
            self._compare(bucket, graph, state)
            self._restore(state)
        return graph

    def _twice(self, bucket: int) -> None:
        """Run twice before a capture: at first calls libraries allocate workspaces and Triton compiles."""
        self._source.eager(bucket)
        self._source.eager(bucket)

    def _save(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self._source.lasting]

    def _restore(self, state: Sequence[torch.Tensor]) -> None:
        for tensor, value in zip(self._source.lasting, state, strict=True):
            tensor.copy_(value)

    def _compare(self, bucket: int, graph: Replayable, state: Sequence[torch.Tensor]) -> None:
        """Raise EngineError where a replay does not give the results of an eager step."""
        self._source.eager(bucket)
        numbers, runs = (tensor.clone() for tensor in self._source.results(bucket))
        self._restore(state)
        self._source.results(bucket)[0].fill_(float("nan"))  # so that a graph that does nothing fails the comparison
        graph.replay()
        again, runs_again = self._source.results(bucket)
        error = torch.where(runs[:, None], (again - numbers).abs(), 0.0).amax()
        scale = torch.where(runs[:, None], numbers.abs(), 0.0).amax()
        if not (torch.equal(runs, runs_again) and bool(error <= _TOLERANCE * scale)):
            raise EngineError(
                f"a replayed step of {bucket} rows differs from an eager one on {self._runtime.device} by "
                f"{float(error):.3g}: captured graphs do not work here; update torch and the driver"
            )
