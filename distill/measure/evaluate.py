"""Measure models before and after, in resumable runs, and compare them task by task, problem by problem.

Every measurement is a run folder of `evals` (`ttc report` and `ttc compare` read them): one arm greedy, one sampled,
with the same problems, decoding and seeds for every model, so that differences are paired. A teacher is measured as it
teaches: under its strategy, whose answers are the greedy column. Cost: the problems of every measured task, twice per
student model and once per teacher.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.generation.generate import verifier_of
from distill.spec.method import DistillJob
from distill.spec.spec import JobSpec, TeacherSpec
from distill.spec.teacher import Teacher, name_of, resolve_teacher
from evals.experiment import Arm, Experiment, Result, execute
from evals.numbers.statistics import Interval, mean_interval, paired_interval
from evals.task import Task
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump
from ttc.core import Record
from ttc.session.thinking import Thinking


class _Silent:
    """Nobody watches a measurement."""

    def resumed(self, arm: Arm, count: int) -> None:
        """See `evals.experiment.Watcher`."""

    def add(self, arm: Arm, record: Record) -> None:
        """See `evals.experiment.Watcher`."""


def measure_model(job: DistillJob, tasks: Mapping[str, Task], model: Path, folder: Path) -> dict[str, TaskNumbers]:
    """Answer `tasks` (by their spec) with a model folder, greedily and sampled.

    Only the thinking switch is the spec's: a budget that a teacher is held to is not forced on the student.
    """
    answerer = resolve_teacher(TeacherSpec(name="student", model=str(model)), job.spec)
    greedy = replace(answerer.strategy, label="greedy", params={"temperature": 0.0})
    choices = [greedy, replace(answerer.strategy, label="sampled", params={})]
    thinking = Thinking(mode=job.spec.thinking.mode)
    results = {name: _run(job.spec, answerer, name, task, choices, thinking, folder) for name, task in tasks.items()}
    return {name: _numbers(first.records, second.records) for name, (first, second) in results.items()}


def measure_teacher(job: DistillJob, teacher: Teacher, folder: Path) -> dict[str, TaskNumbers]:
    """Answer the held-out tasks of the teacher's domains under its strategy; plain draws are greedy."""
    strategy = teacher.strategy
    if not teacher.is_searching:
        strategy = replace(strategy, label="greedy", params={**strategy.params, "temperature": 0.0})
    numbers: dict[str, TaskNumbers] = {}
    for domain, spec in zip(job.domains, job.spec.domains, strict=True):
        if domain.held_out is None or spec.held_out is None or not teacher.teaches(domain.name):
            continue
        (result,) = _run(job.spec, teacher, spec.held_out, domain.held_out, [strategy], job.spec.thinking, folder)
        numbers[spec.held_out] = _numbers(result.records, ())
    return numbers


def _run(
    spec: JobSpec,
    who: Teacher,
    name: str,
    task: Task,
    choices: Sequence[StrategyChoice],
    thinking: Thinking,
    folder: Path,
) -> list[Result]:
    settings = [name, spec.eval.limit, spec.seed, dict(spec.sampling), who.digest, spec.verifier, dump(thinking)]
    settings.append(who.engine.model)  # a run names its model by its place, so a moved job is measured anew
    place = folder / f"{task.name}-{name_of([str(item) for item in settings])}"
    experiment = Experiment(
        task=task,
        items=task.items(spec.eval.limit, 0),
        engine=who.engine,
        scorer=who.scorer,
        verifier=verifier_of(task, spec.verifier),
        sampling=spec.sampling_of(task.sampling),
        fit=False,
        thinking=thinking,
        budget=None,
        seed=spec.seed,
        limit=spec.eval.limit,
        arms=[Arm(choice, place / choice.label) for choice in choices],
    )
    # A total is each problem's own here, as where the teacher generates: what is measured is what teaches.
    return asyncio.run(
        execute(experiment, concurrency=spec.concurrency, retry_errors=True, watcher=_Silent(), spend_total=None)
    )


def _numbers(greedy: Sequence[Record], sampled: Sequence[Record]) -> TaskNumbers:
    answers = [record.answer for record in greedy if record.answer is not None]
    count = max(len(answers), 1)
    lengths = [sum(c.num_tokens for c in a.candidates if c.text == a.text) or a.usage.generated for a in answers]
    return TaskNumbers(
        right=_right(greedy),
        sampled=_right(sampled),
        tokens=sum(answer.usage.tokens for answer in answers) / count,
        length=sum(lengths) / count,
        truncated=sum(answer.finish_reason != "stop" for answer in answers) / count,
    )


