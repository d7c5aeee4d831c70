"""Tool calls that came back as errors: with a negative weight, the policy learns to write valid calls."""

from __future__ import annotations

from train.rollouts.rewards import Shaping, of_each


def failed_calls() -> Shaping:
    """How many calls of a rollout failed."""
    return of_each(lambda rollout: float(rollout.failed_calls))
