"""The value head of PPO: the expected reward still to come before each token.

Schulman et al. 2017 (arXiv:1707.06347). Three kinds by where the head sits: on a body of its own that starts as the
policy's (`copy`), on the policy's hidden states, which it does not move (`head`, a linear probe that costs next to
nothing), or on a reward model's body with its head (InstructGPT). The loss is the squared distance to the return
(advantage plus old value), the larger one of the plain and of a value that may move by `clip` only. Cost: a forward
pass for the values, and a forward and backward pass per epoch. Left out: a loss that trains policy and critic through
one shared body, where the two have to be weighed against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from train.base.optimiser import Optimiser
from train.base.world import ALONE, World
from train.update.batch import TokenBatch, micro_batches, pass_tokens, shared, shuffled
from ttc.config.values import at_least
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ValueFit:
    """How the critic is fitted to a batch: passes, optimiser steps per pass, and the bound of a value's move.

    `micro_tokens` bounds the padded tokens of one forward and backward pass; None is what the policy takes.
    """

    epochs: int = 1
    minibatches: int = 1
    clip: float | None = 0.2
    micro_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        at_least("critic", 1, epochs=self.epochs, minibatches=self.minibatches, micro_tokens=self.micro_tokens)
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"critic: value_clip must be above 0, got {self.clip}")


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Half the squared error per token, and where the clipped value decided it: two tensors like `values`."""
    free = (values - returns) ** 2
    if clip is None:
        return 0.5 * free, torch.zeros_like(free, dtype=torch.bool)
    bounded = (old + (values - old).clamp(-clip, clip) - returns) ** 2
    return 0.5 * torch.maximum(free, bounded), bounded > free


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> float:
    """1 - Var(returns - values) / Var(returns) over the mask; 1 is perfect, 0 no better than a constant.

    NaN when the returns do not vary.
    """
    spread = float(returns[mask].var(unbiased=False)) if mask.any() else 0.0
    return 1.0 - float((returns - values)[mask].var(unbiased=False)) / spread if spread > 1e-12 else float("nan")


class ValueHead(torch.nn.Module):
    """A linear head on a body; a body that is the policy's own is read and never moved."""

    def __init__(self, body: Any, hidden: int, *, shared: bool) -> None:
        """Values start at 0; `shared` says that the body is another model's."""
        super().__init__()
        self.head = torch.nn.Linear(hidden, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.own_body = None if shared else body
        self._read = [body]  # a list: a shared body must not be registered as part of this module

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Value before each token but the first: ids (R, L) -> (R, L - 1)."""
        with torch.set_grad_enabled(self.own_body is not None and torch.is_grad_enabled()):
            hidden = self._read[0](input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        values: torch.Tensor = self.head(hidden.float())[..., 0]
        return values


class Critic:
    """A value head and its optimiser."""

    def __init__(self, module: ValueHead, optimiser: Optimiser, fit: ValueFit, world: World = ALONE) -> None:
        """In a `world`, `optimiser` must be one of the same world."""
        self.module, self._optimiser, self._fit, self._world = module, optimiser, fit, world
        self._device = next(module.parameters()).device
        self._micro = pass_tokens(fit.micro_tokens, self._device)

    @torch.no_grad()
    def values(self, batch: TokenBatch) -> torch.Tensor:
        """Estimates (R, T) before each token of the mask, 0 elsewhere, on the device of the batch."""
        self.module.eval()
        values = torch.zeros_like(batch.engine)
        for part in micro_batches(batch.mask, torch.arange(len(batch)), self._micro):
            rows = batch.rows(part)
            values[part, : rows.mask.shape[1]] = self.module(rows.ids.to(self._device)).to(values.device)
        return values * batch.mask

    def fit(self, batch: TokenBatch, old: torch.Tensor, returns: torch.Tensor) -> dict[str, float]:
        """Move the values of the batch's mask towards `returns` (R, T); returns metrics.

        `explained_variance` is that of the old values; `value_loss` the mean over the first pass.
        """
        metrics = {"explained_variance": explained_variance(old, returns, batch.mask)}
        self.module.train()
        losses: list[float] = []
        clipped, norm = 0.0, 0.0
        for _ in range(self._fit.epochs):
            for index in shuffled(len(batch), self._fit.minibatches, self._optimiser.taken):
                scale = 1 / batch.mask[index].sum().clamp(min=1)
                total = 0.0
                for part in shared(batch.mask, index, self._micro, self._world):
                    loss, share = self._loss(batch, part, old, returns)
                    (loss * scale.to(loss.device)).backward()
                    total += float(loss.detach() * scale)
                    clipped += share
                norm = max(norm, self._optimiser.step())
                losses.append(total)
        sums = torch.tensor([clipped, *losses])
        self._world.add([sums])
        clipped, *losses = sums.tolist()
        tokens = max(int(batch.mask.sum()), 1) * self._fit.epochs
        first = losses[: self._fit.minibatches]
        return {
            **metrics,
            "value_loss": sum(first) / len(first),
            "value_clip_share": clipped / tokens,
            "value_grad_norm": norm,
            "value_mean": float(old.sum() / batch.mask.sum().clamp(min=1)),
        }

    def _loss(
        self, batch: TokenBatch, part: torch.Tensor, old: torch.Tensor, returns: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        rows = batch.rows(part)
        width = rows.mask.shape[1]
        mask = rows.mask.to(self._device)
        before, target = (tensor[part, :width].to(self._device) for tensor in (old, returns))
        loss, clipped = value_loss(self.module(rows.ids.to(self._device)), before, target, self._fit.clip)
        return (loss * mask).sum(), float((clipped & mask).sum())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"weights": self.module.state_dict(), "optimiser": self._optimiser.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.module.load_state_dict(state["weights"])
        self._optimiser.load(state["optimiser"])
