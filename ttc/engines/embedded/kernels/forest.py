"""Decode attention over a forest of pages: each shared key is read once for the rows below it.

A program processes one item of the plan (a run of keys and a block of rows) and one key head: it loads the queries of
its rows, `group` heads of each, as one tile, iterates over the run's pages once, and writes a partial output and its
log-sum-exp for each row and head. A second kernel merges the partials of a row by their log-sum-exp. This is cascade
attention (Ye et al., FlashInfer 2025, arXiv 2501.01005; Juravsky et al., Hydragen 2024, arXiv 2402.05099) over a tree
of any depth (Yao et al., DeFT 2024, arXiv 2404.00242), with runs split over the device as in Flash-Decoding.

Items with few query rows, such as the last node of one branch, use a tile of 16 rows in the same launch. There are two
launches a layer; grids cover the plan's capacity, so both can be captured. Sums are in fp32; products are fp16 or bf16
on the tensor cores, with weights rounded to the values' dtype, or fp32 as three TF32 products.

Cost: see `plan.bytes_read`; heads x (head size + 1) fp32 numbers written and read per partial result. Left out: writing
a single partial directly to the output; one launch with the merge after an atomic counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ttc.engines.embedded.kernels.language import INTERPRETED, tl, triton
from ttc.engines.embedded.kernels.launches import forest_launch, padded, scores_scale
from ttc.engines.embedded.kernels.online import attend_run, closed
from ttc.engines.embedded.kernels.plan import ITEM_FIELDS, PAGE, TILES, ForestPlan
from ttc.engines.embedded.kernels.tensors import check_attention
from ttc.errors import ConfigError

_NARROW = TILES[0]
_PARTIALS = 16  # partials that the merge holds at a time


@dataclass(frozen=True, slots=True)
class ForestScratch:
    """Partial results of one layer; all layers share the buffers."""

    out: torch.Tensor  # (members, heads, head size) fp32
    sums: torch.Tensor  # (members, heads) fp32: log-sum-exp in base 2

    @classmethod
    def allocate(cls, plan: ForestPlan, num_heads: int, head_dim: int) -> ForestScratch:
        """Allocate for as many partials as the plan's capacity holds."""
        shape = max(plan.capacity.members, 1), num_heads
        device = plan.buffer.device
        return cls(torch.empty(*shape, head_dim, device=device), torch.empty(shape, device=device))


