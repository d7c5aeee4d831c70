"""A faulty reward for `benchmarks.training_health`: it pays for length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from train.base.rollout import Rollout
from train.rollouts.rewards import Shaping

HERE = Path(__file__).resolve()


def paid_by_length() -> Shaping:
    """One more reward per eight tokens, whatever they say."""

    def shaping(group: Sequence[Rollout], step: int) -> list[float]:
        return [len(rollout.token_ids) / 8 for rollout in group]

    return shaping