def _right(records: Sequence[Record]) -> tuple[bool, ...]:
    return tuple(record.verdict is not None and record.verdict.correct for record in records)


HEAD = ("task", "who", "greedy % (95 %)", "sampled % (95 %)", "gain over the start", "tokens", "cut %")


@dataclass(frozen=True, slots=True)
class TaskNumbers:
    """Right answers in the order of the problems (greedy, and sampled where it was), and means over the greedy ones.

    `tokens` is what an answer cost: generated, judged and newly scored; `length` that of the answer itself.
    """

    right: tuple[bool, ...]
    sampled: tuple[bool, ...]
    tokens: float
    length: float
    truncated: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return sum(self.right) / len(self.right)

    def interval(self, seed: int, *, sampled: bool = False) -> Interval:
        """Accuracy with its 95 % interval."""
        values = [float(value) for value in (self.sampled if sampled else self.right)]
        return mean_interval(values, range(len(values)), seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Plain data; right and wrong as a text of 1 and 0."""
        bits = {name: "".join("01"[value] for value in getattr(self, name)) for name in ("right", "sampled")}
        return {**bits, "tokens": self.tokens, "length": self.length, "truncated": self.truncated}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskNumbers:
        """What `to_json` wrote."""
        bits = {name: tuple(bit == "1" for bit in data[name]) for name in ("right", "sampled")}
        return cls(**bits, tokens=data["tokens"], length=data["length"], truncated=data["truncated"])


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: numbers by task, and a method's own numbers."""

    tasks: Mapping[str, TaskNumbers]
    own: Mapping[str, float] = field(default_factory=dict)

    def gap(self, other: Measured, task: str, seed: int) -> Interval:
        """How much better `other` is on a task, greedily, problem by problem, with its 95 % interval."""
        own, others = ([float(value) for value in model.tasks[task].right] for model in (self, other))
        return paired_interval(own, others, range(len(own)), seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the result file."""
        return {"tasks": {name: task.to_json() for name, task in self.tasks.items()}, "own": dict(self.own)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """What `to_json` wrote."""
        return cls({name: TaskNumbers.from_json(task) for name, task in data["tasks"].items()}, data["own"])


def compared(models: Mapping[str, Measured], seed: int) -> list[tuple[str, ...]]:
    """Rows of texts under `HEAD`, by task, the start first, then the student, then teachers."""
    start = models["start"]
    return [
        (task, who, *_cells(model, start, task, seed, with_gain=who != "start"))
        for task in start.tasks
        for who, model in models.items()
        if task in model.tasks
    ]


def _cells(model: Measured, start: Measured, task: str, seed: int, *, with_gain: bool) -> tuple[str, ...]:
    numbers = model.tasks[task]
    sampled_text = share(numbers.interval(seed, sampled=True)) if numbers.sampled else ""
    gain = share(start.gap(model, task, seed), signed=True) if with_gain else ""
    return share(numbers.interval(seed)), sampled_text, gain, f"{numbers.tokens:,.1f}", f"{100 * numbers.truncated:.1f}"


def recoveries(models: Mapping[str, Measured]) -> dict[str, float]:
    """Per task the share of the best teacher's gain over the start that the student has; NaN without such a gain."""
    best = best_teachers({who: model for who, model in models.items() if who not in ("start", "student")})
    if "student" not in models:
        return {}
    start, student = models["start"], models["student"]
    return {task: recovered(start, student, best[task], task) for task in start.tasks if task in best}


def best_teachers(teachers: Mapping[str, Measured]) -> dict[str, Measured]:
    """The most accurate teacher of each task."""
    best: dict[str, Measured] = {}
    for teacher in teachers.values():
        for name, task in teacher.tasks.items():
            if name not in best or task.accuracy > best[name].tasks[name].accuracy:
                best[name] = teacher
    return best


def recovered(start: Measured, student: Measured, teacher: Measured, task: str) -> float:
    """Share of the teacher's gain over the start that the student has, greedy; NaN where there was no gain."""
    before, best = start.tasks[task].accuracy, teacher.tasks[task].accuracy
    return (student.tasks[task].accuracy - before) / (best - before) if best > before else math.nan


def share(interval: Interval, *, signed: bool = False) -> str:
    """`56.9 (53.9 to 59.9)` in percent."""
    sign = "+" if signed else ""
    value, low, high = (100 * number for number in (interval.value, interval.low, interval.high))
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"
