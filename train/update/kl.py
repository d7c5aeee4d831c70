"""Divergence of the policy from a reference, estimated from sampled tokens or computed over the vocabulary.

Schulman 2020, "Approximating KL divergence". Sampled from the policy, k1 = log p - log q is unbiased with a large
variance, k2 = k1^2 / 2 is biased with the right gradient at p = q, k3 = q/p - 1 + k1 is unbiased and never negative.
As a *loss*, k1 has zero expected gradient and k3 the wrong one, since the samples themselves move with the policy:
`unbiased=True` weighs with the ratio, whose derivative is the missing part (Tang & Munos 2025, arXiv:2506.09477).
`exact` needs both models' logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

__all__ = ["ESTIMATORS", "exact", "k1", "k2", "k3", "with_ratio"]


def k1(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Log p - log q at the sampled tokens."""
    return logprobs - reference


def k2(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Half the square of k1."""
    return 0.5 * (logprobs - reference) ** 2


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p): never negative."""
    gap = reference - logprobs
    return torch.expm1(gap) - gap


ESTIMATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def with_ratio(estimate: torch.Tensor, logprobs: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Weigh an estimate with the importance ratio, so that its gradient is that of the divergence itself."""
    return torch.exp(logprobs - old) * estimate


def exact(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference) per position: two (..., V) logits -> (...)."""
    p, q = torch.log_softmax(logits, -1), torch.log_softmax(reference, -1)
    return (p.exp() * (p - q)).sum(-1)
