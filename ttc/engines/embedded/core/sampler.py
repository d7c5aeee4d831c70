"""Sample one token per row by inverse CDF, with the uniform number that belongs to (draw key, token position).

Biases and penalties are applied to the logits first, then grammars mask tokens. Order of the filters: temperature, then
top-k, then top-p, then min-p (Nguyen et al. 2024, arXiv 2407.01082), as in transformers and SGLang; tokens tied with
the last kept one are kept. The log-probability and self-certainty of the unmodified model (Kang et al. 2025, arXiv
2502.18581: KL(uniform || model)) take one more pass over the logits. Exponential noise (Gumbel) would need one random
number per vocabulary entry; this needs one per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ttc.core import Top
from ttc.engines.shared.compute import native
from ttc.seeds import uniforms

if TYPE_CHECKING:
    from ttc.engines.embedded.core.guide import Guide

_BLOCK = 256
"""Probabilities are summed in blocks of this many tokens first, since a long cumulative sum is slow on a CPU."""


_COLDEST = 1e-30
"""Below this temperature, scaled logits would overflow fp32; far above it sampling is already greedy."""


def heat(temperature: float) -> float:
    """The temperature to divide by: 0 (greedy) where it is below the smallest that fp32 allows."""
    return temperature if temperature >= _COLDEST else 0.0


class Penalty:
    """Bias, repetition, presence and frequency penalties on the logits of one draw, in this order, as in vLLM.

    A step costs a few operations on the distinct tokens of the text, which are collected once and then updated.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        drawn: Sequence[int],
        factor: float,
        once: float,
        each: float,
        bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Follow a draw, whose tokens `drawn` will be.

        Args:
            prompt: token ids before the draw.
            drawn: its token ids; may grow between calls of `lower`.
            factor: divides logits above 0, and multiplies others, of tokens of prompt or draw (Keskar et al. 2019).
            once: is subtracted from the logit of each token that was drawn (presence penalty).
            each: the same, for each time that it was drawn (frequency penalty).
            bias: is added to the logits of token ids; ids beyond the vocabulary are ignored.
        """
        ids = list(dict.fromkeys(prompt))
        self._drawn, self._num_read = drawn, 0
        self._factor, self._once, self._each, self._bias = factor, once, each, dict(bias)
        self._places = {token: place for place, token in enumerate(ids)}
        self._ids: npt.NDArray[np.int64] = np.array([*ids, *[0] * _SPARE], np.int64)
        self._counts: npt.NDArray[np.float32] = np.zeros(len(self._ids), np.float32)

    def lower(self, logits: torch.Tensor) -> None:
        """Lower the logits (V) of the next token in place."""
        self._read()
        biased = [token for token in self._bias if token < len(logits)]
        if biased:
            values = torch.tensor([self._bias[token] for token in biased], device=logits.device)
            logits[biased] += values.to(logits.dtype)
        history = self._ids[: len(self._places)], self._counts[: len(self._places)]
        kernels = native(logits.device, logits.dtype)
        if kernels is not None:
            kernels.lower(kernels.array(logits), *history, self._factor, self._once, self._each)
            return
        ids, counts = (torch.from_numpy(each).to(logits.device) for each in history)
        values = logits[ids].float()
        values = torch.where(values > 0, values / self._factor, values * self._factor)
        logits[ids] = (values - self._once * (counts > 0) - self._each * counts).to(logits.dtype)

    def _read(self) -> None:
        """Count what was drawn since the last call."""
        for token in self._drawn[self._num_read :]:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids, self._counts = np.resize(self._ids, 2 * place), np.resize(self._counts, 2 * place)
                self._counts[place:] = 0
            self._ids[place] = token
            self._counts[place] += 1
        self._num_read = len(self._drawn)


_SPARE = 64
"""Places for tokens that are not in the prompt, at first."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Settings per row, all of shape (B); `keys` are uint64, positions absolute.

    `top_k` 0, `top_p` 1 and `min_p` 0 mean off.
    """

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    min_p: npt.NDArray[np.float32]
    keys: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.uint64]
    wants_logprobs: bool
    num_top: tuple[int, ...] = ()
    """How many of the likeliest tokens each row reports beside its own; empty where none does."""
    penalties: tuple[Penalty | None, ...] = ()
    """Penalties of each row; empty where none has any."""
    guides: tuple[Guide | None, ...] = ()
    """The grammar state of each row; empty where none has any."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Token ids (B); log-probabilities and self-certainties (B) in nats, or None when not requested."""

    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32] | None
    certainty: npt.NDArray[np.float32] | None
    tops: tuple[Top, ...] = ()
    """The likeliest tokens of each row, with log-probabilities; empty when no row requests them."""


