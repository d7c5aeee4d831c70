"""Captured graphs, one per bucket of rows, in a table that belongs to the buffers whose addresses they hold.

A graph replays on the addresses it was captured with, whatever lives there now. So the table compares, before every
block, where all buffers lie with where they lay; one that moved empties it. Nobody needs to remember to.

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

__all__ = ["Capturable", "GraphTable"]

_TOLERANCE = 0.05
"""Of the largest number: a library may pick another kernel inside a capture, whose sums are rounded otherwise."""


class Capturable(Protocol):
    """A step over static buffers."""

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """Every tensor whose address a step uses."""
        ...

    @property
    def variant(self) -> Hashable:
        """What else a capture depends on: shapes of launches that are no buffer's."""
        ...

    @property
    def lasting(self) -> Sequence[torch.Tensor]:
        """What a step changes and a later one reads, but for keys and values; the records too, which `halt` changes."""
        ...

    def eager(self, rows: int) -> None:
        """Queue one step."""
        ...

    def halt(self) -> None:
        """Queue that no row runs."""
        ...

    def results(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last step came to: numbers (rows, anything), and which rows ran."""
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
        """Queue `count` steps of `bucket` rows, captured now if need be."""
        held = tuple(self._source.held)
        addresses = tuple(tensor.data_ptr() for tensor in held)
        if addresses != self._addresses:
            if self._graphs:
                self._runtime.mark().synchronize()  # a graph that runs is not to be destroyed
            self._graphs.clear()
            # The table owns what its graphs point to: an address is given to nobody else while they live.
            self._addresses, self._owned = addresses, held
        key = bucket, self._source.variant
        if key not in self._graphs:
            self._graphs[key] = self._capture(bucket, compare=not self._graphs)
        for _ in range(count):
            self._graphs[key].replay()

    def _capture(self, bucket: int, *, compare: bool) -> Replayable:
        self.captures += 1
        state = self._save()  # before the side stream starts: its warm-up must not be what is saved
        self._source.halt()
        self._runtime.apart(lambda: self._twice(bucket))
        self._restore(state)
        graph = self._runtime.capture(lambda: self._source.eager(bucket))
        if compare:
            self._compare(bucket, graph, state)
            self._restore(state)
        return graph

    def _twice(self, bucket: int) -> None:
        """Libraries allocate their workspaces, and Triton compiles, at first calls, which a capture must not see."""
        self._source.eager(bucket)
        self._source.eager(bucket)

    def _save(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self._source.lasting]

    def _restore(self, state: Sequence[torch.Tensor]) -> None:
        for tensor, value in zip(self._source.lasting, state, strict=True):
            tensor.copy_(value)

    def _compare(self, bucket: int, graph: Replayable, state: Sequence[torch.Tensor]) -> None:
        """Raises EngineError where a replay does not do what an eager step does."""
        self._source.eager(bucket)
        numbers, runs = (tensor.clone() for tensor in self._source.results(bucket))
        self._restore(state)
        self._source.results(bucket)[0].fill_(float("nan"))  # a graph that does nothing must not pass
        graph.replay()
        again, runs_again = self._source.results(bucket)
        error = torch.where(runs[:, None], (again - numbers).abs(), 0.0).amax()
        scale = torch.where(runs[:, None], numbers.abs(), 0.0).amax()
        if not (torch.equal(runs, runs_again) and bool(error <= _TOLERANCE * scale)):
            raise EngineError(
                f"a replayed step of {bucket} rows differs from an eager one on {self._runtime.device} by "
                f"{float(error):.3g}: captured graphs do not work here; update torch and the driver"
            )
