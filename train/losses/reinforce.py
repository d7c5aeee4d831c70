"""REINFORCE: the policy gradient as it is, weighted by the ratio and cut off nowhere.

Williams 1992. With one update per batch the ratio is 1, so every clipped surrogate is this loss and its clip can do
nothing: a recipe that updates once names it. With several updates nothing holds the policy near the one that sampled.
"""

from __future__ import annotations

import torch

from train.update.terms import Loss, PerToken


def reinforce() -> Loss:
    """Importance-weighted advantage."""

    def loss(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> PerToken:
        return PerToken(-torch.exp(logprobs - old) * advantages, torch.zeros_like(mask, dtype=torch.bool))

    return loss
