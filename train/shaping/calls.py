"""Tool calls beyond the free ones: with a negative weight, the policy gives up calls that do not help.

Without a price, a policy calls whenever it may: a right answer after three calls earns as much as after one.
"""

from __future__ import annotations

from train.rollouts.rewards import Shaping, of_each
from ttc.errors import ConfigError


def calls(*, free: int = 1) -> Shaping:
    """How many calls a rollout made beyond `free`.

    Args:
        free: calls that cost nothing.
    """
    if free < 0:
        raise ConfigError(f"shaping calls: free must be at least 0, got {free}")
    return of_each(lambda rollout: float(max(rollout.calls - free, 0)))
