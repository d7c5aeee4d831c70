"""RLOO: a rollout compared with the mean of the *other* rollouts of its prompt.

Kool et al. 2019; Ahmadian et al. 2024, "Back to basics" (arXiv:2402.14740). Unbiased: the baseline does not contain the
rollout. Equal to G / (G - 1) times the group advantage without scaling. A rollout alone in its group gets 0.
"""

from __future__ import annotations

import torch

from train.update.terms import Advantage, RewardBatch, centred, group_mean, to_tokens


def leave_one_out() -> Advantage:
    """Reward minus the mean of the others of its group."""

    def advantage(outcome: RewardBatch) -> torch.Tensor:
        _, number = group_mean(outcome.rewards, outcome.groups, outcome.judged)
        others = number / (number - 1).clamp(min=1)
        return to_tokens(centred(outcome.rewards, outcome.groups, outcome.judged) * others, outcome)

    return advantage
