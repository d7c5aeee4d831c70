"""A decoding step that stays on the device: several tokens of every row between two looks of the host.

A *block* is up to `ahead` replays of one captured step, then one copy of their tokens to pinned memory and an event.
`look` queues the next block before it waits for the previous one, so the device never waits for the host. The cost is
one replay per token; per block one transfer in (only if a row was added, removed or extended), one out, and one wait.

Conditions that the device cannot check (stop strings, caps on thinking, aborts) end rows from the host, by `stop`, up
to two blocks late: tokens of the row that arrive after that are counted as `overrun` and dropped. Rows that end by a
stop id or their limit stop on the device at once and output nothing more.

The caller owns the pages. It gives a row pages ahead of its tokens by `grow`; a row without room waits. A page may be
assigned to another row as soon as `stop` has returned: work queued before still writes there, but before everything
queued later. Attention is passed in, reads its own plan buffers, and derives growing lengths from `positions`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ttc.engines.embedded.device import rows as record
from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.graphs import GraphTable
from ttc.engines.embedded.device.ops import KERNEL_OPS, StepOps
from ttc.engines.embedded.device.rows import RowStart
from ttc.engines.embedded.device.runtime import CudaRuntime, Mark
from ttc.engines.embedded.device.shape import StepWeights
from ttc.errors import EngineError

BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)


class StepAttention(Protocol):
    """Attention of one token per row over keys that already include that token."""

    def __call__(self, layer: int, q: torch.Tensor, buffers: StepBuffers) -> torch.Tensor:
        """Scaled q (rows, heads, head size) -> same shape; `buffers.positions` is -1 for a row that is not running."""
        ...

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """Its plan buffers, whose addresses a captured step holds, and each layer's keys and values."""
        ...

    @property
    def variant(self) -> Hashable:
        """The current launch shape of its kernels; a captured step serves one variant."""
        ...

    def send(self, parity: int) -> None:
        """Queue the transfer of a changed plan; host memory of the other parity may still be in flight."""
        ...

    def pages(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each (num_pages, kv heads, PAGE, head size)."""
        ...


@dataclass(frozen=True, slots=True)
class RowTokens:
    """What a row received since the last look; log-probabilities and self-certainties in nats, empty unless requested.

    `ended`: stop (a stop id, the last of `tokens`), length (its limit), or None.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    certainty: tuple[float, ...] = ()
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """New tokens of rows by ticket, and the number of tokens that arrived for rows already stopped by the host."""

    rows: Mapping[int, RowTokens]
    overrun: Mapping[int, int]


@dataclass(slots=True)
class _Row:
    """The host's view of a row: `position` of the newest token received, and how many more may be queued."""

    start: RowStart
    index: int
    num_pages: int
    position: int
    queued: int = 0


@dataclass(frozen=True, slots=True)
class _Block:
    """Queued steps: which ticket had which row, and the entries of the ring with their tokens."""

    mark: Mark
    output: torch.Tensor
    tickets: tuple[int, ...]
    turns: tuple[int, ...]


def run_step(buffers: StepBuffers, weights: StepWeights, attend: StepAttention, ops: StepOps) -> None:
    """Queue one step over all rows of `buffers`: embedding, layers, final norm, head, sampler."""
    ops.embed(buffers, weights)
    for index, layer in enumerate(weights.layers):
        torch.mm(_input(buffers, weights, layer.norm_in, ops), layer.qkv.t(), out=buffers.qkv)
        ops.project(buffers, weights, layer, *attend.pages(index))
        heads = attend(index, buffers.q, buffers).view(buffers.x.shape[0], -1)
        _add(buffers, weights, heads, layer.out, layer.norm_out, ops)
        torch.mm(_input(buffers, weights, layer.norm_mlp, ops), layer.gate_up.t(), out=buffers.gate_up)
        ops.activate(buffers, weights)
        _add(buffers, weights, buffers.active, layer.down, layer.norm_down, ops)
    ops.norm(buffers.x, weights.norm, weights.dims.eps, "plain", y=buffers.x, out=buffers.normed)
    torch.mm(buffers.normed, weights.head.t(), out=buffers.logits)
    ops.survey(buffers, weights)
    ops.draw(buffers, weights)


def _input(buffers: StepBuffers, weights: StepWeights, norm: torch.Tensor | None, ops: StepOps) -> torch.Tensor:
    """The input of a product: the residual stream where its norm is folded, else the normed stream."""
    if norm is None:
        return buffers.x
    ops.norm(buffers.x, norm, weights.dims.eps, "plain", y=buffers.x, out=buffers.normed)
    return buffers.normed


def _add(
    buffers: StepBuffers,
    weights: StepWeights,
    value: torch.Tensor,
    matrix: torch.Tensor,
    norm: torch.Tensor | None,
    ops: StepOps,
) -> None:
    """Queue x += value W^T in one product; in families with a norm after the product, queue that norm too."""
    if norm is None:
        buffers.x.addmm_(value, matrix.t())
        return
    torch.mm(value, matrix.t(), out=buffers.branch)
    ops.norm(buffers.x, norm, weights.dims.eps, "behind", y=buffers.branch, out=buffers.x)


class DeviceStep:
    """Rows that decode on the device. Not thread-safe; call it from the thread that queues prefill, on its stream.

    Args:
        weights: of the decoder; assigning `weights` replaces them and drops all graphs.
        attend: attention and the pages.
        runtime: CUDA on the device of the weights.
        max_rows: initial number of rows; grows by doubling.
        ahead: tokens per look, at least 1.
        ops: the kernels; the reference's for tests.
    """

    def __init__(
        self,
        weights: StepWeights,
        attend: StepAttention,
        runtime: CudaRuntime,
        *,
        max_rows: int = 16,
        ahead: int = 4,
        ops: StepOps = KERNEL_OPS,
    ) -> None:
        self.weights, self._attend, self._runtime, self._ops, self._ahead = weights, attend, runtime, ops, ahead
        self._rows: dict[int, _Row] = {}
        self._masks: dict[int, npt.NDArray[np.int32]] = {}
        self._fresh: set[int] = set()  # tickets under a penalty whose texts the device does not have yet
        self._next_ticket, self._turn, self._parity = 1, 0, 0
        self._queued: _Block | None = None
        self._allocate(max_rows, 8)
        self._free = list(range(max_rows))[::-1]
        self.graphs = GraphTable(runtime, self)

    # -- rows --------------------------------------------------------------------------------------------------------

    def start(self, row: RowStart) -> int:
        """Add a row; returns its ticket, by which `look` reports its tokens."""
        if not self._free:
            self._resize(2 * len(self._rows), self._width)
        self._widen(len(row.pages))
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        index = self._free.pop()
        record.write(self._records[index], row, ticket)
        self._rows[ticket] = _Row(row, index, len(row.pages), row.position)
        if row.penalty != 1:
            self._fresh.add(ticket)
        self._limit(ticket)
        return ticket

    def grow(self, ticket: int, pages: Sequence[int]) -> None:
        """Set all pages of a row, new ones after the old."""
        row = self._rows[ticket]
        self._widen(len(pages))
        record.write_pages(self._records[row.index], pages)
        row.num_pages = len(pages)
        self._limit(ticket)

    def constrain(self, ticket: int, words: npt.NDArray[np.int32]) -> None:
        """Allow a masked row one more token, out of those whose bits are set (int32, vocab / 32 rounded up)."""
        if not self._rows[ticket].start.masked:
            raise EngineError(f"row {ticket} was not started with masked=True")
        if not words.any():
            raise EngineError(f"row {ticket}: the mask allows no token")
        self._masks[ticket] = words
        self._limit(ticket)

    def stop(self, ticket: int) -> None:
        """Drop a row; its outstanding tokens become overrun."""
        row = self._rows.pop(ticket)
        self._masks.pop(ticket, None)
        self._fresh.discard(ticket)
        self._records[row.index, record.LIMIT] = 0
        self._free.append(row.index)
        self._free.sort(reverse=True)  # low rows first, so that few rows need a small bucket
        self._changed = True

    def _limit(self, ticket: int) -> None:
        """Set how far the row may run: its own limit, its pages, and one token where it waits for masks."""
        row = self._rows[ticket]
        limit = min(row.start.limit, record.room(row.start, row.num_pages))
        if row.start.masked:
            limit = min(limit, row.position + (ticket in self._masks))
        self._records[row.index, record.LIMIT] = limit
        self._changed = True

    def index(self, ticket: int) -> int:
        """The row's index in the buffers, which does not change."""
        return self._rows[ticket].index

    def reach(self, ticket: int) -> int:
        """The highest position that the row's newest token may have by now."""
        row = self._rows[ticket]
        return row.position + row.queued

    @property
    def num_places(self) -> int:
        """Rows that the buffers hold."""
        return len(self._records)

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def tickets(self) -> tuple[int, ...]:
        """The tickets of all rows."""
        return tuple(self._rows)

    @property
    def idle(self) -> bool:
        """Whether nothing is running and no result is outstanding."""
        return not self._rows and self._queued is None

    def look(self) -> Look:
        """Queue a block, then wait for the one before it. With a masked row: a block of one token, waited for.

        A block is no longer than any row may still run, so rows that end by their limit leave no useless replay queued.
        """
        alone = any(row.start.masked for row in self._rows.values())
        blocks = [self._queued, self._queue(1 if alone else self._ahead)]
        self._queued = None if alone else blocks.pop()
        return self._read(blocks)

    def drain(self) -> Look:
        """Wait for the queued blocks, without queueing another."""
        block, self._queued = self._queued, None
        return self._read([block])

    def _queue(self, count: int) -> _Block | None:
        count = min(count, max(map(self._left, self._rows.values()), default=0))
        if count <= 0:
            return None
        # at most two blocks are in flight, so the host tensors of the other are not overwritten
        self._parity = 1 - self._parity
        with self._runtime.here():
            self._send()
            bucket = self._bucket()
            self.graphs.replay(bucket, count)
            output = self._outputs[self._parity]
            output.copy_(self._buffers.output, non_blocking=True)
            mark = self._runtime.mark()
        turns = tuple((self._turn + step) % self._ahead for step in range(count))
        self._turn = (self._turn + count) % self._ahead
        for row in self._rows.values():
            row.queued += count
        return _Block(mark, output, tuple(self._records[:bucket, record.TICKET].tolist()), turns)

    def _left(self, row: _Row) -> int:
        """Tokens that may still be queued for a row."""
        return int(self._records[row.index, record.LIMIT]) - row.position - row.queued

    def _bucket(self) -> int:
        num_rows = 1 + max(row.index for row in self._rows.values())
        return min(next((size for size in BUCKETS if size >= num_rows), num_rows), self._buffers.x.shape[0])

    def _send(self) -> None:
        """One pinned transfer of all records if one changed, and one of the masks if there are any.

        And one of the text of each new row under a penalty.
        """
        if self._masks:
            masks = self._mask_staging[self._parity]
            for slot, (ticket, words) in enumerate(self._masks.items()):
                masks[slot].numpy()[:] = words
                self._records[self._rows[ticket].index, record.MASK] = slot
            self._buffers.masks[: len(self._masks)].copy_(masks[: len(self._masks)], non_blocking=True)
        for ticket in self._fresh:
            row = self._rows[ticket]
            staged = self._presence_staging[self._parity][row.index]
            staged.numpy()[:] = record.presence(row.start, len(staged))
            self._buffers.presence[row.index].copy_(staged, non_blocking=True)
        self._fresh.clear()
        if self._changed:
            staging = self._staging[self._parity]
            staging.numpy()[:] = self._records
            self._buffers.inputs.copy_(staging, non_blocking=True)
            self._changed = False
        self._attend.send(self._parity)

    def _read(self, blocks: Sequence[_Block | None]) -> Look:
        """Wait for blocks and return their tokens."""
        outcomes: dict[int, list[npt.NDArray[np.int32]]] = {}
        for block in blocks:
            if block is not None:
                block.mark.synchronize()
                output = block.output.numpy()[list(block.turns)]  # (steps, rows, 3), a copy
                for index, ticket in enumerate(block.tickets):
                    if ticket in self._rows:
                        self._rows[ticket].queued -= len(block.turns)
                    outcomes.setdefault(ticket, []).append(output[output[:, index, 0] >= 0, index])
        rows: dict[int, RowTokens] = {}
        overrun: dict[int, int] = {}
        for ticket, parts in outcomes.items():
            words = np.concatenate(parts)
            if ticket in self._rows:
                rows[ticket] = self._take(ticket, words)
            elif len(words):
                overrun[ticket] = len(words)
        return Look({ticket: row for ticket, row in rows.items() if row.tokens}, overrun)

    def _take(self, ticket: int, words: npt.NDArray[np.int32]) -> RowTokens:
        """Record the words (tokens, 3) of a live row; a row that has ended is dropped."""
        row = self._rows[ticket]
        row.position += len(words)
        tokens = tuple(words[:, 0].tolist())
        ended = None
        if tokens and tokens[-1] in row.start.stop_ids:
            ended = "stop"
        elif row.position >= row.start.limit:
            ended = "length"
        if ended:
            self.stop(ticket)
        elif tokens and self._masks.pop(ticket, None) is not None:  # a row without room for a token keeps its mask
            self._limit(ticket)
        if not row.start.wants_logprobs:
            return RowTokens(tokens, ended=ended)
        facts = words[:, 1:].copy().view(np.float32)
        return RowTokens(tokens, tuple(facts[:, 0].tolist()), tuple(facts[:, 1].tolist()), ended)

    # -- Capturable ----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """See `Capturable`."""
        return (*self._buffers.tensors, *self.weights.tensors, *self._attend.held)

    @property
    def variant(self) -> Hashable:
        """See `Capturable`."""
        return self._attend.variant

    @property
    def lasting(self) -> Sequence[torch.Tensor]:
        """See `Capturable`."""
        return self._buffers.lasting

    def eager(self, rows: int) -> None:
        """See `Capturable`."""
        run_step(self._buffers.first(rows), self.weights, self._attend, self._ops)

    def halt(self) -> None:
        """See `Capturable`."""
        self._buffers.inputs[:, record.LIMIT].zero_()

    def results(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Capturable`: the logits."""
        return self._buffers.logits[:rows], self._buffers.positions[:rows] >= 0

    # -- memory ------------------------------------------------------------------------------------------------------

    def _allocate(self, rows: int, width: int) -> None:
        """New buffers on device and host; graphs of the old ones are dropped at the next replay."""
        buffers = StepBuffers.allocate(self.weights, rows, width, self._ahead)
        self._buffers, self._width, self._changed = buffers, width, True
        self._records: npt.NDArray[np.int32] = np.zeros(buffers.inputs.shape, np.int32)
        self._staging = [self._runtime.pinned(buffers.inputs) for _ in range(2)]
        self._mask_staging = [self._runtime.pinned(buffers.masks) for _ in range(2)]
        self._presence_staging = [self._runtime.pinned(buffers.presence) for _ in range(2)]
        self._outputs = [self._runtime.pinned(buffers.output) for _ in range(2)]

    def _resize(self, rows: int, width: int) -> None:
        old, records = self._buffers, self._records
        self._allocate(rows, width)
        num, words = records.shape
        self._records[:num, :words] = records
        with self._runtime.here():
            self._buffers.state[:num].copy_(old.state)
            self._buffers.turn.copy_(old.turn)
            self._buffers.presence[:num].copy_(old.presence)
        self._free = [*range(rows - 1, num - 1, -1), *self._free]

    def _widen(self, num_pages: int) -> None:
        if num_pages > self._width:
            self._resize(self._buffers.x.shape[0], max(num_pages, 2 * self._width))