def sample(logits: torch.Tensor, rows: Rows) -> SampledTokens:
    """Sample from logits (B, V) of any float dtype."""
    drawn = _draw(logits, rows)
    return drawn if not rows.num_top or drawn.logprobs is None else _with_tops(drawn, drawn.logprobs, logits, rows)


def _with_tops(
    drawn: SampledTokens, logprobs: npt.NDArray[np.float32], logits: torch.Tensor, rows: Rows
) -> SampledTokens:
    """Add the likeliest tokens, computed row by row, so that no row's numbers depend on the rest of the batch."""
    tops: list[Top] = [()] * len(rows.num_top)
    for row, k in enumerate(rows.num_top):
        if k:
            plain = torch.log_softmax(logits[row].float(), -1)
            values, ids = plain.topk(min(k, len(plain)))
            tops[row] = tuple(zip(ids.tolist(), values.tolist(), strict=True))
            # where the sampled token is the likeliest, both report the same number
            logprobs[row] = plain[int(drawn.tokens[row])].item()
    return replace(drawn, tops=tuple(tops))


def _draw(logits: torch.Tensor, rows: Rows) -> SampledTokens:
    kernels = native(logits.device, logits.dtype)
    if kernels is not None:
        return _compiled(logits, rows, kernels)
    plain = logits.float()
    logits = _adjusted(plain, rows)
    greedy = rows.temperature == 0
    if greedy.all():
        tokens = logits.argmax(-1)  # the first of equal maxima
    else:
        probs = _probabilities(logits, rows, greedy)
        tokens = _invert(probs, uniforms(rows.keys, rows.positions))
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy).to(logits.device), logits.argmax(-1), tokens)
    ids = tokens.cpu().numpy()
    if not rows.wants_logprobs:
        return SampledTokens(ids, None, None)
    plain = torch.log_softmax(plain, -1)
    logprobs_of_ids = plain.gather(1, tokens[:, None]).squeeze(1)
    certainty = -plain.mean(-1) - math.log(plain.shape[1])
    return SampledTokens(ids, logprobs_of_ids.cpu().numpy(), certainty.cpu().numpy())


