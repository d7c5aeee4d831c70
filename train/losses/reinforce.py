"""REINFORCE: the plain policy gradient, weighted by the ratio and never clipped.

Williams 1992. With one update per batch the ratio is 1, so every clipped surrogate equals this loss and its clip has no
effect: recipes with one update use it. With several updates nothing holds the policy near the one that sampled.
"""

from __future__ import annotations

import torch

from train.update.terms import Loss, PerToken


def reinforce() -> Loss:
    """Importance-weighted advantage."""

    def loss(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> PerToken:
        return PerToken(-torch.exp(logprobs - old) * advantages, torch.zeros_like(mask, dtype=torch.bool))

    return loss
