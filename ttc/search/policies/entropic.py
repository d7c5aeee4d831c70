"""Entropic particle filter: early on, resampling is tempered so that the population stays diverse.

After Giannone et al. 2025, "Mitigating Premature Exploitation in Particle-based Monte Carlo for Inference-Time Scaling"
(arXiv 2510.05825): reward models are over-confident early, and a particle filter that believes them keeps copies of one
path. Here copies are drawn in proportion to weight ** b, where b <= 1 is the largest power at which the entropy of the
shares is at least `floor` of its maximum; the floor falls linearly to 0 over `horizon` steps (the paper: by the
effective size). The weights compensate for the tempering, so they stay unbiased (see `particle`). Left out: the
look-ahead of the paper, which costs further tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ttc.errors import ConfigError
from ttc.search.policies.particle import Particle, check
from ttc.search.resampling import Scheme, copies, log_sum, normalise
from ttc.search.tree import Dice, Resampled, Resampler


@dataclass(frozen=True, slots=True)
class Entropic(Particle):
    """See the module docstring."""

    floor: float = field(kw_only=True)
    horizon: int = field(kw_only=True)

    def resample(self, log_weights: Sequence[float], width: int, depth: int, dice: Dice) -> Resampled:
        """Copy by tempered weights; the copies keep the remaining part of the weight."""
        num = len(log_weights)
        if self.keeps(log_weights, width):
            return Resampled((1,) * num, tuple(log_weights))
        shares = tempered(log_weights, self.floor * max(1 - depth / self.horizon, 0.0))
        counts = copies(self.scheme, shares, width, dice)
        dead = log_sum(log_weights) == -math.inf
        carried = [
            -math.inf if dead or not share else weight - math.log(share * width)
            for weight, share in zip(log_weights, shares, strict=True)
        ]
        return Resampled(tuple(counts), tuple(carried))


def tempered(log_weights: Sequence[float], floor: float) -> list[float]:
    """Return the shares weight ** b for the largest b in [0, 1] with at least `floor` of the highest entropy."""
    target = floor * math.log(len(log_weights))
    low, high = 0.0, 1.0
    if entropy(normalise(log_weights)) >= target:
        return normalise(log_weights)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(_powered(log_weights, middle)) >= target else (low, middle)
    return _powered(log_weights, low)


def entropy(shares: Sequence[float]) -> float:
    """Return -sum p log p in nats."""
    return -math.fsum(share * math.log(share) for share in shares if share > 0)


def _powered(log_weights: Sequence[float], power: float) -> list[float]:
    return normalise([value if value == -math.inf else value * power for value in log_weights])


def entropic(
    *,
    scheme: Scheme = "systematic",
    ess: float = 1.0,
    temperature: float = 1.0,
    floor: float = 0.9,
    horizon: int = 8,
) -> Resampler:
    """Make the policy.

    Args:
        scheme: multinomial, stratified, systematic or residual.
        ess: resample below this share of effective paths; 1 after every step, 0 never.
        temperature: above 1 the scorer is trusted less throughout.
        floor: share of the highest entropy that the first resampling must leave.
        horizon: steps after which the floor is 0.
    """
    check(ess, temperature)
    if not 0 <= floor <= 1 or horizon < 1:
        raise ConfigError(f"entropic needs 0 <= floor <= 1 and horizon >= 1, got {floor} and {horizon}")
    return Entropic(scheme, ess, temperature, floor=floor, horizon=horizon)