def _compiled(logits: torch.Tensor, rows: Rows, kernels: ModuleType) -> SampledTokens:
    """The same directly on the logits, compiled: no probabilities are stored and nothing is sorted."""
    num, vocab = logits.shape
    greedy = rows.temperature == 0
    inverse = np.where(greedy, 0.0, 1.0 / np.where(greedy, 1.0, rows.temperature)).astype(np.float32)
    shares = uniforms(rows.keys, rows.positions)
    tokens, edges = np.empty(num, np.int64), np.empty((num, -(-vocab // _BLOCK)))
    cuts = (rows.top_k, rows.top_p, rows.min_p)
    kernels.draw(num, logits.numel(), kernels.array(_adjusted(logits, rows)), inverse, *cuts, shares, edges, tokens)
    if not rows.wants_logprobs:
        return SampledTokens(tokens, None, None)
    logprobs, certainty = np.empty((2, num), np.float32)
    kernels.survey(num, logits.numel(), kernels.array(logits), tokens, logprobs, certainty)
    return SampledTokens(tokens, logprobs, certainty)


def _adjusted(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """`logits` (B, V) after each row's penalty, with tokens that its guide forbids masked."""
    if not (rows.penalties or rows.guides):
        return logits
    logits = logits.clone()
    for row, penalty in zip(logits, rows.penalties, strict=False):  # penalties or guides may be empty
        if penalty is not None:
            penalty.lower(row)
    for row, guide in zip(logits, rows.guides, strict=False):
        if guide is not None:
            row.masked_fill_(~torch.from_numpy(guide.mask(len(row))).to(row.device), -math.inf)
    return logits


def _probabilities(logits: torch.Tensor, rows: Rows, greedy: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Sampling weights (B, V); rows need not sum to exactly 1."""
    if not (rows.temperature == 1).all():
        inverse = 1.0 / np.where(greedy, 1.0, rows.temperature)
        logits = logits * torch.from_numpy(inverse.astype(np.float32)).to(logits.device)[:, None]
    probs = torch.softmax(logits, -1)
    filtered = np.flatnonzero(((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)) & ~greedy)
    if len(filtered):
        index = torch.from_numpy(filtered).to(logits.device)
        probs[index] = _filter(probs[index], rows.top_k[filtered], rows.top_p[filtered], rows.min_p[filtered])
    return probs


def _filter(
    probs: torch.Tensor, top_k: npt.NDArray[np.int64], top_p: npt.NDArray[np.float32], min_p: npt.NDArray[np.float32]
) -> torch.Tensor:
    """Zero the weights that the filters exclude, by a threshold per row; widens the sorted part until it suffices."""
    vocab = probs.shape[1]
    limit = torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, vocab), vocab)).to(probs.device)[:, None]
    share = torch.from_numpy(top_p).to(probs.device)[:, None].double()
    width = min(vocab, max(256, int(top_k.max())))
    while True:
        values = probs.topk(width, -1).values
        mass = values.double().masked_fill(torch.arange(width, device=probs.device)[None] >= limit, 0.0)
        before = mass.cumsum(-1) - mass  # (B, width): the mass of all likelier tokens
        limited = (top_k > 0) & (top_k <= width)
        total = torch.where(torch.from_numpy(limited).to(probs.device)[:, None], mass.sum(-1, keepdim=True), 1.0)
        inside = (before < share * total) & (mass > 0)
        # The sorted part suffices when its last token is excluded, or top-k ends within it.
        if width == vocab or bool((~inside[:, -1:] | (limit <= width)).all()):
            break
        width = min(vocab, width * 8)
    count = inside.sum(-1, keepdim=True).clamp_(min=1)
    least = torch.from_numpy(min_p).to(probs.device)[:, None] * values[:, :1]
    threshold = torch.maximum(values.gather(1, count - 1), least)
    return probs.masked_fill(probs < threshold, 0.0)


def _invert(probs: torch.Tensor, uniform: npt.NDArray[np.float64]) -> torch.Tensor:
    """The first token whose cumulative weight exceeds uniform * total: first the block, then the token in it."""
    num, vocab = probs.shape
    share = torch.from_numpy(uniform).to(probs.device)[:, None]
    if vocab <= _BLOCK:
        inner = probs.double().cumsum(-1)
        return _place(inner, share * inner[:, -1:])
    extra = -vocab % _BLOCK
    if extra:
        probs = torch.nn.functional.pad(probs, (0, extra))
    blocks = probs.view(num, -1, _BLOCK)
    edges = blocks.sum(-1).double().cumsum(-1)  # (B, V / block)
    goal = share * edges[:, -1:]
    block = (edges <= goal).sum(-1, keepdim=True).clamp_(max=edges.shape[1] - 1)
    rest = goal - torch.where(block > 0, edges.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inner = blocks[torch.arange(num, device=probs.device), block[:, 0]].double().cumsum(-1)
    return block[:, 0] * _BLOCK + _place(inner, rest)


def _place(inner: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """Per row, the first token whose cumulative weight exceeds `goal`, or the last token with weight after rounding."""
    place = (inner <= goal).sum(-1)
    last = (inner < inner[:, -1:]).sum(-1)
    return torch.minimum(place, last)
