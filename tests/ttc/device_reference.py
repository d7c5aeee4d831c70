"""The kernels of `ttc.engines.embedded.device` in plain torch: the oracle of their tests.

Same signatures and buffers; no value is read by the host, so these can be captured as well. The sampler sorts.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ttc.engines.embedded.device import rows as record
from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.norm import Place
from ttc.engines.embedded.device.ops import StepOps
from ttc.engines.embedded.device.shape import PAGE, StepLayer, StepWeights


def embed(buffers: StepBuffers, weights: StepWeights) -> None:
    """See `ttc.engines.embedded.device.embed`."""
    inputs, state = buffers.inputs, buffers.state
    fresh = inputs[:, record.TICKET] != state[:, 0]
    token = torch.where(fresh, inputs[:, record.TOKEN], state[:, 1])
    position = torch.where(fresh, inputs[:, record.POSITION], state[:, 2])
    ended = torch.where(fresh, 0, state[:, 3])
    runs = (ended == 0) & (position < inputs[:, record.LIMIT])
    state.copy_(torch.stack((inputs[:, record.TICKET], token, position, ended), 1))
    offset = torch.where(runs, position - inputs[:, record.FIRST], 0).long()
    pages = inputs[:, record.FIELDS :].gather(1, offset.clamp(min=0)[:, None] // PAGE)[:, 0]
    places = torch.where(offset >= 0, pages * PAGE + offset % PAGE, inputs[:, record.SLOT])
    buffers.slots.copy_(torch.where(runs, places, -1))
    buffers.positions.copy_(torch.where(runs, position, -1))
    buffers.turn[:1].copy_(buffers.turn[1:])
    buffers.x.copy_(F.embedding(token, weights.embed).float() * weights.style.embed_scale)


def row_factor(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / rms of each row: (rows, hidden) -> (rows, 1) in fp32."""
    return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)


def norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, place: Place, *, y: torch.Tensor, out: torch.Tensor
) -> None:
    """See `ttc.engines.embedded.device.norm`."""
    if place == "behind":
        x.copy_(x.float() + y.float() * row_factor(y, eps) * weight)
        return
    if place == "before":
        x.add_(y)
    out.copy_(x.float() * row_factor(x, eps) * weight)


def activate(buffers: StepBuffers, weights: StepWeights) -> None:
    """See `ttc.engines.embedded.device.activate`."""
    both = buffers.gate_up.float()
    if weights.folded:
        both = both * row_factor(buffers.x, weights.dims.eps)
    gate, up = both.chunk(2, -1)
    silu = weights.style.activation == "silu"
    buffers.active.copy_((F.silu(gate) if silu else F.gelu(gate, approximate="tanh")) * up)


