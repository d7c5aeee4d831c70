"""The kernel after the product of q, k and v: row factor, bias, q/k norms, RoPE, scale, writing keys and values.

One program per row and key head, which also processes the query heads of its group. RoPE in the half-split form of Su
et al. 2021 (arXiv 2104.09864), with the tables of `rope_tables`: the first half of the sine has the minus sign.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.norm import row_factor
from ttc.engines.embedded.device.shape import PAGE, StepLayer, StepWeights


@triton.jit
def _halves(source, bias, at, inside, factor, HALF: tl.constexpr, BIAS: tl.constexpr):
    """Both halves of heads at offsets `at`, scaled, plus bias."""
    low = tl.load(source + at, mask=inside, other=0.0).to(tl.float32) * factor
    high = tl.load(source + at + HALF, mask=inside, other=0.0).to(tl.float32) * factor
    if BIAS:
        low += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        high += tl.load(bias + at + HALF, mask=inside, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def _turn(low, high, norm, cos, sin, column, inside, eps, HALF: tl.constexpr, NORM: tl.constexpr):
    """Norm over the head where the family has it, then RoPE; low and high (heads, columns)."""
    if NORM:
        total = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        factor = (1.0 / tl.sqrt(total / (2 * HALF) + eps))[:, None]
        low *= factor * tl.load(norm + column, mask=inside, other=0.0)
        high *= factor * tl.load(norm + HALF + column, mask=inside, other=0.0)
    cos_low = tl.load(cos + column, mask=inside, other=0.0)
    cos_high = tl.load(cos + HALF + column, mask=inside, other=0.0)
    sin_low = tl.load(sin + column, mask=inside, other=0.0)
    sin_high = tl.load(sin + HALF + column, mask=inside, other=0.0)
    return low * cos_low + high * sin_low, high * cos_high + low * sin_high


@triton.jit
def project_group(
    qkv,
    x,
    bias,
    q_norm,
    k_norm,
    cos,
    sin,
    positions,
    slots,
    q,
    keys,
    values,
    hidden,
    eps,
    scale,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HALF_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    FOLDED: tl.constexpr,
):
    """Qkv (rows, (GROUP + 2) * KV_HEADS * 2 HALF) -> q (rows, heads, 2 HALF) and one slot of keys and values."""
    SIZE: tl.constexpr = 2 * HALF
    row, head = tl.program_id(0), tl.program_id(1)
    factor = 1.0
    if FOLDED:
        factor = row_factor(x + row * hidden, hidden, eps, 1024)
    position = tl.maximum(tl.load(positions + row), 0).to(tl.int64)
    cos += position * SIZE
    sin += position * SIZE
    qkv += row * (GROUP + 2) * KV_HEADS * SIZE
    column = tl.arange(0, HALF_PAD)[None, :]

    heads = tl.arange(0, HEADS_PAD)[:, None]
    inside = (heads < GROUP) & (column < HALF)
    at = (head * GROUP + heads) * SIZE + column
    low, high = _halves(qkv, bias, at, inside, factor, HALF, BIAS)
    low, high = _turn(low, high, q_norm, cos, sin, column, column < HALF, eps, HALF, NORM)
    q += row * GROUP * KV_HEADS * SIZE
    tl.store(q + at, (low * scale).to(q.dtype.element_ty), mask=inside)
    tl.store(q + at + HALF, (high * scale).to(q.dtype.element_ty), mask=inside)

    slot = tl.load(slots + row)
    writes = column < tl.where(slot >= 0, HALF, 0)
    place = ((slot // PAGE).to(tl.int64) * KV_HEADS + head) * PAGE * SIZE + slot % PAGE * SIZE + column
    at = (GROUP * KV_HEADS + head) * SIZE + column
    low, high = _halves(qkv, bias, at, column < HALF, factor, HALF, BIAS)
    low, high = _turn(low, high, k_norm, cos, sin, column, column < HALF, eps, HALF, NORM)
    tl.store(keys + place, low.to(keys.dtype.element_ty), mask=writes)
    tl.store(keys + place + HALF, high.to(keys.dtype.element_ty), mask=writes)
    low, high = _halves(qkv, bias, at + KV_HEADS * SIZE, column < HALF, factor, HALF, BIAS)
    tl.store(values + place, low.to(values.dtype.element_ty), mask=writes)
    tl.store(values + place + HALF, high.to(values.dtype.element_ty), mask=writes)


def project(
    buffers: StepBuffers, weights: StepWeights, layer: StepLayer, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """`qkv` -> `q`, and one slot of each running row in keys, values (num_pages, kv heads, PAGE, head size)."""
    dims, half = weights.dims, weights.dims.head_dim // 2
    absent = layer.cos
    project_group[(buffers.x.shape[0], dims.num_kv_heads)](
        buffers.qkv,
        buffers.x,
        absent if layer.bias is None else layer.bias,
        absent if layer.q_norm is None else layer.q_norm,
        absent if layer.k_norm is None else layer.k_norm,
        layer.cos,
        layer.sin,
        buffers.positions,
        buffers.slots,
        buffers.q,
        keys,
        values,
        dims.hidden,
        dims.eps,
        weights.query_scale,
        GROUP=dims.group,
        KV_HEADS=dims.num_kv_heads,
        HALF=half,
        HEADS_PAD=triton.next_power_of_2(dims.group),
        HALF_PAD=triton.next_power_of_2(half),
        PAGE=PAGE,
        BIAS=layer.bias is not None,
        NORM=layer.q_norm is not None,
        FOLDED=weights.folded,
    )
