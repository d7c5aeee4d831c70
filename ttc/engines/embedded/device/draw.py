"""The second pass of the sampler: one token per row, its log-probability if requested, stop test, next position.

Its definition is that of `ttc.engines.embedded.core.sampler`: repetition penalty, temperature, then top-k, then top-p,
then min-p; tokens tied with the last kept one are kept; the inverse of the cumulative weights at the row's own uniform
number. There is no sort: the weight of the last kept token is the largest t for which the tokens with weight >= t reach
the wanted count or mass. Both decrease with t, so t is found by a search over the bit patterns of fp32, eight pivots a
pass, ten passes. A pass skips blocks whose maximum is below the remaining interval: after a few passes, nearly all.
Rows without top-k and top-p skip the search; min-p needs none, since the highest weight is 1. Sums over blocks are
fp64, in fixed order without atomics, so a row's draw never depends on other rows. Under a penalty, the token is added
to the row's text.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ttc.engines.embedded.device.buffers import NUM_STATS, WARPS, StepBuffers
from ttc.engines.embedded.device.rows import (
    INVERSE,
    KEY,
    MASK,
    MIN_P,
    NUM_STOPS,
    PENALTY,
    STOPS,
    TOP_K,
    TOP_P,
    WANTS,
)
from ttc.engines.embedded.device.shape import StepWeights
from ttc.engines.embedded.device.survey import allowed, lowered
from ttc.engines.embedded.device.uniform import uniform_of

PIVOTS = 8
"""Weights tested per pass of the search: three bits of the threshold."""


LAUNCH = {"num_warps": WARPS, "maxnreg": 128}
"""By default the assembler would use 80 registers, and spill."""


class _Row(NamedTuple):
    """What the functions below read of a row: one argument of theirs, which the compiler takes apart."""

    logits: Any
    """Its own; the weight of token v is exp(inverse * logits[v] - top), 0 where masked."""
    masks: Any
    slot: Any
    """Its mask."""
    presence: Any
    """The tokens of its text, to which `penalty` applies."""
    penalty: Any
    words: Any
    """Of a mask, and of `presence`."""
    vocab: Any
    inverse: Any
    top: Any
    peaks: Any
    """The scaled maximum of each of `num_blocks` blocks."""
    num_blocks: Any


@triton.jit
def _weights(row, block, BLOCK: tl.constexpr):
    """The weights of a block."""
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < row.vocab
    value = lowered(row.logits, row.presence, row.penalty, column, inside, row.words)
    weight = tl.exp(value * row.inverse - row.top)
    return tl.where(allowed(row.masks, row.slot, column, inside, row.words), weight, 0.0)


@triton.jit
def _may_reach(row, block, floor):
    """Whether a token of a block may have a weight >= `floor`."""
    # the margin covers a product and a difference that one kernel rounds once and another twice
    return tl.exp(tl.load(row.peaks + block) - row.top) * 1.001 >= floor


@triton.jit
def _above(row, pivots, floor, COUNT: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr):
    """fp64 (PIVOTS): the mass (or COUNT) of tokens with weight >= each pivot; `floor` is the smallest pivot."""
    total = tl.zeros((PIVOTS,), tl.float64)
    for block in range(0, row.num_blocks):
        if _may_reach(row, block, floor):
            weight = _weights(row, block, BLOCK)
            unit = tl.full((BLOCK,), 1.0, tl.float32) if COUNT else weight
            part = tl.sum(tl.where(weight[:, None] >= pivots[None, :], unit[:, None], 0.0), 0)
            total += part.to(tl.float64)
    return total


@triton.jit
def _threshold(row, goal, low, COUNT: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr):
    """Bits of the largest weight t such that tokens with weight >= t reach `goal`; at least `low`."""
    high = tl.full((), 0x3F900000, tl.int32)  # 1.125: above every weight
    number = tl.arange(0, PIVOTS)
    while high - low > 1:
        width = (high - low + PIVOTS - 1) // PIVOTS
        bits = low + width * number
        pivots, floor = bits.to(tl.float32, bitcast=True), low.to(tl.float32, bitcast=True)
        total = _above(row, pivots, floor, COUNT, BLOCK, PIVOTS)
        # The first pivot is known to suffice; rounding in the sums must not exclude it.
        enough = ((total >= goal) | (number == 0)) & (bits < high)
        steps = tl.sum(enough.to(tl.int32), 0)
        low, high = low + width * (steps - 1), tl.minimum(low + width * steps, high)
    return low


@triton.jit
def _floor(row, mass, top_k, top_p, BLOCK: tl.constexpr, PIVOTS: tl.constexpr):
    """The smallest weight that passes top-k and then top-p."""
    low = tl.full((), 0, tl.int32)
    if (top_k > 0) & (top_k < row.vocab):
        goal = top_k.to(tl.float64)
        low = _threshold(row, goal, low, True, BLOCK, PIVOTS)
        # the mass of exactly k tokens: those above the threshold, and as many tied with it as are missing
        last, next_up = low.to(tl.float32, bitcast=True), (low + 1).to(tl.float32, bitcast=True)
        pivots = tl.zeros((1,), tl.float32) + next_up
        num = tl.sum(_above(row, pivots, last, True, BLOCK, 1), 0)
        mass = tl.sum(_above(row, pivots, last, False, BLOCK, 1), 0)
        mass += (goal - num) * last.to(tl.float64)
    if top_p < 1.0:
        low = _threshold(row, top_p.to(tl.float64) * mass, low, False, BLOCK, PIVOTS)
    return low.to(tl.float32, bitcast=True)


@triton.jit
def _sample(
    row,
    record,
    position,
    KEY: tl.constexpr,
    TOP_P: tl.constexpr,
    TOP_K: tl.constexpr,
    MIN_P: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The first token whose cumulative weight exceeds uniform * total: first the block, then the token in it."""
    number = tl.arange(0, BLOCKS)
    peak = tl.load(row.peaks + number, mask=number < row.num_blocks, other=float("-inf"))
    mass = tl.load(row.peaks + row.num_blocks + number, mask=number < row.num_blocks, other=0.0)
    mass *= tl.exp(peak - row.top)
    top_p, top_k = tl.load(record + TOP_P).to(tl.float32, bitcast=True), tl.load(record + TOP_K)
    floor = tl.load(record + MIN_P).to(tl.float32, bitcast=True)
    if (top_p < 1.0) | (top_k > 0):
        floor = tl.maximum(floor, _floor(row, tl.sum(mass.to(tl.float64), 0), top_k, top_p, BLOCK, PIVOTS))
    if floor > 0.0:
        mass = tl.zeros((BLOCKS,), tl.float32)
        for block in range(0, row.num_blocks):
            if _may_reach(row, block, floor):
                weight = _weights(row, block, BLOCK)
                mass = tl.where(number == block, tl.sum(tl.where(weight >= floor, weight, 0.0), 0), mass)

    edges = tl.cumsum(mass.to(tl.float64), 0)
    whole = tl.max(edges, 0)
    goal = tl.sum(uniform_of(record + KEY, position), 0) * whole
    block = tl.minimum(tl.sum((edges <= goal).to(tl.int32), 0), tl.sum((edges < whole).to(tl.int32), 0))
    rest = goal - tl.max(tl.where(number < block, edges, 0.0), 0)
    weight = _weights(row, block, BLOCK)
    inner = tl.cumsum(tl.where(weight >= floor, weight, 0.0).to(tl.float64), 0)
    place = tl.sum((inner <= rest).to(tl.int32), 0)
    last = tl.sum((inner < tl.max(inner, 0)).to(tl.int32), 0)
    return block * BLOCK + tl.minimum(place, last)


