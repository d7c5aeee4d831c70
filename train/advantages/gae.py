"""Generalised advantage estimation with a value head, for PPO.

Schulman et al. 2015 (arXiv:1506.02438). The reward is at the last sampled token (process rewards, if any, at the end of
their steps); injected tokens are skipped: the next state of a token is the next *sampled* token. `gamma` 1 and `lam` 1
give reward minus value. Returns for the value loss are advantage plus value.
"""

from __future__ import annotations

import torch

from train.update.terms import Advantage, RewardBatch
from ttc.errors import ConfigError


def gae(*, gamma: float = 1.0, lam: float = 0.95) -> Advantage:
    """Discounted sum of temporal-difference errors.

    Args:
        gamma: discount of rewards per token.
        lam: 0 trusts the value head, 1 the reward.

    Raises:
        ConfigError: gamma or lam outside [0, 1], or rollouts without values.
    """
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0 <= value <= 1:
            raise ConfigError(f"gae.{name} must be in [0, 1], got {value}")

    def advantage(outcome: RewardBatch) -> torch.Tensor:
        if outcome.values is None:
            raise ConfigError("advantage gae needs the values of a critic, which the stage ppo has")
        mask = outcome.mask.bool() & outcome.judged[:, None]
        rewards = _rewards(outcome, mask)
        values = outcome.values.detach()
        result = torch.zeros_like(values)
        running = values.new_zeros(values.shape[0])
        ahead = values.new_zeros(values.shape[0])
        for t in range(values.shape[1] - 1, -1, -1):
            here = mask[:, t]
            delta = rewards[:, t] + gamma * ahead - values[:, t]
            running = torch.where(here, delta + gamma * lam * running, running)
            ahead = torch.where(here, values[:, t], ahead)
            result[:, t] = torch.where(here, running, 0.0)
        return result

    return advantage


def _rewards(outcome: RewardBatch, mask: torch.Tensor) -> torch.Tensor:
    """(R, T): process rewards at their steps' ends, the outcome's reward at the last sampled token."""
    rewards = torch.zeros_like(mask, dtype=outcome.rewards.dtype)
    if outcome.steps is not None:
        rewards = rewards + torch.nan_to_num(outcome.steps) * mask
    place = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, place, -1).amax(1)
    rows = torch.nonzero(last >= 0)[:, 0]
    rewards[rows, last[rows]] += outcome.rewards[rows]
    return rewards
