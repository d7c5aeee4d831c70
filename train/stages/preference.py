"""Preference optimisation: DPO, IPO, SimPO, ORPO or KTO on pairs from a file or from a run's rollouts.

Pairs of rollouts make it on-policy and repeatable: sample, prefer, sample again is iterative DPO (Yuan et al. 2024,
arXiv:2401.10020; Pang et al. 2024, arXiv:2404.19733, whose likelihood term is `likelihood`). Held out are whole
prompts; measured are the share of their pairs in which the chosen completion is the likelier one (per token where the
loss compares per token, as SimPO, ORPO and IPO do) and, with `held_out`, the accuracy on a task, both before and after.
`margin` and `pair_accuracy` of an update are of what its loss compares. The health rule `both_fall` watches the known
failure: chosen and rejected completions both becoming less likely. Left out: judges and learnt rewards as the source of
pairs.

A loss of `train/preferences` takes pairs, or single completions marked good or bad (KTO); both are computed from summed
log-probabilities of completions. For KTO every pair gives one good and one bad completion, and the reference point is
the divergence on prompts matched with another pair's completion, without a gradient (Ethayarajh et al. 2024); a file
may have single completions with a label instead of pairs (`train.offline.labels`).

The reference is the model that the stage starts from; its numbers never change, so they are computed once and kept in a
file named after the completions and the weights, and no second model stays in memory. Cost: a forward and backward pass
over both completions, for KTO a forward pass more, and once one of the reference.
"""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from evals.task import Task
from train.base.models import load_model, save_model, turn_tokenizer
from train.base.optimiser import Optimiser
from train.base.stage import Setting, Stage, StageResult, check_file, check_model, model_of
from train.base.weights import save_adapter
from train.examples.examples import FIELDS, Example, check_prompts, check_rows, mismatched, parted, within_context
from train.examples.imitation import completion_sums, imitation_batch, ranked_right
from train.examples.pairs import (
    PAIR_FIELDS,
    PER_PROBLEM,
    LabelledBatch,
    LabelledLoss,
    Pairs,
    PairSource,
    Preferred,
    Ranking,
    each_loss,
    ranking_of,
)
from train.examples.rows import is_marked
from train.measure.measure import TaskFields, gains
from train.offline.epochs import FitFields, fit
from train.offline.labels import MarkedUpdater, moved_right, read_marked
from train.registries import PREFERENCES, make
from train.update.logprobs import token_logprobs
from train.update.update import Build
from ttc.config.recipes import parse_spec
from ttc.config.values import at_least, finite
from ttc.durable import replaced_file
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Reference:
    """Summed log-probabilities by the reference, all (P,); `mismatched` only for losses on single completions."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    mismatched: torch.Tensor | None = None


class PairUpdater:
    """Holds the model, its optimiser and the pairs with their reference."""

    def __init__(
        self,
        model: Any,
        optimiser: Optimiser,
        pairs: Sequence[Preferred],
        reference: Reference,
        pad_id: int,
        loss: Callable[[Any], torch.Tensor],
        likelihood: float = 0.0,
        build: Build | None = None,
    ) -> None:
        """`likelihood` adds that much cross-entropy of the chosen completion per token.

        `loss` is of pairs, or of single completions where the reference has mismatched ones. `build` bounds the tokens
        of a pass, which is of whole pairs.
        """
        self._build = build or Build()
        longest = max((len(s.prompt_ids) + len(s.token_ids) for p in pairs for s in (p.chosen, p.rejected)), default=1)
        self.model, self.optimiser, self.pairs, self.reference = model, optimiser, pairs, reference
        self._pad_id, self._loss, self._likelihood = pad_id, loss, likelihood
        self._others = mismatched([pair.chosen for pair in pairs]) if reference.mismatched is not None else []
        self._device = next(model.parameters()).device
        self._micro = self._build.rows(2 * longest, self._device)

    def step(self, rows: Sequence[int]) -> dict[str, float]:
        """Update on the pairs of these numbers; nats, shares and norms.

        `margin` and `pair_accuracy` are of what the loss compares (`Ranking`). `chosen_ratio` and `rejected_ratio` are
        mean log-ratios to the reference. `chosen_falls` is by how much both completions fell below it: above 0 both
        did.
        """
        self.model.train()
        kl = self._divergence(rows)
        tally: dict[str, float] = {}
        for start in range(0, len(rows), self._micro):
            part = rows[start : start + self._micro]
            pairs = self._scored(part)
            loss = self._losses(pairs, kl).sum() / len(rows)
            if self._likelihood:
                likelihoods = pairs.weighted(pairs.chosen / pairs.chosen_length)
                loss = loss - self._likelihood * likelihoods.sum() / len(rows)
            loss.backward()
            for name, value in {"loss": loss.detach(), **_watched(pairs, ranking_of(self._loss))}.items():
                share = 1.0 if name == "loss" else len(part) / len(rows)
                tally[name] = tally.get(name, 0.0) + float(value) * share
        falls = -max(tally["chosen_ratio"], tally["rejected_ratio"])
        return {**tally, "chosen_falls": falls, "grad_norm": self.optimiser.step()}

    def _scored(self, part: Sequence[int]) -> Pairs:
        chosen = [self.pairs[row].chosen for row in part]
        rejected = [self.pairs[row].rejected for row in part]
        sums, lengths = self._sums([*chosen, *rejected])
        num, index = len(part), torch.tensor(part)
        return Pairs(
            chosen=sums[:num],
            rejected=sums[num:],
            chosen_length=lengths[:num],
            rejected_length=lengths[num:],
            reference_chosen=self.reference.chosen[index].to(self._device),
            reference_rejected=self.reference.rejected[index].to(self._device),
            weight=torch.tensor([self.pairs[row].weight for row in part], device=self._device),
        )

    def _sums(self, examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = imitation_batch(examples, self._pad_id, "token", 1).to(self._device)
        with self._build.computing(self._device):
            logprobs = token_logprobs(self.model, batch.ids, batch.mask).logprobs
        return logprobs.sum(1), batch.mask.sum(1).float()

    def _losses(self, pairs: Pairs, kl: torch.Tensor) -> torch.Tensor:
        """The loss of each pair, its weight included: (P,)."""
        if self.reference.mismatched is None or pairs.reference_chosen is None or pairs.reference_rejected is None:
            return each_loss(self._loss, pairs, pairs.chosen)
        right = torch.ones_like(pairs.chosen).bool()
        good = LabelledBatch(pairs.chosen, pairs.reference_chosen, right, kl)
        bad = LabelledBatch(pairs.rejected, pairs.reference_rejected, ~right, kl)
        first, second = (each_loss(self._loss, labelled, labelled.logprob) for labelled in (good, bad))
        return pairs.weighted((first + second) / 2)

    @torch.no_grad()
    def _divergence(self, rows: Sequence[int]) -> torch.Tensor:
        """KTO's reference point on these pairs."""
        if self.reference.mismatched is None:
            return torch.zeros((), device=self._device)
        sums = [self._sums([self._others[row]])[0] for row in rows]
        return (torch.cat(sums) - self.reference.mismatched[torch.tensor(rows)].to(self._device)).mean()