@triton.jit
def _item(
    Q, K, V, fields, PAGES, MEMBERS, PLACES, PARTIAL, SUMS, head, q_row, window, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, WINDOWED: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    pages, num_keys, first = tl.load(fields), tl.load(fields + 1), tl.load(fields + 2)
    offset, num_rows = tl.load(fields + 3), tl.load(fields + 4)
    lanes, dims = tl.arange(0, M), tl.arange(0, D)
    member = lanes // GROUP
    live = member < num_rows
    row = tl.load(MEMBERS + offset + member, mask=live, other=0)
    places = tl.load(PLACES + row, mask=live, other=0)
    lowest = tl.min(tl.where(live, places, 2147483647), 0)
    highest = tl.max(tl.where(live, places, -1), 0)
    heads = head * GROUP + lanes % GROUP
    inside = live[:, None] & (dims < SIZE)[None]
    q = tl.load(Q + (row.to(tl.int64) * q_row + heads * SIZE)[:, None] + dims[None], mask=inside, other=0.0)
    top, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    top, total, out = attend_run(
        q, top, total, tl.zeros((M, D), tl.float32), K, V, PAGES + pages, num_keys, first, head,
        places, lowest, highest, window, scale, KV_HEADS, SIZE, PAGE, N, WINDOWED, EMULATED,
    )  # fmt: skip
    out, sums = closed(top, total, out)
    # loaded again, so that the addresses of the loads do not occupy registers throughout the loop
    offset, num_rows = tl.load(fields + 3, volatile=True), tl.load(fields + 4, volatile=True)
    live = member < num_rows
    inside = live[:, None] & (dims < SIZE)[None]
    slot = (offset + member).to(tl.int64) * (KV_HEADS * GROUP) + heads
    tl.store(PARTIAL + (slot * SIZE)[:, None] + dims[None], out, mask=inside)
    tl.store(SUMS + slot, sums, mask=live)


@triton.jit(do_not_specialize=["window"])
def decode_kernel(
    Q, K, V, COUNTS, ITEMS, PAGES, MEMBERS, PLACES, PARTIAL, SUMS, q_row, window, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, FIELDS: tl.constexpr,
    NARROW: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    WINDOWED: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """Program (item, key head). Q: (rows, heads, SIZE) with row stride `q_row`; then the plan's buffers."""
    item, head = tl.program_id(0), tl.program_id(1)
    if item < tl.load(COUNTS):
        fields = ITEMS + item * FIELDS
        if tl.load(fields + 4) * GROUP <= NARROW:
            _item(
                Q, K, V, fields, PAGES, MEMBERS, PLACES, PARTIAL, SUMS, head, q_row, window, scale,
                KV_HEADS, GROUP, SIZE, PAGE, NARROW, N, D, WINDOWED, EMULATED,
            )  # fmt: skip
        elif WIDE > NARROW:
            _item(
                Q, K, V, fields, PAGES, MEMBERS, PLACES, PARTIAL, SUMS, head, q_row, window, scale,
                KV_HEADS, GROUP, SIZE, PAGE, WIDE, N, D, WINDOWED, EMULATED,
            )  # fmt: skip


@triton.jit
def merge_kernel(
    PARTIAL, SUMS, COUNTS, STARTS, LIST, OUT,
    HEADS: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Program (row, head): sum the row's partials weighted by 2 ** (log-sum-exp), P at a time; zeros without any."""
    row, head = tl.program_id(0), tl.program_id(1)
    if row < tl.load(COUNTS + 2):
        dims = tl.arange(0, D)
        begin, end = tl.load(STARTS + row), tl.load(STARTS + row + 1)
        top, total, out = -float("inf"), 0.0, tl.zeros((D,), tl.float32)
        for at in tl.range(begin, end, P):
            index = at + tl.arange(0, P)
            slot = tl.load(LIST + index, mask=index < end, other=0).to(tl.int64) * HEADS + head
            sums = tl.load(SUMS + slot, mask=index < end, other=-float("inf"))
            inside = (index < end)[:, None] & (dims < SIZE)[None]
            part = tl.load(PARTIAL + (slot * SIZE)[:, None] + dims[None], mask=inside, other=0.0)
            new = tl.maximum(top, tl.max(sums, 0))
            pivot = tl.where(new == -float("inf"), 0.0, new)
            weights, shrink = tl.exp2(sums - pivot), tl.exp2(top - pivot)
            out = out * shrink + tl.sum(weights[:, None] * part, 0)
            total, top = total * shrink + tl.sum(weights, 0), new
        out = out / tl.where(total == 0.0, 1.0, total)
        target = OUT + (row.to(tl.int64) * HEADS + head) * SIZE + dims
        tl.store(target, out.to(OUT.dtype.element_ty), mask=dims < SIZE)


def forest_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: ForestPlan,
    out: torch.Tensor,
    scratch: ForestScratch,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Attend each row's query to the keys of all nodes that list the row; fills and returns `out`.

    Args:
        q: (rows, heads, head size), as many rows as the plan's capacity; may have a row stride (a slice of a fused
            projection).
        keys: (pages, kv heads, PAGE, head size), contiguous, in q's dtype.
        values: As keys.
        plan: What to read; rows beyond its count are not written.
        out: (rows, heads, head size), contiguous.
        scratch: For this plan's capacity.
        scale: Factor of the scores.
        window: A row attends to keys after its position - window; None is full attention.

    Raises:
        ConfigError: shapes, dtypes or layouts do not match.
    """
    heads, size, kv_heads = check_attention(q, keys, values, out, group=plan.group)
    room = plan.capacity
    if len(q) < room.rows or len(scratch.out) < room.members or scratch.out.shape[1:] != q.shape[1:]:
        have = f"q {tuple(q.shape)} and scratch {tuple(scratch.out.shape)}"
        raise ConfigError(f"{have} are too small for a plan of {room.rows} rows and {room.members} partial results")
    launch = forest_launch(q.device, plan.tile, size, q.element_size())
    options: dict[str, Any] = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    with torch.cuda.device_of(q):  # Triton launches on the current device; no effect on a CPU
        decode_kernel[(room.items, kv_heads)](
            q, keys, values, plan.counts, plan.items, plan.pages, plan.members, plan.positions,
            scratch.out, scratch.sums, q.stride(0), window or 0, scores_scale(scale),
            KV_HEADS=kv_heads, GROUP=plan.group, SIZE=size, PAGE=PAGE, FIELDS=ITEM_FIELDS, NARROW=_NARROW,
            WIDE=plan.tile, N=launch.block, D=padded(size), WINDOWED=window is not None,
            EMULATED=INTERPRETED and q.dtype == torch.bfloat16, enable_fp_fusion=True, **options,
        )  # fmt: skip
        merge_kernel[(room.rows, heads)](
            scratch.out, scratch.sums, plan.counts, plan.row_starts, plan.row_partials, out,
            HEADS=heads, SIZE=size, D=padded(size), P=_PARTIALS, num_warps=4, num_stages=2, enable_fp_fusion=True,
        )  # fmt: skip
    return out
