"""Particle filter: n parallel paths; between steps they are randomly copied or dropped in proportion to their weights.

Puri et al. 2025, "A Probabilistic Inference Approach to Inference-Time Scaling of LLMs using Particle-Based Monte Carlo
Methods" (arXiv 2502.01618). Each new step multiplies the weight of its path by score ** (1 / temperature): the scorer
is the likelihood that the path is right so far. Sampling instead of maximising keeps some paths that a noisy scorer
ranks low. With `weight=odds` the factor is score / (1 - score), as in the paper's code: it trusts the scorer more.
Paths are resampled when their effective number falls below `ess` times their number, and then each gets an equal part
of the total weight; a finished path keeps its weight. So weights stay unbiased at any time: `select=population` votes
by them. Scores are probabilities; one at or below 0, or without a verdict, is weight 0; when no weight is left, all
paths continue equally. Left out: the look-back of particle Gibbs, which is the policy `gibbs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ttc.errors import ConfigError
from ttc.search.resampling import Scheme, copies, effective_size, log_sum, normalise
from ttc.search.tree import Dice, Resampled, Resampler

Weight: TypeAlias = Literal["score", "odds"]
MIN_DOUBT = 1e-6


@dataclass(frozen=True, slots=True)
class Particle(Resampler):
    """See the module docstring."""

    scheme: Scheme
    ess: float
    temperature: float
    weight: Weight = "score"

    def increment(self, score: float) -> float:
        """Log of score ** (1 / temperature), or of its odds."""
        return log_weight(score, self.weight) / self.temperature

    def keeps(self, log_weights: Sequence[float], width: int) -> bool:
        """Whether the effective number of paths is large enough to keep each of them once."""
        num = len(log_weights)
        return effective_size(log_weights) >= self.ess * num * (1 - 1e-9) and num == width

    def resample(self, log_weights: Sequence[float], width: int, depth: int, dice: Dice) -> Resampled:
        """Copy in proportion to the weights, or keep all while enough of them count."""
        num = len(log_weights)
        if self.keeps(log_weights, width):
            return Resampled((1,) * num, tuple(log_weights))
        counts = copies(self.scheme, normalise(log_weights), width, dice)
        return Resampled(tuple(counts), (log_sum(log_weights) - math.log(width),) * num)


def particle(
    *, scheme: Scheme = "systematic", ess: float = 1.0, temperature: float = 1.0, weight: Weight = "score"
) -> Resampler:
    """Make the policy.

    Args:
        scheme: multinomial, stratified, systematic or residual; see `ttc.search.resampling`.
        ess: resample below this share of effective paths; 1 after every step, 0 never.
        temperature: above 1 the scorer is trusted less.
        weight: score, or odds, by which a step multiplies the weight of its path.
    """
    check(ess, temperature)
    return Particle(scheme, ess, temperature, weight)


def log_weight(score: float, weight: Weight) -> float:
    """Return log score, or log of its odds; -inf at or below 0, and finite odds for a score of 1 or more."""
    if score <= 0:
        return -math.inf
    return math.log(score) if weight == "score" else math.log(score) - math.log(max(1 - score, MIN_DOUBT))


def check(ess: float, temperature: float) -> None:
    """Refuse an `ess` outside [0, 1] and a temperature that is not positive."""
    if not 0 <= ess <= 1:
        raise ConfigError(f"ess must be in [0, 1], got {ess}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"temperature must be > 0, got {temperature}")
