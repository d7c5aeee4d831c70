"""Process rewards: a token is worth the normalised rewards of the steps that end at it or after it.

Shao et al. 2024 (arXiv:2402.03300), section 4.1.3; the reward of the whole rollout may be added, normalised by itself
as in PRIME (Cui et al. 2025, arXiv:2502.01456). All step rewards of a group are normalised together. A rollout with
many steps sums many terms, so a step reward with a positive mean rewards length; subtracting the group's mean removes
that only for rollouts of equal length.
"""

from __future__ import annotations

import torch

from train.advantages.group import group
from train.update.terms import Advantage, RewardBatch, Spread, centred, check_eps, group_std, per_spread
from ttc.config.values import at_least, finite
from ttc.errors import ConfigError


def steps(*, outcome: float = 0.0, spread: Spread = "population", eps: float = 1e-6) -> Advantage:
    """Sum of the normalised rewards of this step and the later ones.

    Args:
        outcome: weight of the rollout's own reward, normalised over its group, at every token.
        spread: population divides the sum of squares by n, sample by n - 1.
        eps: added to the spread.

    Raises:
        ConfigError: a number that cannot be, or rollouts without step rewards.
    """
    at_least("steps", 0, outcome=outcome)
    finite("steps", outcome=outcome)
    check_eps("steps", eps)
    whole = group(spread=spread, eps=eps)

    def advantage(batch: RewardBatch) -> torch.Tensor:
        if batch.steps is None:
            raise ConfigError("advantage steps needs process rewards: give the stage a process_reward, such as 2-prm")
        rewards = batch.steps
        is_known = ~torch.isnan(rewards) & batch.mask.bool() & batch.judged[:, None]
        groups = batch.groups[:, None].expand_as(rewards)
        flat, owner, valid = rewards.reshape(-1), groups.reshape(-1), is_known.reshape(-1)
        std = group_std(flat, owner, valid, spread)
        normal = torch.where(valid, per_spread(centred(flat, owner, valid), std, eps), 0.0).view_as(rewards)
        later = normal.flip(1).cumsum(1).flip(1)
        return (later + outcome * whole(batch)) * batch.mask

    return advantage
