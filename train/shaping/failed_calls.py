"""Calls of tools that came back as errors: weigh it negatively, and calls are written as the tool reads them."""

from __future__ import annotations

from train.rollouts.rewards import Shaping, of_each


def failed_calls() -> Shaping:
    """How many calls of a rollout failed."""
    return of_each(lambda rollout: float(rollout.failed_calls))
