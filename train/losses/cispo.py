"""CISPO: REINFORCE weighted by a capped ratio, so that no token loses its gradient.

MiniMax 2025 (arXiv:2506.13585). PPO's clip drops the gradient of rare tokens that became likelier, often the ones that
start a reflection; here the weight is capped and the gradient stays.
"""

from __future__ import annotations

import torch

from train.update.terms import Loss, PerToken
from ttc.errors import ConfigError


def cispo(*, cap: float = 5.0) -> Loss:
    """Policy gradient times min(ratio, cap), the weight being a constant.

    Args:
        cap: largest weight of a token; at least 1.
    """
    if not cap >= 1:
        raise ConfigError(f"cispo.cap must be at least 1, got {cap}")

    def loss(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> PerToken:
        ratio = torch.exp(logprobs - old).detach()
        return PerToken(-ratio.clamp(max=cap) * advantages * logprobs, (ratio > cap) & mask.bool())

    return loss
