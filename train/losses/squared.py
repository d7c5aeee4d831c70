"""Kimi k1.5's squared loss: policy gradient plus a pull back to the policy that sampled the rollouts.

Kimi Team 2025 (arXiv:2501.12599), equation 3: per rollout, grad = (r - mean r) grad log pi - tau / 2 grad (log pi /
pi_i)^2 with pi_i the policy at the start of the iteration. Nothing is clipped; only `tau` limits the step. The
advantage is the group's without scaling, the normaliser `rollout` (sum over tokens, mean over rollouts).
"""

from __future__ import annotations

import math

import torch

from train.update.terms import Loss, PerToken
from ttc.errors import ConfigError


def squared(*, tau: float = 0.1) -> Loss:
    """REINFORCE plus tau / 2 times the squared log-ratio of the rollout.

    Args:
        tau: strength of the pull, per nat squared; above 0.
    """
    if not 0 < tau < math.inf:
        raise ConfigError(f"squared.tau must be above 0 and finite, got {tau}")

    def loss(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> PerToken:
        moved = (logprobs - old) * mask
        # sum over t of total * moved_t is total^2, so the rows add up to the sequence's term
        pull = 0.5 * tau * moved.sum(1, keepdim=True) * moved
        return PerToken(pull - advantages * logprobs, torch.zeros_like(mask, dtype=torch.bool))

    return loss