@torch.no_grad()
def _watched(pairs: Pairs, ranking: Ranking) -> dict[str, torch.Tensor]:
    """Means over pairs, so that those of micro-batches average to those of the update."""
    first, second = pairs.ranked("preference", Ranking())
    chosen, rejected = pairs.ranked("preference", ranking)
    return {
        "chosen_logprob": pairs.chosen.mean(),
        "rejected_logprob": pairs.rejected.mean(),
        "chosen_ratio": first.mean(),
        "rejected_ratio": second.mean(),
        "margin": (chosen - rejected).mean(),
        "pair_accuracy": (chosen > rejected).float().mean(),
    }


def reference_sums(
    source: Path, examples: Sequence[Example], folder: Path, device: str, pad_id: int, build: Build
) -> torch.Tensor:
    """Log-probability of each completion by the model in `source`, computed as `build` computes, nats: (R,)."""
    from safetensors.torch import load_file, save_file

    rounded = "-bf16" if build.casts(device) else ""  # or a policy that has not moved were apart from its reference
    path = folder / f"reference-{_digest(source, examples)}{rounded}.safetensors"
    if path.is_file():
        return typing.cast("torch.Tensor", load_file(str(path))["sums"])
    model = load_model(source, device, dtype=build.frozen_type(source, device))
    with build.computing(torch.device(device)):
        sums = torch.tensor([total for total, _ in completion_sums(model, examples, pad_id)])
    with replaced_file(path) as partial:
        save_file({"sums": sums}, str(partial))
    return sums