def project(
    buffers: StepBuffers, weights: StepWeights, layer: StepLayer, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """See `ttc.engines.embedded.device.project`; a row without a slot rewrites the content of its page 0."""
    dims, eps = weights.dims, weights.dims.eps
    qkv = buffers.qkv.float()
    if weights.folded:
        qkv = qkv * row_factor(buffers.x, eps)
    if layer.bias is not None:
        qkv = qkv + layer.bias
    split = (dims.num_heads, dims.num_kv_heads, dims.num_kv_heads)
    q, k, v = qkv.view(qkv.shape[0], -1, dims.head_dim).split(split, 1)  # (rows, heads, head size) each
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = q * row_factor(q, eps) * layer.q_norm, k * row_factor(k, eps) * layer.k_norm
    position = buffers.positions.clamp(min=0).long()
    cos, sin = layer.cos[position][:, None], layer.sin[position][:, None]
    q, k = (part * cos + part.roll(dims.head_dim // 2, -1) * sin for part in (q, k))
    buffers.q.copy_(q * weights.query_scale)
    for pool, part in ((keys, k), (values, v)):
        # rows that are not running write to an extra page after the pool, which is dropped at once
        spare = torch.cat((pool, torch.zeros_like(pool[:1])))
        place = torch.where(buffers.slots >= 0, buffers.slots, pool.shape[0] * PAGE).long()
        spare.index_put_((place // PAGE, _all_heads(pool), place % PAGE), part.to(pool.dtype).transpose(0, 1))
        pool.copy_(spare[:-1])


def _all_heads(pool: torch.Tensor) -> torch.Tensor:
    return torch.arange(pool.shape[1], device=pool.device)[:, None]


def uniforms_of(low: torch.Tensor, high: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """`ttc.seeds.uniforms` in int64, whose products wrap like those of uint64: int32 words and positions (rows)."""
    key = (low.long() & 0xFFFFFFFF) | (high.long() << 32)
    value = key + position.long() * _signed(0x9E3779B97F4A7C15)
    for _ in range(2):
        value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
        value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
        value = value ^ _shifted(value, 31)
    return _shifted(value, 11).double() * 2.0**-53


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _shifted(value: torch.Tensor, count: int) -> torch.Tensor:
    return (value >> count) & ((1 << (64 - count)) - 1)


def survey(buffers: StepBuffers, weights: StepWeights) -> None:
    """Does nothing: the reference's `draw` reads the logits itself."""


def draw(buffers: StepBuffers, weights: StepWeights) -> None:
    """See `ttc.engines.embedded.device.draw`."""
    inputs, vocab = buffers.inputs, buffers.logits.shape[1]
    raw = buffers.logits.float()
    inverse = _floats(inputs[:, record.INVERSE])[:, None]
    value = _lowered(buffers)
    scaled = torch.where(inverse == 0, value, value * inverse).masked_fill(~_allowed(buffers), float("-inf"))
    probs = _filtered(torch.softmax(scaled.double(), -1), inputs)
    edges = probs.cumsum(-1)
    position = buffers.positions
    share = uniforms_of(inputs[:, record.KEY], inputs[:, record.KEY + 1], position + 1)[:, None]
    place = torch.minimum((edges <= share * edges[:, -1:]).sum(-1), (edges < edges[:, -1:]).sum(-1))
    token = torch.where(inverse[:, 0] == 0, scaled.argmax(-1), place)

    runs = position >= 0
    ended = (inputs[:, record.STOPS : record.FIELDS] == token[:, None]).any(-1)
    after = torch.stack((token, position + 1, ended), 1).int()
    buffers.state[:, 1:].copy_(torch.where(runs[:, None], after, buffers.state[:, 1:]))
    _note(buffers, token, runs)
    plain = torch.log_softmax(raw, -1)
    certainty = -plain.mean(-1) - math.log(vocab)
    facts = torch.stack((plain.gather(1, token[:, None])[:, 0], certainty), 1).view(torch.int32)
    outcome = torch.cat((torch.where(runs, token, -1)[:, None].int(), facts), 1)
    num, (ahead, all_rows, _) = raw.shape[0], buffers.output.shape
    rows = buffers.turn[0].long() * all_rows + torch.arange(num, device=raw.device)
    buffers.output.view(-1, 3).index_copy_(0, rows, outcome)
    buffers.turn[1:].copy_((buffers.turn[:1] + 1) % ahead)


def _floats(words: torch.Tensor) -> torch.Tensor:
    return words.contiguous().view(torch.float32)


def _allowed(buffers: StepBuffers) -> torch.Tensor:
    """The tokens that each row's mask allows: (rows, vocab) bool."""
    slot = buffers.inputs[:, record.MASK].long()
    column = torch.arange(buffers.logits.shape[1], device=slot.device)
    words = buffers.masks[slot.clamp(min=0)][:, column // 32]
    return (((words >> (column % 32).int()) & 1) == 1) | (slot < 0)[:, None]


def _penalties(buffers: StepBuffers) -> torch.Tensor:
    return _floats(buffers.inputs[:, record.PENALTY])[:, None]


def _lowered(buffers: StepBuffers) -> torch.Tensor:
    """The logits of each row under its repetition penalty, rounded as logits are."""
    raw, penalty = buffers.logits.float(), _penalties(buffers)
    column = torch.arange(raw.shape[1], device=raw.device)
    stands = ((buffers.presence[:, column // 32] >> (column % 32).int()) & 1) == 1
    low = torch.where(raw > 0, raw / penalty, raw * penalty).to(buffers.logits.dtype).float()
    return torch.where(stands & (penalty != 1), low, raw)


def _note(buffers: StepBuffers, token: torch.Tensor, runs: torch.Tensor) -> None:
    """Add the token of each row under a penalty to its text."""
    place = (token // 32)[:, None]
    old = buffers.presence.gather(1, place)
    new = old | (torch.ones_like(old) << (token % 32).int()[:, None])
    buffers.presence.scatter_(1, place, torch.where(runs[:, None] & (_penalties(buffers) != 1), new, old))


def _filtered(probs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Zero the weights that top-k, then top-p, then min-p exclude; tokens tied with the last kept one are kept."""
    vocab = probs.shape[1]
    top_k, top_p = inputs[:, record.TOP_K], _floats(inputs[:, record.TOP_P]).double()
    limited = (top_k > 0) & (top_k < vocab)
    values = probs.sort(-1, descending=True).values
    place = torch.arange(vocab, device=probs.device)[None]
    mass = torch.where(place < torch.where(limited, top_k, vocab)[:, None], values, 0.0)
    before = mass.cumsum(-1) - mass
    whole = torch.where(limited, mass.sum(-1), 1.0)
    inside = ((before < (top_p * whole)[:, None]) | (top_p >= 1)[:, None]) & (mass > 0)
    last = values.gather(1, inside.sum(-1, keepdim=True).clamp(min=1) - 1)
    min_p = _floats(inputs[:, record.MIN_P]).double()[:, None]
    last = torch.maximum(last, min_p * values[:, :1])
    unfiltered = (~limited & (top_p >= 1))[:, None] & (min_p == 0)
    return torch.where((probs >= last) | unfiltered, probs, 0.0)


REFERENCE_OPS = StepOps(embed, project, activate, norm, survey, draw)
