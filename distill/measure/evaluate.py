"""Measure models before and after: the same problems, the same decoding, the same seeds, in resumable runs.

Every measurement is a run folder of `evals` (`ttc report` and `ttc compare` read them): one arm greedy, one sampled,
and for a teacher one under its strategy. Cost: the problems of every measured task, twice per student model and once
per teacher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distill.generation.judging import verifier_of
from distill.measure.measured import TaskNumbers
from distill.spec.method import DistillJob
from distill.spec.spec import JobSpec, TeacherSpec
from distill.spec.teacher import Teacher, name_of, resolve_teacher
from evals.experiment import Arm, Experiment, Result, execute
from evals.task import Task
from ttc.concurrent import Reminder
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump
from ttc.config.values import counted
from ttc.core import NO_VERDICT, Capabilities, Record
from ttc.errors import EngineError, is_unanswerable
from ttc.session.thinking import Thinking


class _Counter:
    """A watcher that says from time to time how many answers of a measurement there are."""

    def __init__(self, log: Callable[[str], None], task: str, num_answers: int) -> None:
        self._log, self._task, self._num_answers = log, task, num_answers
        self._num_done, self._reminder = 0, Reminder()

    def loaded(self, capabilities: Capabilities) -> None:
        """See `evals.experiment.Watcher`."""

    def resumed(self, arm: Arm, count: int) -> None:
        """Count those of an earlier session."""
        self._num_done += count

    def spent(self, arm: Arm, tokens: int) -> None:
        """See `evals.experiment.Watcher`."""

    def add(self, arm: Arm, record: Record) -> None:
        """Count one."""
        self._num_done += 1
        if self._reminder.due():
            self._log(f"{self._task}: {self._num_done:,} of {counted(self._num_answers, 'answer')}")

    def failed(self, failures: Mapping[str, int]) -> None:
        """See `evals.experiment.Watcher`."""


def measuring_lines(job: DistillJob, tasks: Mapping[str, Task]) -> Iterator[str]:
    """The most that `measure_model` asks of start and student, and `measure_teacher` of each teacher."""
    sizes = [_size(job.spec, task) for task in tasks.values()]
    if sizes:
        yield f"measuring the start and the student, greedily and sampled: {_most(sizes, 4, True)}"
    for teacher in job.teachers if job.spec.eval.teachers else ():
        taught = [domain.held_out for domain in job.domains if teacher.teaches(domain.name)]
        sizes = [_size(job.spec, task) for task in taught if task is not None]
        if sizes:
            yield f"measuring {teacher.name} ({teacher.strategy.label}): {_most(sizes, 1, not teacher.is_searching)}"


def _size(spec: JobSpec, task: Task) -> tuple[int, int]:
    """How many problems of a task are measured, and the cap of an answer."""
    return len(task.items(spec.eval.limit, 0)), spec.sampling_of(task.sampling).max_tokens


def _most(sizes: Sequence[tuple[int, int]], times: int, is_plain: bool) -> str:
    """Tokens if each problem is answered `times` times; a search has no cap that is known in advance."""
    answers = times * sum(count for count, _ in sizes)
    tokens = times * sum(count * cap for count, cap in sizes)
    return counted(answers, "answer") + (f", at most {tokens:,} tokens" if is_plain else "")


def measure_model(
    job: DistillJob, tasks: Mapping[str, Task], model: Path, folder: Path, log: Callable[[str], None]
) -> dict[str, TaskNumbers]:
    """Answer `tasks` (by their spec) with a model folder, greedily and sampled.

    Only the thinking switch is the spec's: a budget that a teacher is held to is not forced on the student.
    """
    answerer = resolve_teacher(TeacherSpec(name="student", model=str(model)), job.spec)
    greedy = replace(answerer.strategy, label="greedy", params={"temperature": 0.0})
    choices = [greedy, replace(answerer.strategy, label="sampled", params={})]
    thinking = Thinking(mode=job.spec.thinking.mode)
    results = {
        name: _run(job.spec, answerer, name, task, choices, thinking, folder, log) for name, task in tasks.items()
    }
    return {name: _numbers(first.records, second.records) for name, (first, second) in results.items()}


def measure_teacher(
    job: DistillJob, teacher: Teacher, folder: Path, log: Callable[[str], None]
) -> dict[str, TaskNumbers]:
    """Answer the held-out tasks of the teacher's domains under its strategy; plain draws are greedy."""
    strategy = teacher.strategy
    if not teacher.is_searching:
        strategy = replace(strategy, label="greedy", params={**strategy.params, "temperature": 0.0})
    numbers: dict[str, TaskNumbers] = {}
    for domain, spec in zip(job.domains, job.spec.domains, strict=True):
        if domain.held_out is None or spec.held_out is None or not teacher.teaches(domain.name):
            continue
        name, thinking = spec.held_out, job.spec.thinking
        (result,) = _run(job.spec, teacher, name, domain.held_out, [strategy], thinking, folder, log)
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
    log: Callable[[str], None],
) -> list[Result]:
    settings = [name, spec.eval.limit, spec.seed, dict(spec.sampling), who.digest, spec.verifier, dump(thinking)]
    settings.append(who.engine.model)  # a run names its model by its path, so a moved job is measured again
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
    # A total is each problem's own here, as it is during generation: what is measured is what teaches.
    watcher = _Counter(log, name, len(experiment.items) * len(choices))
    run = execute(experiment, concurrency=spec.concurrency, retry_errors=True, watcher=watcher, spend_total=None)
    try:
        results = asyncio.run(run)
    except EngineError as exc:
        # The error after many failures in a row has advice for `ttc eval`; its cause is the last failure.
        error = exc.__cause__ if isinstance(exc.__cause__, EngineError) else exc
        raise EngineError(
            f"measuring {who.name} on {name} was stopped: {error}; what was answered is kept: run the job again"
        ) from exc
    _refuse_failed(f"{who.name} on {name}", [record for result in results for record in result.records])
    return results


def _refuse_failed(what: str, records: Sequence[Record]) -> None:
    """Raise EngineError if calls failed: a failure is not a wrong answer, and would make a teacher lose to any student.

    A problem that is too long for a model, or refused by a server's filter, counts as one that it cannot answer.
    """
    errors = [record.error for record in records if record.error is not None]
    failed = [error for error in errors if not is_unanswerable(error)]
    if failed:
        raise EngineError(
            f"measuring {what}: {len(failed)} of {counted(len(records), 'answer')} failed, the first with {failed[0]}; "
            "the others are kept: run it again, which asks for these alone (or leave teachers out: eval.teachers = "
            "false)"
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
        unjudged=sum(r.verdict is not None and r.verdict.status in NO_VERDICT for r in (*greedy, *sampled)),
        groups=_groups([str(record.provenance.get("cluster") or record.problem.id) for record in greedy]),
    )


def _groups(clusters: Sequence[str]) -> tuple[int, ...]:
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return tuple(numbers[cluster] for cluster in clusters) if len(numbers) < len(clusters) else ()


def _right(records: Sequence[Record]) -> tuple[bool, ...]:
    return tuple(record.verdict is not None and record.verdict.correct for record in records)
