"""The first pass of the sampler: statistics per row and block of the vocabulary.

Of the scaled logits that the row's mask allows, lowered by its repetition penalty: the maximum, the mass sum(exp(l -
maximum)) and the first index of the maximum; if log-probabilities are requested, also the maximum, mass and sum of the
raw logits. A grid of rows x blocks occupies the device even at batch 1. Numbers per block are fp32; `draw` adds them up
in fp64.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

import triton
import triton.language as tl

from ttc.engines.embedded.device.buffers import NUM_STATS, WARPS, StepBuffers
from ttc.engines.embedded.device.rows import INVERSE, MASK, PENALTY, WANTS
from ttc.engines.embedded.device.shape import StepWeights


@triton.jit
def allowed(masks, slot, column, inside, words):
    """Which columns the mask in `slot` allows; without one (slot -1) all columns inside, and nothing is read."""
    reach = tl.where(slot >= 0, words * 32, 0)
    word = tl.load(masks + slot * words + column // 32, mask=column < reach, other=-1)
    return inside & (((word >> (column % 32)) & 1) == 1)


@triton.jit
def lowered(logits, presence, penalty, column, inside, words):
    """Logits of the columns under a repetition penalty, rounded as logits are; with 1 no presence is read."""
    raw = tl.load(logits + column, mask=inside, other=float("-inf"))
    reach = tl.where(penalty != 1.0, words * 32, 0)
    word = tl.load(presence + column // 32, mask=column < reach, other=0)
    value = raw.to(tl.float32)
    low = tl.where(value > 0.0, value / penalty, value * penalty).to(raw.dtype).to(tl.float32)
    return tl.where(((word >> (column % 32)) & 1) == 1, low, value)


@triton.jit
def _mass(value, peak):
    """sum(exp(value - peak)), 0 where all is masked."""
    return tl.sum(tl.exp(value - tl.where(peak == float("-inf"), 0.0, peak)), 0)


@triton.jit
def survey_block(
    logits,
    masks,
    presence,
    inputs,
    positions,
    stats,
    stride,
    words,
    vocab,
    INVERSE: tl.constexpr,
    PENALTY: tl.constexpr,
    WANTS: tl.constexpr,
    MASK: tl.constexpr,
    NUM_STATS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row and block; a row that is not running costs one load."""
    row, block, num_blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if tl.load(positions + row) >= 0:
        record = inputs + row * stride
        inverse = tl.load(record + INVERSE).to(tl.float32, bitcast=True)
        column = block * BLOCK + tl.arange(0, BLOCK)
        inside = column < vocab
        logits += row.to(tl.int64) * vocab
        penalty = tl.load(record + PENALTY).to(tl.float32, bitcast=True)
        value = lowered(logits, presence + row * words, penalty, column, inside, words)
        scaled = value * tl.where(inverse == 0.0, 1.0, inverse)
        scaled = tl.where(allowed(masks, tl.load(record + MASK), column, inside, words), scaled, float("-inf"))
        peak, best = tl.max(scaled, 0, return_indices=True, return_indices_tie_break_left=True)
        target = stats + row * NUM_STATS * num_blocks + block
        tl.store(target, peak)
        tl.store(target + num_blocks, _mass(scaled, peak))
        tl.store(target + 2 * num_blocks, (block * BLOCK + best).to(tl.float32))
        if tl.load(record + WANTS) != 0:
            raw = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
            raw_peak = tl.max(raw, 0)
            tl.store(target + 3 * num_blocks, raw_peak)
            tl.store(target + 4 * num_blocks, _mass(raw, raw_peak))
            tl.store(target + 5 * num_blocks, tl.sum(tl.where(inside, raw, 0.0), 0))


def survey(buffers: StepBuffers, weights: StepWeights) -> None:
    """`logits` -> `stats`."""
    rows, vocab = buffers.logits.shape
    survey_block[(rows, buffers.stats.shape[2])](
        buffers.logits,
        buffers.masks,
        buffers.presence,
        buffers.inputs,
        buffers.positions,
        buffers.stats,
        buffers.inputs.stride(0),
        buffers.masks.shape[1],
        vocab,
        INVERSE=INVERSE,
        PENALTY=PENALTY,
        WANTS=WANTS,
        MASK=MASK,
        NUM_STATS=NUM_STATS,
        BLOCK=buffers.block,
        num_warps=WARPS,
    )
