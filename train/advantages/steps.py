"""Process rewards: a token is worth the normalised rewards of the steps that end at it or after it.

Shao et al. 2024 (arXiv:2402.03300), section 4.1.3. All step rewards of a group are normalised together. A rollout with
many steps sums many terms, so a step reward that is on average positive rewards length; normalising by the group's mean
takes that off only as far as rollouts are equally long.
"""

from __future__ import annotations

import torch

from train.outcome import Advantage, Outcome, group_mean, group_std
from ttc.errors import ConfigError

__all__ = ["steps"]


def steps(*, eps: float = 1e-4) -> Advantage:
    """Sum of the normalised rewards of this step and the later ones.

    Args:
        eps: added to the spread.

    Raises:
        ConfigError: the rollouts carry no step rewards.
    """

    def advantage(outcome: Outcome) -> torch.Tensor:
        if outcome.steps is None:
            raise ConfigError("advantage steps needs process rewards: give the run a scorer with step scores")
        rewards = outcome.steps
        known = ~torch.isnan(rewards) & outcome.mask.bool() & outcome.judged[:, None]
        groups = outcome.groups[:, None].expand_as(rewards)
        flat, owner, valid = rewards.reshape(-1), groups.reshape(-1), known.reshape(-1)
        mean, _ = group_mean(flat, owner, valid)
        std = group_std(flat, owner, valid)
        normal = torch.where(valid, (flat - mean) / (std + eps), 0.0).view_as(rewards)
        later = normal.flip(1).cumsum(1).flip(1)
        return later * outcome.mask

    return advantage
