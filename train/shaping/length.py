"""Kimi k1.5's length reward: among the rollouts of one prompt, shorter is better; a wrong one never gains by it.

Kimi Team 2025 (arXiv:2501.12599), section 2.3.3: lambda = 0.5 - (len - min) / (max - min); a right rollout gets
lambda, a wrong one min(0, lambda). It slows early training, so it starts at `start` and grows to full strength over
`warmup`.
"""

from __future__ import annotations

from collections.abc import Sequence

from train.base.rollout import Rollout
from train.rollouts.rewards import Shaping
from ttc.errors import ConfigError


def length(*, start: int = 0, warmup: int = 1) -> Shaping:
    """Between -0.5 and 0.5 by rank of length within the group.

    Args:
        start: the first step at which it counts.
        warmup: steps over which it grows to full strength.
    """
    if start < 0 or warmup < 1:
        raise ConfigError("shaping length: needs start >= 0 and warmup >= 1")

    def shaping(group: Sequence[Rollout], step: int) -> list[float]:
        strength = min(max(step - start + 1, 0) / warmup, 1.0)
        sizes = [len(rollout.token_ids) for rollout in group]
        low, high = min(sizes), max(sizes)
        if low == high or strength == 0:
            return [0.0] * len(group)
        values = [0.5 - (size - low) / (high - low) for size in sizes]
        pairs = zip(values, group, strict=True)
        return [strength * (value if rollout.right else min(0.0, value)) for value, rollout in pairs]

    return shaping
