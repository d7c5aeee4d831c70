"""Preference optimisation: DPO, IPO, SimPO, ORPO or KTO on pairs from a file or from a run's rollouts.

Pairs of rollouts make it on-policy and repeatable: sample, prefer, sample again is iterative DPO (Yuan et al. 2024,
arXiv:2401.10020; Pang et al. 2024, arXiv:2404.19733, whose likelihood term is `likelihood`). The reference is the model
that the stage starts from, its log-probabilities computed once and kept on disk. Held out are whole prompts; measured
are the share of their pairs in which the chosen completion is the likelier one and, with `held_out`, the accuracy on a
task, both before and after. The health rule `both_fall` watches the known failure: chosen and rejected completions
both becoming less likely. Left out: judges and learnt rewards as the source of pairs.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.task import Task
from train.base.models import load_model, load_tokenizer, save_model
from train.base.optimiser import Optimiser
from train.base.stage import Setting, Stage, StageResult, check_file, check_model, model_of
from train.examples.examples import parted
from train.examples.imitation import ranked_right
from train.examples.pairs import LabelledLoss, PairLoss, PairSource, Preferred
from train.measure.measure import gains, task_gains
from train.offline.epochs import Fit, FitFields
from train.offline.preference_update import PairUpdater, Reference, mismatched, reference_sums
from train.registries import PREFERENCES, make, make_task
from ttc.config.recipes import parse_spec
from ttc.errors import ConfigError


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
    per_problem: int | None = 4,
    held_out: str | None = None,
    held_out_limit: int = 128,
    course: _Course,
) -> Stage:
    """Learn from comparisons.

    Args:
        data: a JSON-lines file of pairs.
        rollouts: a stage of this run that recorded rollouts, such as 2-sample, or a rollouts.jsonl.
        loss: NAME or NAME:KEY=VALUE,... of train/preferences.
        likelihood: weight of the chosen completion's own cross-entropy per token, against both falling.
        per_problem: most pairs of one problem's rollouts; None is all.
        held_out: also measure the accuracy on this task, NAME or NAME:KEY=VALUE,...
        held_out_limit: most problems of that task.
        course: see `FitFields`.
    """
    pairs = PairSource("preference", None if data is None else Path(data).expanduser(), rollouts, per_problem)
    pairs.check()
    if likelihood < 0:
        raise ConfigError(f"preference: likelihood must be at least 0, got {likelihood}")
    return _Preference(
        source=pairs,
        loss=make(PREFERENCES, loss),
        on_single=_on_single(loss),
        likelihood=likelihood,
        course=course,
        task=None if held_out is None else make_task(held_out),
        limit=held_out_limit,
    )


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
    course: FitFields
    task: Task | None
    limit: int

    def check(self, has_model: bool) -> None:
        """See `Stage.check`."""
        check_model("preference", has_model)
        check_file("preference", self.source.data)
        if self.task is not None:
            self.task.items(self.limit, 0)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """See `Asking.tasks`."""
        return {} if self.task is None else {"held_out": (self.task, self.limit)}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`."""
        source = model_of("preference", setting)
        tokenizer = load_tokenizer(source)
        pairs = self.source.load(setting, source, int(tokenizer.eos_token_id))
        train, held_out = parted("preference", pairs, self.course.held_out_share, setting)
        held_out = held_out[: 4 * self.limit]
        pad_id = int(tokenizer.pad_token_id)
        model = load_model(source, setting.device)
        sides = [pair.chosen for pair in held_out], [pair.rejected for pair in held_out]
        before = ranked_right(load_model(source, setting.device), *sides, pad_id)
        pair_loss: PairLoss | None = None if self.on_single else self.loss
        updater = PairUpdater(
            model,
            Optimiser(model, self.course.schedule),
            train,
            self._reference(setting, source, train, pad_id),
            pad_id,
            pair_loss=pair_loss,
            labelled_loss=self.loss if self.on_single else None,
            likelihood=self.likelihood,
        )

        def evaluate() -> dict[str, float]:
            right = ranked_right(model, *sides, pad_id)
            return {"held_out_accuracy": sum(right) / len(right)}

        fit = Fit(model, updater.optimiser, len(train), updater.step, evaluate)
        last, stopped = fit.run(self.course.pace, self.course.rules, setting)
        folder = setting.folder / "model"
        save_model(model, tokenizer, folder)
        keys = [pair.key for pair in held_out]
        numbers = {**last, **gains("ranked", before, ranked_right(model, *sides, pad_id), setting.seed, keys)}
        if self.task is not None:
            numbers |= task_gains(self.task, self.limit, source, folder, setting)
        return StageResult(str(folder), numbers, stopped)

    def _reference(self, setting: Setting, source: Path, pairs: Sequence[Preferred], pad_id: int) -> Reference:
        sides = [*(pair.chosen for pair in pairs), *(pair.rejected for pair in pairs)]
        if self.on_single:
            sides += mismatched(pairs)
        sums = reference_sums(source, sides, setting.folder, setting.device, pad_id)
        num = len(pairs)
        return Reference(sums[:num], sums[num : 2 * num], sums[2 * num :] if self.on_single else None)
