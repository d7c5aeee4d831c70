"""REINFORCE with the batch's mean as its baseline, divided by the batch's spread.

Williams 1992. Unlike a group's mean, the batch's mean does not know how hard a prompt is: easy prompts are pushed and
hard ones held back. Left out: a moving baseline.
"""

from __future__ import annotations

import torch

from train.update.terms import Advantage, RewardBatch, centred, group_std, spread


def batch(*, eps: float = 1e-4) -> Advantage:
    """Reward minus the batch's mean, divided by the batch's spread.

    Args:
        eps: added to the spread.
    """

    def advantage(outcome: RewardBatch) -> torch.Tensor:
        one = torch.zeros_like(outcome.groups)
        std = group_std(outcome.rewards, one, outcome.judged)
        return spread(centred(outcome.rewards, one, outcome.judged) / (std + eps), outcome)

    return advantage
