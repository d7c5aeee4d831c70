"""Attention of rows and of new tokens over a GPU's pool: the forest's plan, in buffers that captured graphs refer to.

A new plan (`kernels.plan`) is made when rows are added, when they run out of planned room, and when the prefix tree has
moved pages; it goes to the device in one transfer beside the records of the rows. Buffers that are too small are
replaced by larger ones, which the table of graphs notices by their addresses. Grid sizes are rounded up, so that one
graph serves all plans with the same tile and the same power of two of items.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ttc.engines.embedded.core.pool import PAGE, Segment
from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.gpu.pool import DevicePool
from ttc.engines.embedded.kernels.forest import ForestScratch, forest_attention
from ttc.engines.embedded.kernels.launches import prefill_launch, widest_tile
from ttc.engines.embedded.kernels.plan import ForestPlan, ForestSchedule, PagedNode, PlanCapacity, plan_forest
from ttc.engines.embedded.kernels.prefill import paged_prefill
from ttc.engines.embedded.kernels.ragged import PagedSequence, plan_prefill
from ttc.engines.shared.shape import Dims


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The kernels of `kernels`, or the same in plain torch for tests, with the same arguments."""

    decode: Callable[..., torch.Tensor]
    prefill: Callable[..., torch.Tensor]


KERNELS = AttentionKernels(forest_attention, paged_prefill)
_LEAST = PlanCapacity(rows=1, items=64, members=64, pages=256)