@triton.jit
def draw_row(
    logits,
    masks,
    presence,
    stats,
    inputs,
    state,
    positions,
    turn,
    output,
    stride,
    words,
    vocab,
    ahead,
    all_rows,
    num_blocks,
    INVERSE: tl.constexpr,
    TOP_P: tl.constexpr,
    TOP_K: tl.constexpr,
    MIN_P: tl.constexpr,
    PENALTY: tl.constexpr,
    KEY: tl.constexpr,
    WANTS: tl.constexpr,
    MASK: tl.constexpr,
    STOPS: tl.constexpr,
    NUM_STOPS: tl.constexpr,
    NUM_STATS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """One program per row; a row that is not running outputs -1."""
    row = tl.program_id(0)
    step, position = tl.load(turn), tl.load(positions + row)
    target = output + (step * all_rows + row) * 3
    if row == 0:
        tl.store(turn + 1, (step + 1) % ahead)
    if position < 0:
        tl.store(target, -1)
    else:
        record, own = inputs + row * stride, state + row * 4
        logits += row.to(tl.int64) * vocab
        presence += row * words
        stats += row * NUM_STATS * num_blocks
        number = tl.arange(0, BLOCKS)
        inverse, slot = tl.load(record + INVERSE).to(tl.float32, bitcast=True), tl.load(record + MASK)
        penalty = tl.load(record + PENALTY).to(tl.float32, bitcast=True)
        peak = tl.load(stats + number, mask=number < num_blocks, other=float("-inf"))
        top, best = tl.max(peak, 0, return_indices=True, return_indices_tie_break_left=True)
        token = tl.load(stats + 2 * num_blocks + best).to(tl.int32)
        if inverse != 0.0:
            scaled = _Row(logits, masks, slot, presence, penalty, words, vocab, inverse, top, stats, num_blocks)
            token = _sample(scaled, record, position + 1, KEY, TOP_P, TOP_K, MIN_P, BLOCK, BLOCKS, PIVOTS)
        ids = tl.load(record + STOPS + tl.arange(0, NUM_STOPS))
        tl.store(own + 1, token)
        tl.store(own + 2, position + 1)
        tl.store(own + 3, (tl.sum((ids == token).to(tl.int32), 0) > 0).to(tl.int32))
        tl.store(target, token)
        if penalty != 1.0:
            place = presence + token // 32
            tl.store(place, tl.load(place) | (tl.full((), 1, tl.int32) << (token % 32)))
        if tl.load(record + WANTS) != 0:
            inside = number < num_blocks
            raw_peak = tl.load(stats + 3 * num_blocks + number, mask=inside, other=float("-inf"))
            raw_top = tl.max(raw_peak, 0)
            raw_mass = tl.load(stats + 4 * num_blocks + number, mask=inside, other=0.0) * tl.exp(raw_peak - raw_top)
            log_mass = raw_top + tl.log(tl.sum(raw_mass, 0))
            mean = tl.sum(tl.load(stats + 5 * num_blocks + number, mask=inside, other=0.0), 0) / vocab
            logprob = tl.load(logits + token).to(tl.float32) - log_mass
            certainty = log_mass - mean - tl.log(vocab.to(tl.float32))
            tl.store(target + 1, logprob.to(tl.int32, bitcast=True))
            tl.store(target + 2, certainty.to(tl.int32, bitcast=True))


def draw(buffers: StepBuffers, weights: StepWeights) -> None:
    """`logits`, `stats` -> one entry of `output`, and the next state of each row."""
    rows, vocab = buffers.logits.shape
    ahead, all_rows, _ = buffers.output.shape
    num_blocks = buffers.stats.shape[2]
    draw_row[(rows,)](
        buffers.logits,
        buffers.masks,
        buffers.presence,
        buffers.stats,
        buffers.inputs,
        buffers.state,
        buffers.positions,
        buffers.turn,
        buffers.output,
        buffers.inputs.stride(0),
        buffers.masks.shape[1],
        vocab,
        ahead,
        all_rows,
        num_blocks,
        INVERSE=INVERSE,
        TOP_P=TOP_P,
        TOP_K=TOP_K,
        MIN_P=MIN_P,
        PENALTY=PENALTY,
        KEY=KEY,
        WANTS=WANTS,
        MASK=MASK,
        STOPS=STOPS,
        NUM_STOPS=NUM_STOPS,
        NUM_STATS=NUM_STATS,
        BLOCK=buffers.block,
        BLOCKS=triton.next_power_of_2(num_blocks),
        PIVOTS=PIVOTS,
        **LAUNCH,
    )