def _digest(source: Path, examples: Sequence[Example]) -> str:
    digest = hashlib.sha256(json.dumps([[e.prompt_ids, e.token_ids] for e in examples]).encode())
    for weights in sorted(source.glob("*.safetensors")):
        with weights.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course(FitFields):
    """At a constant rate."""

    decay: bool = False


def preference(
    *,
    data: str | None = None,
    rollouts: str | None = None,
    loss: str = "dpo",
    likelihood: float = 0.0,
    per_problem: int | None = PER_PROBLEM,
    measured: TaskFields,
    course: _Course,
    build: Build,
) -> Stage:
    """Learn from comparisons.

    Args:
        data: a JSON-lines file of pairs, for kto also of completions with a label; FILE:prompt=COLUMN,chosen=COLUMN,..
            names its columns, and ID:chosen=COLUMN,.. a data set.
        rollouts: a stage of this run that recorded rollouts, such as 2-sample, or a rollouts.jsonl.
        loss: NAME or NAME:KEY=VALUE,... of train/preferences.
        likelihood: weight of the chosen completion's own cross-entropy per token, against both falling.
        per_problem: most pairs of one problem's rollouts; None is all.
        measured: see `TaskFields`.
        course: see `FitFields`.
        build: see `Build`; rows of a pass are whole pairs, and weights are not split over processes here.
    """
    if build.shard:
        raise ConfigError("preference: shard is for grpo, ppo, agent, on_policy and sft; set it to false")
    pairs = PairSource.of("preference", data, rollouts, per_problem)
    at_least("preference", 0, likelihood=likelihood)
    finite("preference", likelihood=likelihood)
    return _Preference(pairs, make(PREFERENCES, loss), _on_single(loss), likelihood, measured, course, build)


def _on_single(spec: str) -> bool:
    """Whether a loss says by its type that it takes single completions instead of pairs."""
    factory = PREFERENCES.load(parse_spec(spec)[0])
    return bool(typing.get_type_hints(factory).get("return") == LabelledLoss)


