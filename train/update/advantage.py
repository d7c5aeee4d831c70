"""What an advantage is computed from, and how rewards become one number per token.

Shapes: R rollouts, T positions (the target tokens of a right-padded batch). A reward of NaN means that there was no
verdict (a verifier timed out): such a row takes no part in any mean and gets advantage 0, which is not reward 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """The rewards of one batch of rollouts.

    `rewards` (R,) one per rollout; `groups` (R,) equal numbers for rollouts of one prompt; `mask` (R, T) True at tokens
    the policy sampled; `steps` (R, T) process rewards at the last token of each step, NaN elsewhere; `values` (R, T)
    estimates of a value head before each token.
    """

    rewards: torch.Tensor
    groups: torch.Tensor
    mask: torch.Tensor
    steps: torch.Tensor | None = None
    values: torch.Tensor | None = None

    @property
    def judged(self) -> torch.Tensor:
        """(R,) True where there is a reward."""
        return ~torch.isnan(self.rewards)


Advantage: TypeAlias = Callable[[RewardBatch], torch.Tensor]
"""Outcome -> (R, T) weights, 0 outside the mask."""


def spread(per_row: torch.Tensor, outcome: RewardBatch) -> torch.Tensor:
    """Give every sampled token the number of its row: (R,) -> (R, T); rows without a reward get 0."""
    values = torch.where(outcome.judged, per_row, 0.0)
    return values[:, None] * outcome.mask


def centred(values: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Value minus the mean of its group, exactly 0 in a group of equal values: (R,)."""
    mean, _ = group_mean(values, groups, valid)
    gap = values - mean
    return torch.where(gap.abs() <= 1e-6 * mean.abs().clamp(min=1e-3), 0.0, gap)


def group_mean(values: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over the valid rows of each row's group, and how many they are: two tensors (R,)."""
    index, count = _index(groups)
    weight = valid.to(values.dtype)
    total = values.new_zeros(count).index_add_(0, index, torch.where(valid, values, 0.0))
    number = values.new_zeros(count).index_add_(0, index, weight)
    return (total / number.clamp(min=1))[index], number[index]


def group_std(values: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Sample standard deviation (n - 1) over the valid rows of each row's group; 0 for a single one: (R,)."""
    mean, number = group_mean(values, groups, valid)  # (R,) each: every row knows its group's
    squares, _ = group_mean((values - mean) ** 2, groups, valid)
    return (squares * number / (number - 1).clamp(min=1)).sqrt()


def _index(groups: torch.Tensor) -> tuple[torch.Tensor, int]:
    unique, index = torch.unique(groups, return_inverse=True)
    return index, int(unique.numel())