class PlannedAttention:
    """The `StepAttention` of rows whose nodes are in a pool.

    Args:
        pool: holds keys and values.
        runtime: CUDA on the device of the pool.
        kernels: decoding and prefill.
        windows: sliding window of each layer, in tokens; None is full attention.
        multiprocessors: number on the device, for which plans are balanced.
    """

    def __init__(
        self,
        pool: DevicePool,
        runtime: CudaRuntime,
        kernels: AttentionKernels,
        windows: Sequence[int | None],
        multiprocessors: int,
    ) -> None:
        self._pool, self._runtime, self._kernels = pool, runtime, kernels
        self._windows, self._multiprocessors = windows, multiprocessors
        self._dims: Dims = pool.shelf.dims
        # A plan skips keys that no layer reads: only if all layers have a window, and then outside the widest one.
        sizes = [window for window in windows if window is not None]
        self._trimmed = max(sizes) if len(sizes) == len(windows) else None
        self._schedule: ForestSchedule | None = None  # not yet sent to the device
        self.schedule: ForestSchedule | None = None
        """The newest plan."""
        self._tile, self._items = 16, _LEAST.items
        self._allocate(_LEAST)

    def plan(self, nodes: Sequence[PagedNode], positions: Sequence[int]) -> None:
        """Plan the next block: nodes refer to rows by their index, `positions` has an entry for every index."""
        dims = self._dims
        widest = max((len(node.rows) for node in nodes), default=1)
        most = widest_tile(dims.head_dim, self._pool.shelf.dtype.itemsize)
        tile = next((size for size in (16, 64, 128) if widest * dims.group <= size <= most), most)
        schedule = plan_forest(
            nodes,
            positions,
            group=dims.group,
            num_kv_heads=dims.num_kv_heads,
            tile=tile,
            multiprocessors=self._multiprocessors,
            window=self._trimmed,
        )
        needs = schedule.needs
        if not self._plan.capacity.holds(needs):
            have = self._plan.capacity
            self._allocate(
                PlanCapacity(
                    max(have.rows, needs.rows),
                    *(max(old, _power(new)) for old, new in zip(_sizes(have), _sizes(needs), strict=True)),
                )
            )
        self._tile, self._items = schedule.tile, max(_power(needs.items), _LEAST.items)
        self._schedule = self.schedule = schedule

    def _allocate(self, capacity: PlanCapacity) -> None:
        dims, device = self._dims, self._pool.shelf.device
        buffer = torch.zeros(capacity.size, dtype=torch.int32, device=device)
        self._plan = ForestPlan.over(buffer, capacity, tile=16, group=dims.group)
        self._staging = [self._runtime.pinned(buffer) for _ in range(2)]
        self._scratch = ForestScratch.allocate(self._plan, dims.num_heads, dims.head_dim)
        shape = (capacity.rows, dims.num_heads, dims.head_dim)
        self._out = torch.zeros(shape, dtype=self._pool.shelf.dtype, device=device)

    @staticmethod
    def num_bytes(dims: Dims, itemsize: int, rows: int, members: int) -> int:
        """Size of the buffers besides the plan itself."""
        return dims.num_heads * (members * 4 * (dims.head_dim + 1) + rows * dims.head_dim * itemsize)

    # -- StepAttention -----------------------------------------------------------------------------------------------

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """See `StepAttention`."""
        return self._plan.buffer, self._scratch.out, self._scratch.sums, self._out, self._pool.shelf.stored

    @property
    def variant(self) -> Hashable:
        """See `StepAttention`."""
        return self._tile, self._items

    def send(self, parity: int) -> None:
        """See `StepAttention`."""
        if self._schedule is None:
            return
        staging = self._staging[parity]
        staging.numpy()[:] = self._schedule.pack(self._plan.capacity)
        self._plan.buffer.copy_(staging, non_blocking=True)
        self._schedule = None

    def pages(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `StepAttention`."""
        return self._pool.shelf.layer(layer)

    def __call__(self, layer: int, q: torch.Tensor, buffers: StepBuffers) -> torch.Tensor:
        """See `StepAttention`; the grid covers the step's rows and the number of items given by the variant."""
        rows, whole = len(q), self._plan.capacity
        capacity = replace(whole, rows=rows, items=min(self._items, whole.items))
        plan = replace(self._plan, capacity=capacity, tile=self._tile, positions=buffers.positions)
        keys, values = self.pages(layer)
        out = self._out[:rows]
        # queries are scaled already
        return self._kernels.decode(
            q, keys, values, plan, out, self._scratch, scale=1.0, window=self._windows[layer]
        )  # fmt: skip


class PagedPrefill:
    """Attention of the new tokens of several segments; first writes their keys and values into their pages."""

    def __init__(
        self,
        pool: DevicePool,
        items: Sequence[tuple[Segment, int]],
        slots: torch.Tensor,
        kernels: AttentionKernels,
        windows: Sequence[int | None],
        send: Callable[[NDArray[Any]], torch.Tensor],
    ) -> None:
        """`items`: (segment, new tokens), pages reserved; `slots` of the new tokens; `send` copies to the device."""
        dims = pool.shelf.dims
        self._pool, self._kernels, self._windows = pool, kernels, windows
        self._pages, self._offsets = slots // PAGE, slots % PAGE
        device = pool.shelf.device
        tile = prefill_launch(device, dims.head_dim, pool.shelf.dtype.itemsize).tile
        self._table = plan_prefill(
            [PagedSequence(_nodes(segment, count), count) for segment, count in items],
            group=dims.group,
            tile=tile,
            send=send,
        )

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend: q (T, heads, D) scaled, k and v (T, kv heads, D), all items concatenated -> (T, heads * D)."""
        keys, values = self._pool.shelf.layer(layer)
        keys[self._pages, :, self._offsets] = k
        values[self._pages, :, self._offsets] = v
        q = q.contiguous()
        window = self._windows[layer]
        out = self._kernels.prefill(q, keys, values, self._table, torch.empty_like(q), scale=1.0, window=window)
        return out.flatten(1)


def _nodes(segment: Segment, count: int) -> list[PagedNode]:
    """The nodes of a chain whose last segment gets `count` more tokens."""
    nodes: list[Any] = []
    for part in segment.chain():
        length = part.length + (count if part is segment else 0)
        if length:
            nodes.append(PagedNode(np.asarray(part.pages), length, part.start, ()))
    return nodes


def _sizes(capacity: PlanCapacity) -> tuple[int, int, int]:
    return capacity.items, capacity.members, capacity.pages


def _power(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()
