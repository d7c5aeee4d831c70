"""Process reward models from step labels: of people or exact checkers in a file, or of continuations (Math-Shepherd).

Lightman et al. 2023 (arXiv:2305.20050); Wang et al. 2024 (arXiv:2312.08935). The model's body is the policy's; it is
written to `prm`, which `--scorer prm:FOLDER` reads, and the policy passes through. Measured on held-out problems, or on
a file of labels made in another way: the share of steps judged rightly at one half before and after, and first-error F1
with a threshold fitted on the training rows. Cost: a forward and backward pass per row. Labels without people:
`train.reward_models.monte_carlo`. Left out: learning where steps end.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from evals.data.steps import Labelled, read_labelled
from evals.numbers.step_metrics import Judged, first_error, fit_threshold, ranking
from evals.task import Task
from train.base.models import checkpoint_layers, load_tokenizer
from train.base.stage import Setting, Stage, StageResult, check_file, check_model, model_of, one_of, pass_through
from train.examples.examples import Example, parted, within_context
from train.measure.measure import EXACT, check_engine, gains, opened
from train.offline.epochs import FitFields, fit
from train.registries import make_task
from train.reward_models.monte_carlo import DrawJournal, MonteCarlo
from train.reward_models.reward_models import STEP_LABELS, check_kind_of_head, save_scorer
from train.reward_models.step_model import Form, StepModel, StepRow, Steps, new_step_model
from train.update.update import Build
from ttc import seeds
from ttc.config.values import above, at_least, counted
from ttc.core import Sampling
from ttc.durable import replace_text
from ttc.engines.shared.shape import read_config, supported
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.verifiers.steps import prefixes


def prm(
    *,
    data: str | None = None,
    task: str | None = None,
    step_delimiter: str = "\n\n",
    limit: int | None = None,
    n: int = 4,
    continuations: int = 8,
    rounds: int = 4,
    hard: bool = False,
    form: Form = "label",
    good: str | None = None,
    bad: str | None = None,
    measured: str | None = None,
    engine: str = EXACT,
    course: FitFields,
    build: Build,
) -> Stage:
    """Learn to judge steps.

    Args:
        data: a JSON-lines file of solutions in steps with labels, as `ttc steps` writes and reads them.
        task: make labels by continuing solutions of this task, NAME or NAME:KEY=VALUE,...
        step_delimiter: text that ends a step.
        limit: most problems of the task.
        n: solutions per problem.
        continuations: completions per prefix, on average; they go first to the least certain prefixes.
        rounds: in how many rounds they are drawn; 1 draws equally many everywhere.
        hard: a step is right when any continuation is, instead of by their share.
        form: label (two labels on the body) or token (a language model that says good or bad).
        good: the token that says right, for form token.
        bad: the token that says wrong, for form token.
        measured: a file of labelled steps to measure on, instead of held-out rows of its own.
        engine: engine that samples, NAME or NAME:KEY=VALUE,...: in this process, or servers (vllm:base_url=...).
        course: see `FitFields`.
        build: see `Build`; not split over processes.
    """
    if build.shard:
        raise ConfigError("prm: one process trains it; leave shard out")
    one_of("prm", data=data, task=task)
    at_least("prm", 1, n=n, continuations=continuations, rounds=rounds, limit=limit)
    if (form == "token") != (good is not None and bad is not None):
        raise ConfigError("prm: form token needs good and bad, and form label has neither")
    files = [None if file is None else Path(file).expanduser() for file in (data, measured)]
    words = None if good is None or bad is None else (good, bad)
    problems, labels = None if task is None else make_task(task), (n, continuations, rounds, hard)
    above("prm", 0, held_out_share=course.held_out_share)  # whether it learnt to judge shows there alone
    return _Prm(files[0], problems, step_delimiter, limit, labels, form, words, files[1], engine, course, build)


@dataclass(frozen=True, slots=True)
class _Prm:
    data: Path | None
    task: Task | None
    delimiter: str
    limit: int | None
    labels: tuple[int, int, int, bool]
    form: Form
    words: tuple[str, str] | None
    measured: Path | None
    engine: str
    course: FitFields
    build: Build

    def check(self, has_model: bool) -> None:
        check_model("prm", has_model)
        check_engine(self.engine)
        check_file("prm", self.data)
        check_file("prm", self.measured)
        if self.task is not None:
            self.task.items(self.limit, 0)

    def check_family(self, model: Path) -> None:
        """Raise ConfigError for a model without a head that labels steps."""
        if self.form == "label":
            check_kind_of_head(STEP_LABELS, model)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return {} if self.task is None else {"task": (self.task, self.limit)}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`; draws are kept as they come, and labels once they are all made."""
        source = model_of("prm", setting)
        tokenizer = load_tokenizer(source)
        pad_id = int(tokenizer.pad_token_id)
        train, held_out = self._rows(setting, source)
        solutions = (Example(row.key, row.ids, (), where=f"a solution of {row.key}") for row in (*train, *held_out))
        within_context("prm", solutions, source)
        seed = seeds.derive(setting.seed, "prm") % (1 << 31)
        if not supported(read_config(source)):
            setting.log(
                f"the scorer prm reads Llama, Mistral, Qwen2 and Qwen3, not {source}: a model made from it can "
                "only reward the steps of grpo (process_reward)"
            )
        dtype = self.build.frozen_type(source, setting.device)
        model = new_step_model(source, self.form, self.delimiter, self.words, seed, setting.device, dtype)
        device = next(model.network.parameters()).device
        if self.build.checkpointing:
            checkpoint_layers(model.network)

        def judge(rows: Sequence[StepRow]) -> list[Judged]:
            with self.build.computing(device):
                return judgements(model, rows, pad_id)

        before = judge(held_out)
        if self.build.lora:
            self.build.adapt(model.network, setting.seed, getattr(model.network, "score", None))
        optimiser = self.build.optimiser(model.network, self.course.schedule)
        most = self.build.rows(max(len(row.ids) for row in train), device)

        def update(rows: Sequence[int]) -> dict[str, float]:
            model.network.train()
            num_labels, total = [len(train[row].labelled()) for row in rows], 0.0
            for start in range(0, len(rows), most):
                place = slice(start, start + most)
                share = sum(num_labels[place]) / max(sum(num_labels), 1)
                with self.build.computing(device):
                    loss = model.loss([train[row] for row in rows[place]], pad_id) * share
                loss.backward()
                total += float(loss.detach())
            return {"loss": total, "grad_norm": optimiser.step()}

        def evaluate() -> dict[str, float]:
            return {"held_out_accuracy": fmean(value for value, _ in _right(judge(held_out)))}

        last, stopped = fit(model.network, optimiser, len(train), update, evaluate, self.course, setting)
        model.network.config.ttc_prm = dict(model.reading)
        task = "CAUSAL_LM" if self.form == "token" else "TOKEN_CLS"
        save_scorer(model.network, tokenizer, setting.folder / "prm", task)
        threshold = fit_threshold(judge(train))
        numbers = {**last, **_measured(before, judge(held_out), threshold, setting.seed)}
        return StageResult(pass_through(setting), numbers, stopped)

    def _rows(self, setting: Setting, source: Path) -> tuple[list[StepRow], list[StepRow]]:
        rows = self._labelled(setting, source)
        if self.measured is not None:
            return rows, read_steps(self.measured, source, self.delimiter)
        return parted("prm", rows, self.course.held_out_share, setting)

    def _labelled(self, setting: Setting, source: Path) -> list[StepRow]:
        if self.data is not None:
            return read_steps(self.data, source, self.delimiter)
        if self.task is None:
            raise ConfigError("prm: give data or task")
        path = setting.folder / "labels.jsonl"
        if path.is_file():
            return [_read(line) for line in path.read_text().splitlines()]
        rows, num_continuations = asyncio.run(self._made(self.task, setting, source))
        setting.log(f"{len(rows)} solutions labelled by {num_continuations} continuations")
        replace_text(path, "".join(json.dumps([row.key, row.ids, row.reads, row.labels]) + "\n" for row in rows))
        (setting.folder / "draws.jsonl").unlink()
        return rows

    async def _made(self, task: Task, setting: Setting, source: Path) -> tuple[list[StepRow], int]:
        sampling, steps = Sampling(temperature=1.0, max_tokens=task.sampling.max_tokens), Steps(source, self.delimiter)
        async with opened(source, task, setting, self.engine) as (engine, verifier):
            with DrawJournal(setting.folder / "draws.jsonl") as journal:
                labels = MonteCarlo(engine, verifier, sampling, setting.seed, steps, *self.labels, journal=journal)
                return await labels.rows(task.items(self.limit, 0))


