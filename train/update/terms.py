"""The seam of policy-gradient losses, and what they share.

A loss maps four tensors (R, T) to one number per token, before any mean: log-probabilities of the policy, of the policy
that the ratio is taken against, the advantages, and the mask. `train.update.normalise` turns that into one number. A
loss must not mix rows, so that a batch may be cut into micro-batches anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ttc.errors import ConfigError

__all__ = ["Loss", "PerToken", "check_clip", "sequence_mean"]


@dataclass(frozen=True, slots=True)
class PerToken:
    """`loss` (R, T), with the gradient; `clipped` (R, T) True where the gradient was cut off."""

    loss: torch.Tensor
    clipped: torch.Tensor


Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], PerToken]
"""(logprobs, old logprobs, advantages, mask) -> PerToken; all (R, T), nats."""


def sequence_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the masked tokens of each row: (R, T) -> (R, 1); 0 for a row without any."""
    return (values * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def check_clip(name: str, low: float, high: float) -> None:
    """Raise ConfigError unless 0 <= low <= 1 and high >= 0 (a ratio is clipped to [1 - low, 1 + high])."""
    if not 0 <= low <= 1:
        raise ConfigError(f"{name}.clip_low must be in [0, 1], got {low}")
    if high < 0:
        raise ConfigError(f"{name}.clip_high must be >= 0, got {high}")
