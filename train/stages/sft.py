"""Supervised fine-tuning: cross-entropy on the completion's tokens, the prompt's masked out by length.

Rows come from a JSON-lines file (see `train.examples.rows`: thinking on, off or left open per row), from a corpus
of `train/corpora`, or from a run's rollouts that were judged right: rejection sampling (Yuan et al. 2023,
arXiv:2308.01825; STaR, Zelikman et al. 2022), with thinking as it was sampled. It is the common update rule with only
cross-entropy weights. Whole prompts are held out; it measures the probability per token of their completions and, with
`held_out`, the accuracy on a task, both before and after. Rows and rollouts that are problems of that task, and rows
longer than the model's context, are refused. Rows may be packed (`train.update.logprobs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from evals.task import Task
from train.advantages.batch import batch as batch_advantage
from train.base.models import save_model, turn_tokenizer
from train.base.stage import Setting, Stage, StageResult, check_file, check_model, model_of, read_with, rollouts_path
from train.base.weights import save_adapter
from train.examples.examples import (
    CORPORA,
    FIELDS,
    Corpus,
    Example,
    check_prompts,
    check_rows,
    corpus_examples,
    parted,
    read_examples,
    right_rollouts,
    within_context,
)
from train.examples.imitation import imitation_batch, mean_loss, probabilities
from train.losses.ppo import ppo
from train.measure.measure import TaskFields, gains
from train.offline.epochs import FitFields, fit
from train.registries import make
from train.update.batch import Normaliser
from train.update.update import Build, Objective, Updater
from ttc.config.values import at_least
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError

_CORPUS_ROWS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course(FitFields):
    """Measured and saved less often than in other stages."""

    eval_every: int = 50
    save_every: int = 100


def sft(
    *,
    data: str | None = None,
    corpus: str | None = None,
    rollouts: str | None = None,
    per_problem: int | None = None,
    shortest: bool = False,
    corpus_rows: int = _CORPUS_ROWS,
    normaliser: Normaliser = "token",
    packed: int = 0,
    measured: TaskFields,
    course: _Course,
    build: Build,
) -> Stage:
    """Fine-tune on completions.

    Args:
        data: a JSON-lines file of prompts and completions; FILE:prompt=COLUMN,completion=COLUMN names its columns, and
            ID:split=..,prompt=COLUMN,.. a data set.
        corpus: a language of train/corpora, NAME or NAME:KEY=VALUE,...; answers are learnt, or whole texts without one.
        rollouts: a stage of this run that recorded rollouts, such as 2-sample, or a rollouts.jsonl; right ones count.
        per_problem: most right rollouts per problem; None is all.
        shortest: take the shortest of them first.
        corpus_rows: texts drawn from a corpus.
        normaliser: token, or sequence for the mean of each completion first.
        packed: pack rows end to end into rows of this many tokens, which do not attend to each other; 0 pads instead.
        measured: see `TaskFields`.
        course: see `FitFields`.
        build: see `Build`.
    """
    if data is None and corpus is None and rollouts is None:
        raise ConfigError("sft: give at least one of data, corpus and rollouts; several are mixed")
    read_with("sft", "rollouts", rollouts, per_problem=per_problem is not None, shortest=shortest)
    read_with("sft", "per_problem", per_problem, shortest=shortest)
    read_with("sft", "corpus", corpus, corpus_rows=corpus_rows != _CORPUS_ROWS)
    at_least("sft", 1, per_problem=per_problem, corpus_rows=corpus_rows)
    at_least("sft", 0, packed=packed)
    return _Sft(
        data=None if data is None else Path(data).expanduser(),
        corpus=None if corpus is None else make(CORPORA, corpus),
        rollouts=rollouts,
        picked=(per_problem, shortest, corpus_rows),
        course=course,
        measured=measured,
        normaliser=normaliser,
        packed=packed,
        build=build,
    )


@dataclass(frozen=True, slots=True)
class _Sft:
    data: Path | None
    corpus: Corpus | None
    rollouts: str | None
    picked: tuple[int | None, bool, int]
    course: FitFields
    measured: TaskFields
    normaliser: Normaliser
    packed: int
    build: Build

    distributed: ClassVar[bool] = True

    def check(self, has_model: bool) -> None:
        check_model("sft", has_model)
        self.measured.check()
        check_file("sft", self.data)
        self._check_rows(late=False)

    def _check_rows(self, late: bool) -> None:
        check_rows("sft", self.data, FIELDS, self.measured.items(), late=late)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return self.measured.tasks()

    def run(self, setting: Setting) -> StageResult:
        source = model_of("sft", setting)
        self._check_rows(late=True)
        tokenizer = turn_tokenizer(source)
        examples = self._examples(setting, source, int(tokenizer.eos_token_id))
        within_context("sft", examples, source)
        train, held_out = parted("sft", examples, self.course.held_out_share, setting)
        held_out = held_out[: self.measured.held_out_limit]
        model = self.build.load(source, setting.device, setting.seed, setting.world)
        pad_id = int(tokenizer.pad_token_id)
        before = probabilities(model, held_out, pad_id)
        objective = Objective(ppo(), batch_advantage())  # its weights are 0: only cross-entropy counts
        world = setting.world
        updater = Updater(
            model, self.build.optimiser(model, self.course.schedule, world), objective, packed=self.packed,
            autocast=self.build.casts(setting.device), micro_tokens=self.build.micro_tokens, world=world,
        )  # fmt: skip
        longest = max(len(example.token_ids) for example in train)

        def update(rows: Sequence[int]) -> dict[str, float]:
            batch = imitation_batch([train[row] for row in rows], pad_id, self.normaliser, longest)
            metrics = updater.step(batch)
            return {name: metrics[name] for name in ("loss", "grad_norm", "entropy", "tokens_learnt")}

        def evaluate() -> dict[str, float]:
            return {"held_out_loss": mean_loss(model, held_out, pad_id)} if held_out else {}

        last, stopped = fit(model, updater.optimiser, len(train), update, evaluate, self.course, setting)
        folder = setting.folder / "model"
        save_model(model, tokenizer, folder, writes=world.main)
        save_adapter(model, folder, writes=world.main)
        after = probabilities(model, held_out, pad_id)
        if not world.main:
            return StageResult(str(folder), last, stopped)
        keys = [example.key for example in held_out]
        numbers = {**last, **gains("likelihood", before, after, setting.seed, keys, smooth=True)}
        return StageResult(str(folder), numbers | self.measured.gains(source, folder, setting), stopped)

    def _examples(self, setting: Setting, source: Path, end: int) -> list[Example]:
        per_problem, shortest, corpus_rows = self.picked
        examples: list[Example] = []
        if self.data is not None:
            examples += read_examples(self.data, Text(source), end)
        if self.rollouts is not None:
            path, alone = rollouts_path(self.rollouts, setting), self.data is None and self.corpus is None
            right = right_rollouts(path, most=per_problem, shortest=shortest, needed=alone)
            check_prompts("sft", self.rollouts, right, Text(source), self.measured.items())
            if not right:
                setting.log(f"{self.rollouts} has no correct, finished rollout: only the other rows are used")
            examples += right
        if self.corpus is not None:
            examples += corpus_examples(self.corpus, Text(source), end, corpus_rows, setting.seed)
        return examples
