"""A penalty for saying the same again: the share of n-grams of token ids that occurred before in the rollout."""

from __future__ import annotations

from collections.abc import Sequence

from train.base.rollout import Rollout, repeated_share
from train.rollouts.rewards import Shaping
from ttc.errors import ConfigError


def repetition(*, n: int = 4) -> Shaping:
    """Minus the share of repeated n-grams, in [-1, 0].

    Args:
        n: length of the n-grams in tokens.
    """
    if n < 1:
        raise ConfigError(f"shaping repetition: n must be at least 1, got {n}")

    def shaping(group: Sequence[Rollout], step: int) -> list[float]:
        return [-repeated_share(rollout.token_ids, n) for rollout in group]

    return shaping
