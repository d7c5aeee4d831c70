"""One optimiser step over a batch: the update rule, micro-batches, clipping, precision and checkpointing.

The batch may be passed over several times (`epochs`) and cut into mini-batches, each an optimiser step; the ratio is
then taken against log-probabilities computed before the first of them. With one pass and one mini-batch the ratio is
exactly 1 and nothing is computed twice. `learn` is the whole of an update from rewards: the reference's and the
critic's numbers first, without a gradient, then the weights, the steps, and the critic's own. Cost: one forward and
backward pass per epoch, and a forward one more when there is more than one step, and for a reference.

Weights and optimiser moments are fp32 in every case; `autocast` computes in bf16 from them (Micikevicius et al. 2018,
arXiv:1710.03740, without loss scaling, which bf16 does not need), and in fp32 on a device that does not multiply bf16:
a CPU without AVX-512 BF16 or AMX emulates it at a fiftieth of the speed. Gradient checkpointing (Chen et al. 2016,
arXiv:1604.06174) costs one more forward pass and keeps one activation per layer. Adapters, and weights that are split
over the processes of a run: `train.base.weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import torch

from train.base.models import load_model, stored_type
from train.base.optimiser import Optimiser, Schedule
from train.base.weights import Sharded, add_lora, load_whole, merged_state, shard
from train.base.world import ALONE, World
from train.update.batch import Normaliser, TokenBatch, pass_tokens, shared, shuffled, token_weights
from train.update.logprobs import Compare, check_packing, keeps_apart, kindred, token_logprobs
from train.update.terms import Advantage, Correction, Loss, PerToken, RewardBatch, fair_kl, pulls
from ttc.config.plugins import checked_return, checked_shape
from ttc.config.values import above, at_least, counted, finite
from ttc.engines.shared.compute import pick_dtype
from ttc.errors import ConfigError, TrainingError
from ttc.seeds import derive

Supervisor: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Compare]
"""(numbers of some rows of the batch, their mask) -> the divergence from a teacher at their masked positions."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What an update minimises: a policy-gradient loss, how rewards become advantages, the pull of a reference.

    `kl_in` puts that pull into the loss, or into the reward of every token (InstructGPT; needs an advantage that reads
    rewards per token). `whiten` gives the advantages of a batch mean 0 and spread 1, as PPO does; the spread is that of
    these tokens (divided by their number). `entropy_weight` raises the policy's entropy per token.
    """

    loss: Loss
    advantage: Advantage
    normaliser: Normaliser = "token"
    max_tokens: int = 1024
    correction: Correction = field(default_factory=Correction)
    kl_weight: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    whiten: bool = False
    entropy_weight: float = 0.0

    def teaches(self, batch: TokenBatch) -> torch.Tensor:
        """Indices of the rows that move the weights: by an advantage, a divergence, the loss's own pull, entropy."""
        if self.entropy_weight or pulls(self.loss):
            return batch.mask.any(1).nonzero()[:, 0]
        return ((batch.advantages * batch.pg != 0) | (batch.kl != 0)).any(1).nonzero()[:, 0]

    @property
    def kl_loss(self) -> float:
        """Weight of the divergence in the loss."""
        return self.kl_weight if self.kl_in == "loss" else 0.0


