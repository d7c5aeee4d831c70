"""Measure models before and after: the same problems, the same decoding, the same seeds, in resumable runs.

Every measurement is a run folder of `evals` (`ttc report` and `ttc compare` read them): one arm greedy, one sampled,
and for a teacher one under its strategy. Cost: the problems of every measured task, twice per student model and once
per teacher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from distill.generation.judging import verifier_of
from distill.plan.resolve import Plan
from distill.spec.digests import name_of
from distill.spec.measured import Measured, TaskNumbers
from distill.spec.spec import TeacherSpec
from distill.spec.teacher import Teacher, resolve_teacher
from evals.runs.experiment import Arm, Experiment, Result, execute
from evals.task import Task
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump
from ttc.core import Record
from ttc.session.thinking import Thinking

__all__ = ["as_json", "measure_model", "measure_teacher"]


class _Silent:
    """Nobody watches a measurement."""

    def resumed(self, arm: Arm, count: int) -> None:
        """See `evals.runs.experiment.Watcher`."""

    def add(self, arm: Arm, record: Record) -> None:
        """See `evals.runs.experiment.Watcher`."""


def measure_model(plan: Plan, model: Path, folder: Path) -> Measured:
    """Answer all measured tasks with a model folder, greedily and sampled, and ask the method for its own numbers.

    Only the thinking switch is the spec's: a budget that a teacher is held to is not forced on the student.
    """
    himself = resolve_teacher(TeacherSpec(name="student", model=str(model)), plan.spec)
    found: dict[str, TaskNumbers] = {}
    for name, task in plan.measured.items():
        greedy = StrategyChoice("direct", "greedy", himself.strategy.function, {"temperature": 0.0})
        sampled = StrategyChoice("direct", "sampled", himself.strategy.function, {})
        plain = Thinking(mode=plan.spec.thinking.mode)
        first, second = _run(plan, himself, name, task, [greedy, sampled], plain, folder)
        found[name] = _numbers(first.records, second.records)
    return Measured(found, dict(plan.method.measure(plan.job, model, plan.job.setting)))


def measure_teacher(plan: Plan, teacher: Teacher, folder: Path) -> Measured:
    """Answer the held-out tasks of the teacher's domains under its strategy; plain draws are greedy."""
    found: dict[str, TaskNumbers] = {}
    for domain in plan.spec.domains:
        if domain.held_out is None or (teacher.domains and domain.name not in teacher.domains):
            continue
        task, choice = plan.measured[domain.held_out], teacher.strategy
        if not teacher.is_searching:
            choice = StrategyChoice("direct", "greedy", choice.function, {**choice.params, "temperature": 0.0})
        (only,) = _run(plan, teacher, domain.held_out, task, [choice], plan.spec.thinking, folder)
        found[domain.held_out] = _numbers(only.records, ())
    return Measured(found)


def _run(
    plan: Plan,
    who: Teacher,
    name: str,
    task: Task,
    choices: Sequence[StrategyChoice],
    thinking: Thinking,
    folder: Path,
) -> list[Result]:
    spec = plan.spec
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
    return asyncio.run(execute(experiment, concurrency=spec.concurrency, retry_errors=True, watcher=_Silent()))


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


def as_json(found: Measured) -> Mapping[str, object]:
    """Plain data for the result file."""
    tasks = {
        name: {
            "right": "".join("01"[value] for value in task.right),
            "sampled": "".join("01"[value] for value in task.sampled),
            "tokens": task.tokens,
            "length": task.length,
            "truncated": task.truncated,
        }
        for name, task in found.tasks.items()
    }
    return {"tasks": tasks, "own": dict(found.own)}
