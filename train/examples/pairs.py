"""What a preference loss is computed from: log-probabilities of whole completions, by the policy and by a reference.

Shapes: P pairs, R labelled completions. Log-probabilities are sums over a completion's tokens in nats; lengths are
their numbers of tokens. Reference log-probabilities do not change during training, so they are computed once and kept.
A ranking of K completions gives K (K - 1) / 2 pairs that share one unit of weight, as in InstructGPT, where counting
each pair fully makes prompts with large K overfit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ttc.errors import ConfigError

__all__ = ["Labelled", "LabelledLoss", "PairLoss", "Pairs", "ranked_pairs"]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Chosen against rejected, all tensors (P,); references may be None where a loss needs none."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_length: torch.Tensor
    rejected_length: torch.Tensor
    reference_chosen: torch.Tensor | None = None
    reference_rejected: torch.Tensor | None = None
    weight: torch.Tensor | None = None

    def margins(self, name: str, per_token: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-ratios to the reference of chosen and rejected; raises ConfigError without a reference."""
        if self.reference_chosen is None or self.reference_rejected is None:
            raise ConfigError(f"{name} needs reference log-probabilities: set the stage's reference model")
        chosen, rejected = self.chosen - self.reference_chosen, self.rejected - self.reference_rejected
        return (chosen / self.chosen_length, rejected / self.rejected_length) if per_token else (chosen, rejected)

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply by the pairs' weights, where there are any: (P,)."""
        return loss if self.weight is None else loss * self.weight


@dataclass(frozen=True, slots=True)
class Labelled:
    """Completions that are each good or bad, (R,); `kl` is an estimate of the divergence over mismatched prompts."""

    logprob: torch.Tensor
    reference: torch.Tensor
    good: torch.Tensor
    kl: torch.Tensor


PairLoss: TypeAlias = Callable[[Pairs], torch.Tensor]
"""Pairs -> loss of each pair (P,)."""
LabelledLoss: TypeAlias = Callable[[Labelled], torch.Tensor]
"""Labelled -> loss of each completion (R,)."""


def ranked_pairs(scores: Sequence[float]) -> list[tuple[int, int, float]]:
    """All (better, worse, weight) of one prompt's completions; ties give none, and the weights add up to 1."""
    pairs = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if scores[i] > scores[j]]
    return [(better, worse, 1 / len(pairs)) for better, worse in pairs]
