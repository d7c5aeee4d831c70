"""The terms of an update per token: advantages, the interface of policy-gradient losses, divergence, engine mismatch.

Shapes: R rollouts, T positions (the target tokens of a right-padded batch). A reward of NaN means that there was no
verdict (a verifier timed out): such a row takes no part in any mean and gets advantage 0, which is not reward 0.

A loss maps four tensors (R, T) to one number per token, before any mean: log-probabilities of the policy, of the policy
that the ratio is taken against, the advantages, and the mask. The weights of `train.update.batch` turn that into one
number. A loss must not mix rows, so that a batch may be cut into micro-batches anywhere.

Divergence: Schulman 2020, "Approximating KL divergence". Sampled from the policy, k1 = log p - log q is unbiased with a
large variance, k2 = k1^2 / 2 is biased with the right gradient at p = q, k3 = q/p - 1 + k1 is unbiased and never
negative. As a *loss*, k1 has zero expected gradient and k3 the wrong one, since the samples themselves move with the
policy: `fair_kl` weighs them with the ratio, whose derivative is the missing part (Tang & Munos 2025,
arXiv:2506.09477). The gradient of k2 is right without that part, so its ratio is held; it only corrects for the policy
that sampled, which several updates of a batch leave behind. `exact_kl` needs both models' logits.

Mismatch: an engine in bf16, with other kernels or with weights one step old, is a behaviour policy of its own.
Truncated importance sampling multiplies each token's (or rollout's) loss with min(p_trainer / p_engine, cap) (Yao et
al. 2025; Espeholt et al. 2018); masking drops what lies outside [1 / cap, cap] instead. Exact only where the engine
reports log-probabilities at temperature 1 without top-p or top-k, which is what rollouts are drawn with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from ttc.config.values import at_least, finite
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """The rewards of one batch of rollouts.

    Attributes:
        rewards: (R,) one per rollout; NaN without a verdict.
        groups: (R,) equal numbers for rollouts of one prompt.
        mask: (R, T) True at tokens that the policy sampled.
        steps: (R, T) process rewards at the last token of each step, NaN elsewhere.
        values: (R, T) estimates of a value head before each token.
        tokens: (R, T) the ids themselves.
    """

    rewards: torch.Tensor
    groups: torch.Tensor
    mask: torch.Tensor
    steps: torch.Tensor | None = None
    values: torch.Tensor | None = None
    tokens: torch.Tensor | None = None

    @property
    def judged(self) -> torch.Tensor:
        """(R,) True where there is a reward."""
        return ~torch.isnan(self.rewards)


Advantage: TypeAlias = Callable[[RewardBatch], torch.Tensor]
"""Outcome -> (R, T) weights, 0 outside the mask."""


def across_prompts(advantage: Advantage) -> bool:
    """Whether an advantage can tell a good rollout from a bad one if each is the only one of its prompt."""
    rewards, mask = torch.tensor([0.0, 1.0]), torch.ones(2, 1, dtype=torch.bool)
    outcome = RewardBatch(rewards, torch.arange(2), mask, steps=rewards[:, None], tokens=torch.arange(2)[:, None])
    return bool(advantage(outcome).any())


def to_tokens(per_row: torch.Tensor, outcome: RewardBatch) -> torch.Tensor:
    """Give every sampled token the number of its row: (R,) -> (R, T); rows without a reward get 0."""
    values = torch.where(outcome.judged, per_row, 0.0)
    return values[:, None] * outcome.mask


def centred(values: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Value minus the mean of its group, exactly 0 in a group of equal values: (R,)."""
    mean, _ = group_mean(values, groups, valid)
    gap = values - mean
    return torch.where(gap.abs() <= 1e-6 * mean.abs().clamp(min=1e-3), 0.0, gap)


