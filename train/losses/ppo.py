"""PPO's clipped surrogate per token; the loss of GRPO, Dr. GRPO, DAPO, RLOO and REINFORCE++ as well.

Schulman et al. 2017 (arXiv:1707.06347). Different bounds below and above are DAPO's clip-higher (Yu et al. 2025,
arXiv:2503.14476). `dual_clip` bounds the loss of a negative advantage at a large ratio (Ye et al. 2020,
arXiv:1912.09729), where the plain surrogate has no bound. What tells the named methods apart is the advantage and the
normaliser: GRPO = group + sequence, Dr. GRPO = group without scaling + constant, DAPO = group + token.
"""

from __future__ import annotations

import torch

from train.update.terms import Loss, PerToken, check_clip
from ttc.errors import ConfigError


def ppo(*, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> Loss:
    """Clipped importance-weighted advantage.

    Args:
        clip_low: the ratio's lower bound is 1 - clip_low.
        clip_high: the ratio's upper bound is 1 + clip_high; 0.28 in DAPO.
        dual_clip: most times a negative advantage may count; above 1, None for no bound.
    """
    check_clip("ppo", clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(f"ppo.dual_clip must be above 1, got {dual_clip}")

    def loss(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> PerToken:
        ratio = torch.exp(logprobs - old)
        free, bounded = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
        gain, clipped = torch.minimum(free, bounded), bounded < free
        if dual_clip is not None:
            floor = dual_clip * advantages
            clipped = clipped | ((advantages < 0) & (gain < floor))
            gain = torch.where(advantages < 0, torch.maximum(gain, floor), gain)
        return PerToken(-gain, clipped & mask.bool())

    return loss
