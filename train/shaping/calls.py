"""Calls of tools beyond those that are free: weigh it negatively, and calls that do not help are given up.

Without a price, a policy calls whenever it may: an answer that is right after three calls earns as much as after one.
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