def weighted(batch: TokenBatch, objective: Objective, outcome: RewardBatch) -> TokenBatch:
    """Fill in advantages and weights; the normaliser sees all that were judged of the whole batch, before it is cut."""
    weights = token_weights(batch.mask, objective.normaliser, objective.max_tokens, int(outcome.judged.sum()))
    advantages = checked_return("advantage", objective.advantage, objective.advantage(outcome), torch.Tensor)
    checked_shape("advantage", objective.advantage, advantages, batch.mask.shape)
    return replace(
        batch,
        advantages=advantages * batch.mask,
        pg=weights,
        kl=weights * objective.kl_loss if objective.kl_loss else batch.kl,
    )


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values (R, T) with mean 0 and spread 1 over the mask, 0 outside of it."""
    inside = values[mask]
    if inside.numel() < 2:
        return values * mask
    return (values - inside.mean()) / (inside.std(correction=0) + 1e-8) * mask


class Valuing(Protocol):
    """A critic, as `train.update.critic.Critic` is."""

    def values(self, batch: TokenBatch) -> torch.Tensor:
        """What reward is still to come before every token (R, T)."""
        ...

    def fit(self, batch: TokenBatch, old: torch.Tensor, returns: torch.Tensor) -> dict[str, float]:
        """Learn the `returns` of a batch whose values were `old`; returns metrics."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        ...


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
        reference: Any = None,
        reference_every: int | None = None,
        critic: Valuing | None = None,
        replayed: Callable[[int], TokenBatch] | None = None,
        packed: int = 0,
        world: World = ALONE,
    ) -> None:
        """`autocast` computes in bf16; `micro_tokens` bounds the padded tokens of one forward pass.

        Rows are cut so that passes and padding cost least together; by default 2,048 tokens on a CPU, 16,384 on a GPU.
        `reference` is a model that is never trained, for the objective's divergence; every `reference_every` updates it
        becomes the policy of that moment. `replayed(step)` is a batch of earlier data whose cross-entropy every
        optimiser step adds (PPO-ptx). `packed` lays the rows of an update end to
        end (see `train.update.logprobs`). In a `world` the optimiser must be one of the same world.
        """
        if packed:
            check_packing(model)
        self._device = next(model.parameters()).device
        micro = pass_tokens(micro_tokens, self._device)
        for name, value in (("epochs", epochs), ("minibatches", minibatches), ("micro_tokens", micro)):
            if value < 1:
                raise ConfigError(f"update.{name} must be at least 1, got {value}")
        self.model, self.optimiser, self.objective = model, optimiser, objective
        self._epochs, self._minibatches, self._micro = epochs, minibatches, micro
        self._autocast, self._packed = autocast, packed
        self._reference, self.critic, self._replayed, self._world = reference, critic, replayed, world
        self._reference_every, self._renewals, self.learnt = reference_every, 0, 0

    def learn(self, batch: TokenBatch, outcome: RewardBatch) -> dict[str, float]:
        """Update on a batch without weights and its rewards; returns metrics, without a norm if nothing is learnt.

        All rows count in means, spreads and weights; those that cannot move the model are left out of its passes.

        Raises:
            ConfigError: an objective with a divergence, and no reference.
        """
        objective, metrics = self.objective, {}
        if objective.kl_weight and not batch.reference.any():
            batch = replace(batch, reference=self.reference_logprobs(batch))
        self.learnt += 1
        if objective.kl_weight and objective.kl_in == "reward":
            gap = (self._without_gradient(self.model, batch) - batch.reference) * batch.mask
            outcome = replace(outcome, steps=-objective.kl_weight * gap)
            metrics["kl"] = float(gap.sum() / batch.mask.sum().clamp(min=1))
        if self.critic is not None:
            outcome = replace(outcome, values=self.critic.values(batch))
        ready = weighted(batch, objective, outcome)
        if self.critic is not None and outcome.values is not None:
            metrics |= self.critic.fit(batch, outcome.values, ready.advantages + outcome.values)
        if objective.whiten:
            ready = replace(ready, advantages=whitened(ready.advantages, ready.mask))
        index = objective.teaches(ready)
        return metrics if not len(index) else {**self.step(ready.rows(self._enough(ready, index))), **metrics}

    def _enough(self, batch: TokenBatch, index: torch.Tensor) -> torch.Tensor:
        """`index`, and where weights are split rows that teach nothing, too: every process has one in every pass."""
        least = self._minibatches * self._world.size if isinstance(self.model, Sharded) else 0
        rows = batch.mask.any(1).nonzero()[:, 0]
        idle = rows[~torch.isin(rows, index)][: max(least - len(index), 0)]
        return torch.cat([index, idle]).sort().values

    @property
    def has_reference(self) -> bool:
        """Whether there is a model to measure the divergence from."""
        return self._reference is not None

    def reference_logprobs(self, batch: TokenBatch) -> torch.Tensor:
        """Log-probabilities (R, T) of the batch's tokens by the reference, which is renewed first where that is due.

        Raises:
            ConfigError: there is no reference.
        """
        if self._reference is None:
            raise ConfigError("kl_weight is above 0, but the update has no reference model")
        if self._reference_every is not None and self.learnt // self._reference_every > self._renewals:
            load_whole(self._reference, merged_state(self.model))
            self._renewals = self.learnt // self._reference_every
        return self._without_gradient(self._reference, batch)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the policy's weights."""
        state = {**self.optimiser.state(), **({} if self.critic is None else {"critic": self.critic.state()})}
        if self._reference_every is None:
            return state
        counts = {"learnt": self.learnt, "renewals": self._renewals}
        return {**state, "reference": merged_state(self._reference), **counts}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.optimiser.load(state)
        if self._reference_every is not None:
            load_whole(self._reference, state["reference"])
            self.learnt, self._renewals = int(state["learnt"]), int(state["renewals"])
        if self.critic is not None:
            self.critic.load(state["critic"])

    def step(self, batch: TokenBatch, supervisor: Supervisor | None = None) -> dict[str, float]:
        """Update the model on a weighted batch; returns metrics (nats, shares, norms, tokens of a pass over it).

        With a `supervisor`, `batch.kl` weighs the divergence from its teacher instead of the one from a reference.
        """
        minibatches = self._minibatches
        if isinstance(self.model, Sharded):
            minibatches = min(minibatches, len(batch) // self._world.size)
        if not minibatches:
            number = counted(len(batch), "row")
            raise TrainingError(f"{number}: too few for {self._world.size} processes that share the weights")
        batch = batch.to(self._device)
        self.model.train()
        single = self._epochs == 1 and self._minibatches == 1
        old = None if single else self._without_gradient(self.model, batch)
        tally = _Tally()
        for _ in range(self._epochs):
            for index in shuffled(len(batch), minibatches, self.optimiser.taken):
                scale = len(batch) / len(index)  # a mini-batch is a fair sample of the batch
                for part in self._micro_batches(batch, index):
                    rows = batch.rows(part)
                    compare = None if supervisor is None else supervisor(part, rows.mask)
                    loss = self._loss(rows, None if old is None else old[part], tally, compare) * scale
                    loss.backward()
                    tally.loss += float(loss.detach())
                if self._replayed is not None:
                    self._replay(self._replayed(self.optimiser.taken), tally)
                tally.norms.append(self.optimiser.step())
        return {**tally.summary(self._world), "lr": self.optimiser.rate, "tokens_learnt": float(batch.mask.sum())}

    def _loss(
        self, batch: TokenBatch, old: torch.Tensor | None, tally: _Tally, compare: Compare | None = None
    ) -> torch.Tensor:
        objective = self.objective
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            scored = token_logprobs(
                self.model, batch.ids, batch.mask, compare, packed=self._packed, moves=objective.entropy_weight > 0
            )
        logprobs = scored.logprobs
        # with a single optimiser step the policy that sampled is the one that is updated, so the ratio is exactly 1
        before = logprobs.detach() if old is None else old[:, : logprobs.shape[1]]
        returned = objective.loss(logprobs, before, batch.advantages, batch.mask)
        terms = checked_return("loss", objective.loss, returned, PerToken)
        checked_shape("loss", objective.loss, terms.loss, batch.mask.shape)
        fix = objective.correction.weights(before, batch.engine, batch.mask)
        loss = (terms.loss * fix * batch.pg).sum() - (logprobs * batch.ce).sum()
        if scored.compared is not None:
            loss = loss + (scored.compared * batch.kl).sum()
            tally.add("divergence", scored.compared.detach(), batch.mask)
        elif objective.kl_loss:
            estimate, fair = fair_kl(objective.kl_estimator, logprobs, batch.reference, before)
            loss = loss + (fair * batch.kl).sum()
            tally.add("kl", estimate.detach(), batch.mask)
        if objective.entropy_weight:
            loss = loss - objective.entropy_weight * (scored.entropy * batch.pg).sum()
        tally.add("entropy", scored.entropy.detach(), batch.mask)
        tally.add("clip_share", terms.clipped.float(), batch.mask)
        if old is not None:
            tally.add("clip_high", (terms.clipped & (batch.advantages > 0)).float(), batch.mask)
            tally.add("clip_low", (terms.clipped & (batch.advantages < 0)).float(), batch.mask)
            tally.add_shares("ratio", torch.exp(logprobs.detach() - before), batch.mask, _RATIOS)
        is_known = batch.mask & ~torch.isnan(batch.engine)
        tally.add("mismatch", (before - torch.nan_to_num(batch.engine)).abs(), is_known)
        return loss

    def _replay(self, batch: TokenBatch, tally: _Tally) -> None:
        """Add the gradient of earlier data's cross-entropy."""
        batch = batch.to(self._device)
        for part in self._micro_batches(batch, torch.arange(len(batch))):
            rows = batch.rows(part)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                logprobs = token_logprobs(self.model, rows.ids, rows.mask).logprobs
            loss = -(logprobs * rows.ce).sum()
            loss.backward()
            tally.add("ptx_loss", -logprobs.detach(), rows.mask)
            tally.loss += float(loss.detach())

    @torch.no_grad()
    def _without_gradient(self, model: Any, batch: TokenBatch) -> torch.Tensor:
        """Log-probabilities (R, T) of the batch's tokens under `model`, on the device of the batch.

        With fewer rows than processes each computes all: a process without a row would block split weights.
        """
        world = self._world if len(batch) >= self._world.size else ALONE
        logprobs = torch.zeros_like(batch.engine)
        for part in self._micro_batches(batch, torch.arange(len(batch), device=batch.mask.device), world):
            rows = batch.rows(part)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                scored = token_logprobs(model, rows.ids.to(self._device), rows.mask.to(self._device))
            logprobs[part, : rows.mask.shape[1]] = scored.logprobs.to(logprobs.device)
        world.add([logprobs])
        return logprobs

    def _micro_batches(
        self, batch: TokenBatch, index: torch.Tensor, world: World | None = None
    ) -> Iterator[torch.Tensor]:
        kin = None if self._packed else kindred(self.model, batch.ids, batch.mask)
        return shared(batch.mask, index, self._micro, self._world if world is None else world, kin)


_RATIOS = (0.0, 0.5, 0.8, 0.95, 1.05, 1.2, 1.5, 2.0)
"""Lower edges of the histogram of the probability ratio."""


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

    def add_shares(self, name: str, values: torch.Tensor, mask: torch.Tensor, edges: Sequence[float]) -> None:
        """Add the masked values to a histogram: `NAME/EDGE` is the share at or above an edge and below the next."""
        place = torch.bucketize(values, torch.tensor(edges, device=values.device), right=True) - 1
        for number, edge in enumerate(edges):
            self.add(f"{name}/{edge:g}", (place == number).float(), mask)

    def summary(self, world: World = ALONE) -> dict[str, float]:
        """Means by name over all processes, the loss as a mean over optimiser steps, and the largest gradient norm."""
        sums, counts, loss = dict[str, float](), dict[str, float](), 0.0
        for tally in world.gather([self]):
            loss += tally.loss
            for name, total in tally._sums.items():
                sums[name] = sums.get(name, 0.0) + total
                counts[name] = counts.get(name, 0.0) + tally._counts[name]
        means = {name: total / counts[name] for name, total in sums.items() if counts[name]}
        norms = {"grad_norm_mean": sum(self.norms) / len(self.norms), "grad_norm_min": min(self.norms)}
        return {"loss": loss / len(self.norms), "grad_norm": max(self.norms), **norms, **means}


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Fields of every stage that may train more than all weights in fp32.

    Args:
        lora: rank of low-rank adapters on all linear layers; 0 trains all weights.
        lora_alpha: their scale; None is twice the rank.
        checkpointing: compute activations again in the backward pass instead of keeping them.
        autocast: compute in bf16, with fp32 weights; in fp32 on a device without bf16 multiplication.
        shard: split the weights over the processes of the run (FSDP2); with one process, do nothing.
        micro_tokens: most padded tokens of one forward and backward pass; None is 2,048 on a CPU, 16,384 on a GPU.
        weight_decay: AdamW's weight decay, a share of every weight per step, times the learning rate.
        clip_norm: norm to which larger gradients are clipped; inf does not clip.
    """

    lora: int = 0
    lora_alpha: float | None = None
    checkpointing: bool = False
    autocast: bool = False
    shard: bool = False
    micro_tokens: int | None = None
    weight_decay: float = 0.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Refuse impossible numbers for adapters, passes or the optimiser."""
        at_least("update", 1, micro_tokens=self.micro_tokens)
        at_least("update", 0, weight_decay=self.weight_decay)
        finite("update", weight_decay=self.weight_decay, lora_alpha=self.lora_alpha)
        above("update", 0, clip_norm=self.clip_norm)
        alpha = self.lora_alpha
        if self.lora < 0 or (alpha is not None and (not self.lora or not alpha > 0)):
            raise ConfigError(f"lora must be at least 0, and lora_alpha above 0 with it: {self.lora}, {alpha}")

    def load(self, folder: Path, device: str, seed: int, world: World = ALONE) -> Any:
        """The model of a folder, ready to be trained; `seed` is the run's."""
        model = load_model(folder, device, checkpointing=self.checkpointing, dtype=self.frozen_type(folder, device))
        if self.lora:
            self.adapt(model, seed)
        return self._split(model, world)

    def adapt(self, model: Any, seed: int, head: torch.nn.Module | None = None) -> None:
        """Put the adapters on a model that was loaded; `head` is one of its own that is trained whole."""
        alpha = 2.0 * self.lora if self.lora_alpha is None else self.lora_alpha
        add_lora(model, self.lora, alpha, derive(seed, "lora") % (1 << 31), head)

    def frozen(self, folder: Path, device: str, world: World = ALONE) -> Any:
        """The model of a folder that is only read, split like the trained one."""
        return self._split(load_model(folder, device, dtype=self.frozen_type(folder, device)).eval(), world)

    def _split(self, model: Any, world: World) -> Any:
        if not self.shard:
            return model
        keeps_apart(model)  # measured while the weights are whole
        return shard(model, world, token_logprobs)

    def casts(self, device: str | torch.device) -> bool:
        """Whether passes on `device` compute in bf16."""
        return self.autocast and pick_dtype("auto", torch.device(device)) == torch.bfloat16

    def frozen_type(self, folder: Path, device: str) -> torch.dtype:
        """Under adapters, where passes compute in bf16, weights that were stored in it stay there: they never move."""
        return stored_type(folder) if self.lora and self.casts(device) else torch.float32

    def optimiser(self, model: Any, schedule: Schedule, world: World = ALONE) -> Optimiser:
        """AdamW over what is trained of `model`."""
        return Optimiser(model, schedule, world=world, weight_decay=self.weight_decay, clip=self.clip_norm)

    def rows(self, longest: int, device: str | torch.device) -> int:
        """Rows of `longest` tokens in one pass, for passes counted in rows; at least one."""
        return max(pass_tokens(self.micro_tokens, torch.device(device)) // max(longest, 1), 1)

    def computing(self, device: torch.device) -> torch.autocast:
        """The context that every pass runs in: bf16 with `autocast`, where the device multiplies it."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.casts(device))
