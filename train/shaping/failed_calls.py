"""Calls of tools that came back as errors: weigh it negatively, and calls are written as the tool reads them."""

from __future__ import annotations

from collections.abc import Sequence

from train.base.rollout import Rollout
from train.rollouts.rewards import Shaping


def failed_calls() -> Shaping:
    """How many calls of a rollout failed."""

    def shaping(group: Sequence[Rollout], step: int) -> list[float]:
        return [float(rollout.failed_calls) for rollout in group]

    return shaping
