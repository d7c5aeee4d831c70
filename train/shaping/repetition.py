"""A penalty for repetition: the share of n-grams of token ids that occurred before in the rollout."""

from __future__ import annotations

from train.base.rollout import repeated_share
from train.rollouts.rewards import Shaping, of_each
from ttc.errors import ConfigError


def repetition(*, n: int = 4) -> Shaping:
    """Minus the share of repeated n-grams, in [-1, 0].

    Args:
        n: length of the n-grams in tokens.
    """
    if n < 1:
        raise ConfigError(f"shaping repetition: n must be at least 1, got {n}")
    return of_each(lambda rollout: -repeated_share(rollout.token_ids, n))
