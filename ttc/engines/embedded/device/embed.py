"""The first node of a step: which rows run, the slots of their keys, and the embedding of their newest token.

One program per row. A row is new if its record has another ticket than its state. A row runs until a stop id ends it or
its limit is reached; one that does not run has position -1 and slot -1, writes no keys and samples nothing.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

import triton
import triton.language as tl

from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.rows import FIELDS, SLOT
from ttc.engines.embedded.device.shape import PAGE, StepWeights


@triton.jit
def embed_row(
    inputs,
    state,
    positions,
    slots,
    turn,
    table,
    x,
    scale,
    stride,
    hidden,
    FIELDS: tl.constexpr,
    SLOT: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Read the host's record of the row, then copy its embedding."""
    row = tl.program_id(0)
    record, own = inputs + row * stride, state + row * 4
    ticket = tl.load(record)
    fresh = ticket != tl.load(own)
    token = tl.where(fresh, tl.load(record + 1), tl.load(own + 1))
    position = tl.where(fresh, tl.load(record + 2), tl.load(own + 2))
    ended = tl.where(fresh, 0, tl.load(own + 3))
    runs = (ended == 0) & (position < tl.load(record + 4))
    tl.store(own, ticket)
    tl.store(own + 1, token)
    tl.store(own + 2, position)
    tl.store(own + 3, ended)

    offset = position - tl.load(record + 3)  # -1: the token has a slot of its own
    page = tl.load(record + FIELDS + offset // PAGE, mask=runs & (offset >= 0), other=0)
    place = tl.where(offset >= 0, page * PAGE + offset % PAGE, tl.load(record + SLOT))
    tl.store(slots + row, tl.where(runs, place, -1))
    tl.store(positions + row, tl.where(runs, position, -1))
    if row == 0:
        tl.store(turn, tl.load(turn + 1))

    source = table + token.to(tl.int64) * hidden
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(source + column, mask=column < hidden, other=0.0).to(tl.float32) * scale
        tl.store(x + row * hidden + column, value.to(x.dtype.element_ty), mask=column < hidden)


def embed(buffers: StepBuffers, weights: StepWeights) -> None:
    """Launch over all rows of `buffers`."""
    rows, hidden = buffers.x.shape
    embed_row[(rows,)](
        buffers.inputs,
        buffers.state,
        buffers.positions,
        buffers.slots,
        buffers.turn,
        weights.embed,
        buffers.x,
        weights.style.embed_scale,
        buffers.inputs.stride(0),
        hidden,
        FIELDS=FIELDS,
        SLOT=SLOT,
        PAGE=PAGE,
        BLOCK=1024,
    )
