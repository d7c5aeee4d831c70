"""Correct for an engine that samples from slightly other probabilities than the trainer computes.

An engine in bf16, with other kernels or with weights one step old, is a behaviour policy of its own. Truncated
importance sampling multiplies each token's (or rollout's) loss with min(p_trainer / p_engine, cap) (Yao et al. 2025;
Espeholt et al. 2018); masking drops what lies outside [1 / cap, cap] instead. Exact only where the engine reports
log-probabilities at temperature 1 without top-p or top-k, which is what rollouts are drawn with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ttc.errors import ConfigError

__all__ = ["Correction"]


@dataclass(frozen=True, slots=True)
class Correction:
    """How mismatch is handled: `level` of the ratio, `how` a large one is treated, the `cap`."""

    level: Literal["token", "sequence", "none"] = "token"
    how: Literal["truncate", "mask"] = "truncate"
    cap: float = 2.0

    def __post_init__(self) -> None:
        """Refuse a cap below 1."""
        if self.cap < 1:
            raise ConfigError(f"correction.cap must be at least 1, got {self.cap}")

    def weights(self, trainer: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Weights (R, T) for the loss, without a gradient; 1 where nothing is known of the engine (NaN).

        Args:
            trainer: log-probabilities of the sampled tokens by the trainer, with the weights that sampled them.
            engine: the same by the engine; NaN where it gave none.
            mask: True at sampled tokens.
        """
        if self.level == "none":
            return torch.ones_like(trainer)
        known = ~torch.isnan(engine) & mask.bool()
        gap = torch.where(known, trainer - engine, 0.0).detach()
        if self.level == "sequence":
            gap = gap.sum(1, keepdim=True).expand_as(gap)
        ratio = torch.exp(gap)
        if self.how == "truncate":
            return ratio.clamp(max=self.cap)
        return torch.where((ratio <= self.cap) & (ratio >= 1 / self.cap), ratio, 0.0)
