"""GRPO: a rollout compared with the other rollouts of its prompt.

Shao et al. 2024, "DeepSeekMath" (arXiv:2402.03300), whose std is that of the group's own rewards (divided by n); TRL
and verl take the sample's (n - 1), which is `spread="sample"`. `scale="none"` is Dr. GRPO (Liu et al. 2025,
arXiv:2503.20783): dividing by the group's spread weighs prompts that are almost solved or almost hopeless more than the
rest. The mean includes the rollout itself, so the estimate is (G - 1) / G of the leave-one-out one.
"""

from __future__ import annotations

from typing import Literal

import torch

from train.update.terms import Advantage, RewardBatch, Spread, centred, check_eps, group_std, per_spread, to_tokens


def group(
    *, scale: Literal["group", "batch", "none"] = "group", spread: Spread = "population", eps: float = 1e-6
) -> Advantage:
    """Reward minus the mean of its group, divided by the spread of the group, of the batch, or by nothing.

    Args:
        scale: what the difference is divided by.
        spread: population divides the sum of squares by n, sample by n - 1.
        eps: added to the spread; a group of equal rewards gives exactly 0.
    """
    check_eps("group", eps)

    def advantage(outcome: RewardBatch) -> torch.Tensor:
        gap = centred(outcome.rewards, outcome.groups, outcome.judged)
        if scale == "none":
            return to_tokens(gap, outcome)
        among = outcome.groups if scale == "group" else torch.zeros_like(outcome.groups)
        return to_tokens(per_spread(gap, group_std(outcome.rewards, among, outcome.judged, spread), eps), outcome)

    return advantage
