"""REINFORCE++: rewards normalised over the whole batch, optionally after subtracting the group's mean.

Hu 2025 (arXiv:2501.03262). With `baseline="group"` it is REINFORCE++-baseline: the group decides what is better, the
batch decides how much that counts, so a small spread within a group is not amplified. The KL penalty of the paper is
the update rule's reference term here, not part of the reward.
"""

from __future__ import annotations

from typing import Literal

import torch

from train.update.terms import Advantage, RewardBatch, Spread, centred, check_eps, group_std, per_spread, to_tokens


def reinforce_pp(
    *, baseline: Literal["none", "group"] = "group", spread: Spread = "population", eps: float = 1e-8
) -> Advantage:
    """Batch-normalised reward.

    Args:
        baseline: what is subtracted before normalising.
        spread: population divides the sum of squares by n, sample by n - 1.
        eps: added to the spread.
    """
    check_eps("reinforce_pp", eps)

    def advantage(outcome: RewardBatch) -> torch.Tensor:
        values, one = outcome.rewards, torch.zeros_like(outcome.groups)
        if baseline == "group":
            values = centred(values, outcome.groups, outcome.judged)
        std = group_std(values, one, outcome.judged, spread)
        return to_tokens(per_spread(centred(values, one, outcome.judged), std, eps), outcome)

    return advantage
