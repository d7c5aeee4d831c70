"""act(gate) * up after their fused product: SiLU (Llama, Qwen, Mistral) or tanh-GELU (Gemma)."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

import triton
import triton.language as tl

from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.norm import row_factor
from ttc.engines.embedded.device.shape import StepWeights


@triton.jit
def activate_block(
    gate_up, x, out, hidden, intermediate, eps, GELU: tl.constexpr, FOLDED: tl.constexpr, BLOCK: tl.constexpr
):
    """One program per row and block of intermediate columns."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < intermediate
    factor = 1.0
    if FOLDED:
        factor = row_factor(x + row * hidden, hidden, eps, 1024)
    gate_up += row * 2 * intermediate
    gate = tl.load(gate_up + column, mask=inside, other=0.0).to(tl.float32) * factor
    up = tl.load(gate_up + intermediate + column, mask=inside, other=0.0).to(tl.float32) * factor
    inner = gate
    if GELU:  # 0.5 (1 + tanh z) = sigmoid(2 z)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    value = gate * tl.sigmoid(inner) * up
    tl.store(out + row * intermediate + column, value.to(out.dtype.element_ty), mask=inside)


def activate(buffers: StepBuffers, weights: StepWeights) -> None:
    """`gate_up` -> `active`."""
    rows, intermediate = buffers.active.shape
    block = 1024
    activate_block[(rows, triton.cdiv(intermediate, block))](
        buffers.gate_up,
        buffers.x,
        buffers.active,
        weights.dims.hidden,
        intermediate,
        weights.dims.eps,
        GELU=weights.style.activation == "gelu",
        FOLDED=weights.folded,
        BLOCK=block,
    )