def read_steps(file: Path, folder: Path, delimiter: str) -> list[StepRow]:
    """Read a file of labelled steps for the model in `folder`.

    Raises:
        RecordError: a broken line, by name.
        ConfigError: no row, or steps that the delimiter does not keep apart.
    """
    text, steps = Text(folder), Steps(folder, delimiter)
    return [_step_row(row, text, steps, delimiter, file) for row in read_labelled(file)]


def _step_row(row: Labelled, text: Text, steps: Steps, delimiter: str, file: Path) -> StepRow:
    root = text.render(row.problem.messages, None)
    whole = prefixes(root, text.encode, row.steps, delimiter)[-1]
    reads = steps.reads(whole)
    if len(reads) != len(row.steps):
        raise ConfigError(
            f"{file}: solution {row.problem.id!r} has {counted(len(row.steps), 'step')}, but step_delimiter "
            f"{delimiter!r} ends {len(reads)}; set the delimiter that the steps were cut at"
        )
    return StepRow(row.cluster, whole.token_ids or (), reads, row.labels)


def _read(line: str) -> StepRow:
    key, *columns = json.loads(line)
    return StepRow(key, *map(tuple, columns))


def judgements(model: StepModel, rows: Sequence[StepRow], pad_id: int) -> list[Judged]:
    """Every labelled step of `rows` with the probability that it is right."""
    return [
        Judged(f"{row.key}/{number}", row.key, tuple(label for _, label in row.labelled()), scores)
        for number, (row, scores) in enumerate(zip(rows, model.scores(rows, pad_id), strict=True))
    ]


def _right(rows: Sequence[Judged]) -> list[tuple[float, str]]:
    """1 per labelled step that is on the right side of one half, with its problem."""
    return [
        (float((score >= 0.5) == (label >= 0.5)), row.cluster)
        for row in rows
        for score, label in zip(row.scores or (), row.labels, strict=True)
        if label is not None
    ]


def _measured(before: Sequence[Judged], after: Sequence[Judged], threshold: float, seed: int) -> dict[str, float]:
    first, last = _right(before), _right(after)
    keys = [key for _, key in first]
    f1 = first_error(after, threshold, seed=seed).f1
    numbers = {
        **gains("steps_right", [value for value, _ in first], [value for value, _ in last], seed, keys),
        **{"first_error_f1": f1.value, "first_error_f1_low": f1.low, "first_error_f1_high": f1.high},
        "first_error_f1_before": first_error(before, 0.5, seed=seed).f1.value,
        "ranking": ranking(after),
        "ranking_before": ranking(before),
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}  # F1 needs both kinds of solutions
