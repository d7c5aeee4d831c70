"""One optimiser step over a batch: the update rule, micro-batches, clipping, and what is worth knowing of it.

The batch may be passed over several times (`epochs`) and cut into mini-batches, each an optimiser step; the ratio is
then taken against log-probabilities computed before the first of them. With one pass and one mini-batch the ratio is
exactly 1 and nothing is computed twice. Cost: one forward and backward pass per epoch, and a forward one more when
there is more than one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch

from train import kl as divergence
from train.batch import Batch
from train.correction import Correction
from train.normalise import Normaliser, token_weights
from train.outcome import Advantage, Outcome
from train.policy import Compare, token_logprobs
from train.terms import Loss
from ttc.errors import ConfigError

__all__ = ["Objective", "Optimiser", "Schedule", "Supervisor", "Updater", "weighted"]

Supervisor: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Compare]
"""(numbers of some rows of the batch, their mask) -> the divergence from a teacher at their masked positions."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What an update minimises: a policy-gradient loss, how rewards become advantages, the pull of a reference."""

    loss: Loss
    advantage: Advantage
    normaliser: Normaliser = "token"
    max_tokens: int = 1024
    correction: Correction = field(default_factory=Correction)
    kl_weight: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate: linear warm-up to `lr`, then constant or linear decay to 0 at `steps`."""

    lr: float
    steps: int
    warmup: int = 0
    decay: bool = False

    def __post_init__(self) -> None:
        """Refuse a rate that is not positive."""
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr must be above 0, got {self.lr}")

    def rate(self, step: int) -> float:
        """The rate of optimiser step `step`, from 0."""
        rising = min((step + 1) / self.warmup, 1.0) if self.warmup else 1.0
        falling = max(self.steps - step, 0) / max(self.steps - self.warmup, 1) if self.decay else 1.0
        return self.lr * min(rising, falling)


class Optimiser:
    """AdamW under a schedule, with the gradient's norm clipped."""

    def __init__(self, model: Any, schedule: Schedule, *, clip: float = 1.0, weight_decay: float = 0.0) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._inner = torch.optim.AdamW(
            trained, lr=schedule.lr, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True
        )
        self._trained, self.schedule, self._clip = trained, schedule, clip
        self.taken = 0
        self.scale = 1.0

    def step(self) -> float:
        """Apply and clear the gradients; returns their norm before clipping. A norm that is not finite is skipped."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self._clip))
        if math.isfinite(norm):
            for group in self._inner.param_groups:
                group["lr"] = self.schedule.rate(self.taken) * self.scale
            self._inner.step()
        self._inner.zero_grad(set_to_none=True)
        self.taken += 1
        return norm

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"inner": self._inner.state_dict(), "taken": self.taken, "scale": self.scale}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._inner.load_state_dict(state["inner"])
        self.taken, self.scale = int(state["taken"]), float(state["scale"])


def weighted(batch: Batch, objective: Objective, outcome: Outcome) -> Batch:
    """Fill in advantages and weights; the normaliser sees the whole batch, before it is cut."""
    weights = token_weights(batch.mask, objective.normaliser, objective.max_tokens)
    return replace(
        batch,
        advantages=objective.advantage(outcome) * batch.mask,
        pg=weights,
        kl=weights * objective.kl_weight if objective.kl_weight else batch.kl,
    )


class Updater:
    """Holds the model and its optimiser."""

    def __init__(
        self,
        model: Any,
        optimiser: Optimiser,
        objective: Objective,
        *,
        epochs: int = 1,
        minibatches: int = 1,
        micro_tokens: int | None = None,
        autocast: bool = False,
    ) -> None:
        """`autocast` computes in bf16; `micro_tokens` bounds the padded tokens of one forward pass.

        By default few on a CPU, where rows of like length in small batches stay in the cache and pad little.
        """
        self._device = next(model.parameters()).device
        micro = micro_tokens if micro_tokens is not None else 2048 if self._device.type == "cpu" else 16_384
        for name, value in (("epochs", epochs), ("minibatches", minibatches), ("micro_tokens", micro)):
            if value < 1:
                raise ConfigError(f"update.{name} must be at least 1, got {value}")
        self.model, self.optimiser, self.objective = model, optimiser, objective
        self._epochs, self._minibatches, self._micro = epochs, minibatches, micro
        self._autocast = autocast

    def step(self, batch: Batch, supervisor: Supervisor | None = None) -> dict[str, float]:
        """Update the model on a weighted batch; returns metrics (nats, shares, norms).

        With a `supervisor`, `batch.kl` weighs the divergence from its teacher instead of the one from a reference.
        """
        batch = batch.to(self._device)
        self.model.train()
        single = self._epochs == 1 and self._minibatches == 1
        old = None if single else self._before(batch)
        tally = _Tally()
        for epoch in range(self._epochs):
            for index in self._cut(len(batch), epoch):
                scale = len(batch) / len(index)  # a mini-batch is a fair sample of the batch
                for part in self._micro_batches(batch, index):
                    rows = batch.rows(part)
                    compare = None if supervisor is None else supervisor(part, rows.mask)
                    loss = self._loss(rows, None if old is None else old[part], tally, compare) * scale
                    loss.backward()
                tally.norms.append(self.optimiser.step())
        return tally.summary()

    def _loss(
        self, batch: Batch, old: torch.Tensor | None, tally: _Tally, compare: Compare | None = None
    ) -> torch.Tensor:
        objective = self.objective
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            scored = token_logprobs(self.model, batch.ids, batch.mask, compare)
        logprobs = scored.logprobs
        before = logprobs.detach() if old is None else old[:, : logprobs.shape[1]]
        terms = objective.loss(logprobs, before, batch.advantages, batch.mask)
        fix = objective.correction.weights(before, batch.engine, batch.mask)
        loss = (terms.loss * fix * batch.pg).sum() - (logprobs * batch.ce).sum()
        if scored.compared is not None:
            loss = loss + (scored.compared * batch.kl).sum()
            tally.add("divergence", scored.compared.detach(), batch.mask)
        elif objective.kl_weight:
            estimate = divergence.ESTIMATORS[objective.kl_estimator](logprobs, batch.reference)
            fair = divergence.with_ratio(estimate, logprobs, before)
            loss = loss + (fair * batch.kl).sum()
            tally.add("kl", estimate.detach(), batch.mask)
        tally.add("entropy", scored.entropy, batch.mask)
        tally.add("clip_share", terms.clipped.float(), batch.mask)
        known = batch.mask & ~torch.isnan(batch.engine)
        tally.add("mismatch", (before - torch.nan_to_num(batch.engine)).abs(), known)
        tally.loss += float(loss.detach())
        return loss

    @torch.no_grad()
    def _before(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities (R, T) before the first step."""
        found = torch.zeros_like(batch.engine)
        everything = torch.arange(len(batch), device=self._device)
        for part in self._micro_batches(batch, everything):
            rows = batch.rows(part)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                found[part, : rows.mask.shape[1]] = token_logprobs(self.model, rows.ids, rows.mask).logprobs
        return found

    def _cut(self, rows: int, epoch: int) -> list[torch.Tensor]:
        """Mini-batches of row numbers, mixed anew in every epoch by a generator that depends on nothing else."""
        if self._minibatches == 1:
            return [torch.arange(rows, device=self._device)]
        maker = torch.Generator().manual_seed(self.optimiser.taken)
        return list(torch.randperm(rows, generator=maker).to(self._device).chunk(self._minibatches))

    def _micro_batches(self, batch: Batch, index: torch.Tensor) -> Iterator[torch.Tensor]:
        """Cut `index` so that rows x longest row stays within the bound; rows of like length together."""
        lengths = batch.mask.long().mul(torch.arange(1, batch.mask.shape[1] + 1, device=self._device)).amax(1)[index]
        order = torch.argsort(lengths, stable=True)
        start, longest = 0, 0
        for end in range(len(index)):
            size = int(lengths[order[end]])
            if end > start and max(longest, size) * (end - start + 1) > self._micro:
                yield index[order[start:end]]
                start, longest = end, 0
            longest = max(longest, size)
        yield index[order[start:]]


class _Tally:
    """Sums over micro-batches."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.norms: list[float] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Add the masked values to the mean of `name`."""
        self._sums[name] = self._sums.get(name, 0.0) + float((values * mask).sum())
        self._counts[name] = self._counts.get(name, 0.0) + float(mask.sum())

    def summary(self) -> dict[str, float]:
        """Means by name, the loss, and the largest gradient norm."""
        means = {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}
        return {"loss": self.loss, "grad_norm": max(self.norms), **means}

