"""GSPO: the ratio of a whole sequence, clipped once per sequence.

Zheng et al. 2025 (arXiv:2507.18071). The ratio is the geometric mean over a rollout's tokens, so its bounds are
hundreds of times tighter than PPO's (3e-4 in the paper). Every token of a row carries the same gradient weight. The
paper's objective is the mean over rollouts: `normaliser = "sequence"`; under `token` a rollout counts by its length.
Left out: GSPO-token.
"""

from __future__ import annotations

import torch

from train.update.terms import Loss, PerToken, check_clip, sequence_mean


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Loss:
    """Clipped surrogate with a sequence-level ratio.

    Args:
        clip_low: the ratio's lower bound is 1 - clip_low.
        clip_high: the ratio's upper bound is 1 + clip_high.
    """
    check_clip("gspo", clip_low, clip_high)

    def loss(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> PerToken:
        ratio = torch.exp(sequence_mean(logprobs - old, mask))
        free, bounded = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
        return PerToken(-torch.minimum(free, bounded), (bounded < free) & mask.bool())

    return loss