@dataclass(frozen=True, slots=True)
class _Preference:
    source: PairSource
    loss: Any
    on_single: bool
    likelihood: float
    measured: TaskFields
    course: FitFields
    build: Build

    def check(self, has_model: bool) -> None:
        check_model("preference", has_model)
        self.measured.check()
        check_file("preference", self.source.data)
        self._check_rows(late=False)

    def _check_rows(self, late: bool) -> None:
        check_rows("preference", self.source.data, {*FIELDS, *PAIR_FIELDS, "label"}, self.measured.items(), late=late)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return self.measured.tasks()

    def run(self, setting: Setting) -> StageResult:
        source = model_of("preference", setting)
        self._check_rows(late=True)
        tokenizer = turn_tokenizer(source)
        if self.source.data is not None and is_marked(self.source.data):
            return self._marked(setting, source, self.source.data)
        pairs = self.source.load(setting, source, int(tokenizer.eos_token_id))
        if self.source.rollouts is not None:
            answered = (pair.chosen for pair in pairs)
            check_prompts("preference", self.source.rollouts, answered, Text(source), self.measured.items())
        within_context("preference", (side for pair in pairs for side in (pair.chosen, pair.rejected)), source)
        train, held_out = parted("preference", pairs, self.course.held_out_share, setting)
        held_out = held_out[: 4 * self.measured.held_out_limit]
        pad_id = int(tokenizer.pad_token_id)
        reference = self._reference(setting, source, train, pad_id)  # its model is gone before the one that is trained
        model = self.build.load(source, setting.device, setting.seed)
        sides = [pair.chosen for pair in held_out], [pair.rejected for pair in held_out]
        per_token = ranking_of(self.loss).per_token
        before = ranked_right(model, *sides, pad_id, per_token)
        optimiser = self.build.optimiser(model, self.course.schedule)
        updater = PairUpdater(model, optimiser, train, reference, pad_id, self.loss, self.likelihood, build=self.build)

        def evaluate() -> dict[str, float]:
            if not held_out:
                return {}
            return {"held_out_accuracy": fmean(ranked_right(model, *sides, pad_id, per_token))}

        last, stopped = fit(model, optimiser, len(train), updater.step, evaluate, self.course, setting)
        folder = setting.folder / "model"
        save_model(model, tokenizer, folder)
        save_adapter(model, folder)
        keys = [pair.key for pair in held_out]
        after = ranked_right(model, *sides, pad_id, per_token)
        numbers = {**last, **gains("ranked", before, after, setting.seed, keys)}
        return StageResult(str(folder), numbers | self.measured.gains(source, folder, setting), stopped)

    def _marked(self, setting: Setting, source: Path, data: Path) -> StageResult:
        """Learn from single completions with a label."""
        if not self.on_single:
            raise ConfigError(f'preference: the rows of {data} have labels and are not pairs: set loss = "kto"')
        tokenizer = turn_tokenizer(source)
        pad_id = int(tokenizer.pad_token_id)
        rows = read_marked(data, Text(source), int(tokenizer.eos_token_id))
        named = (replace(row.example, where=f"{data}, row {number}") for number, row in enumerate(rows, start=1))
        within_context("preference", named, source)
        train, held_out = parted("preference", rows, self.course.held_out_share, setting)
        trained = [row.example for row in train]
        measured = [row.example for row in held_out]
        sums = [
            reference_sums(source, examples, setting.folder, setting.device, pad_id, build)
            for examples, build in ((trained, self.build), (mismatched(trained), self.build), (measured, Build()))
        ]
        model = self.build.load(source, setting.device, setting.seed)
        optimiser = self.build.optimiser(model, self.course.schedule)
        updater = MarkedUpdater(model, optimiser, train, (sums[0], sums[1]), pad_id, self.loss, self.build)

        def evaluate() -> dict[str, float]:
            if not held_out:
                return {}
            return {"held_out_accuracy": fmean(moved_right(model, held_out, sums[2], pad_id))}

        last, stopped = fit(model, optimiser, len(train), updater.step, evaluate, self.course, setting)
        folder = setting.folder / "model"
        save_model(model, tokenizer, folder)
        save_adapter(model, folder)
        after = moved_right(model, held_out, sums[2], pad_id)
        keys = [row.key for row in held_out]
        numbers = {**last, **gains("moved", [0.5] * len(after), after, setting.seed, keys)}
        return StageResult(str(folder), numbers | self.measured.gains(source, folder, setting), stopped)

    def _reference(self, setting: Setting, source: Path, pairs: Sequence[Preferred], pad_id: int) -> Reference:
        sides = [*(pair.chosen for pair in pairs), *(pair.rejected for pair in pairs)]
        if self.on_single:
            sides += mismatched([pair.chosen for pair in pairs])
        sums = reference_sums(source, sides, setting.folder, setting.device, pad_id, self.build)
        num = len(pairs)
        return Reference(sums[:num], sums[num : 2 * num], sums[2 * num :] if self.on_single else None)