def group_mean(values: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over the valid rows of each row's group, and how many they are: two tensors (R,)."""
    unique, index = torch.unique(groups, return_inverse=True)
    count, weight = unique.numel(), valid.to(values.dtype)
    total = values.new_zeros(count).index_add_(0, index, torch.where(valid, values, 0.0))
    number = values.new_zeros(count).index_add_(0, index, weight)
    return (total / number.clamp(min=1))[index], number[index]


Spread: TypeAlias = Literal["population", "sample"]
"""Of a standard deviation: of these values (divided by n), or of what they were drawn from (by n - 1)."""


def group_std(
    values: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, how: Spread = "population"
) -> torch.Tensor:
    """Standard deviation over the valid rows of each row's group; 0 for a single one: (R,)."""
    mean, number = group_mean(values, groups, valid)  # (R,) each: every row knows its group's
    squares, _ = group_mean((values - mean) ** 2, groups, valid)
    return (squares if how == "population" else squares * number / (number - 1).clamp(min=1)).sqrt()


def check_eps(name: str, eps: float) -> None:
    """Raise ConfigError for an invalid `eps`, which is added to a spread."""
    at_least(name, 0, eps=eps)
    finite(name, eps=eps)


def per_spread(gap: torch.Tensor, spread: torch.Tensor, eps: float) -> torch.Tensor:
    """A difference from a mean divided by spread plus eps; 0 where there is none, whatever the spread: (R,)."""
    return torch.where(gap == 0, 0.0, gap / (spread + eps))


@dataclass(frozen=True, slots=True)
class PerToken:
    """`loss` (R, T), with the gradient; `clipped` (R, T) True where the gradient was cut off."""

    loss: torch.Tensor
    clipped: torch.Tensor


Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], PerToken]
"""(logprobs, old logprobs, advantages, mask) -> PerToken; all (R, T), nats."""


def pulls(loss: Loss) -> bool:
    """Whether a loss moves tokens without an advantage, like Kimi's: then no rollout may be left out."""
    one = torch.ones(1, 1)
    outcome = loss(-one, -2 * one, torch.zeros(1, 1), one.bool())
    return isinstance(outcome, PerToken) and bool(outcome.loss.any())  # a user's own is held to its type where it acts


def sequence_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the masked tokens of each row: (R, T) -> (R, 1); 0 for a row without any."""
    return (values * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def check_clip(name: str, low: float, high: float) -> None:
    """Raise ConfigError unless 0 <= low <= 1 and high >= 0 (a ratio is clipped to [1 - low, 1 + high])."""
    if not 0 <= low <= 1:
        raise ConfigError(f"{name}.clip_low must be in [0, 1], got {low}")
    if not high >= 0:
        raise ConfigError(f"{name}.clip_high must be >= 0, got {high}")


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


KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def fair_kl(
    estimator: str, logprobs: torch.Tensor, reference: torch.Tensor, old: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The estimate, and a loss of it whose gradient over samples of `old` is that of the divergence itself."""
    estimate = KL_ESTIMATORS[estimator](logprobs, reference)
    ratio = torch.exp(logprobs - old)
    return estimate, (ratio.detach() if estimator == "k2" else ratio) * estimate


def exact_kl(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference) per position: two (..., V) logits -> (...)."""
    p, q = torch.log_softmax(logits, -1), torch.log_softmax(reference, -1)
    return (p.exp() * (p - q)).sum(-1)


@dataclass(frozen=True, slots=True)
class Correction:
    """How mismatch is handled: `level` of the ratio, `how` a large one is treated, the `cap`."""

    level: Literal["token", "sequence", "none"] = "token"
    how: Literal["truncate", "mask"] = "truncate"
    cap: float = 2.0

    def __post_init__(self) -> None:
        """Refuse a cap below 1."""
        if not self.cap >= 1:
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
        is_known = ~torch.isnan(engine) & mask.bool()
        gap = torch.where(is_known, trainer - engine, 0.0).detach()
        if self.level == "sequence":
            gap = gap.sum(1, keepdim=True).expand_as(gap)
        ratio = torch.exp(gap)
        if self.how == "truncate":
            return ratio.clamp(max=self.cap)
        return torch.where((ratio <= self.cap) & (ratio >= 1 / self.cap), ratio, 0.0)
