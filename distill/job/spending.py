"""Spending: every answer of a job's plan is brought onto the ledger once.

The smoke gate asks for all answers to the first few problems of every assignment. It refuses the job, with the reasons,
when more than `smoke_failures` of them have no answer that passes the per-answer filters and that the student can learn
(the audit of rows). What it generated stays on the ledger and is not paid again. A lone teacher is opened once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from distill.data.dataset import AUDIT, audit_rows, room_of
from distill.data.pipeline import Funnel, PerAnswer, kind_of, run_pipeline
from distill.generation.generate import Generator, Opener, fill
from distill.generation.judging import gather
from distill.generation.ledger import LEDGER, AnswerLedger, Outcome, WorkUnit, distinct, units_of
from distill.plan.resolve import PROBE, JobPlan
from distill.spec.method import Assignment
from distill.spec.sample import row_of
from distill.spec.teacher import Teacher
from ttc.concurrent import Reminder, StopRequest
from ttc.config.values import counted
from ttc.errors import ConfigError, PromptRefused, PromptTooLong

Log: TypeAlias = Callable[[str], None]


def units_by_teacher(plan: JobPlan) -> list[tuple[Teacher, list[WorkUnit]]]:
    """Every teacher with its units, each once."""
    by_digest: dict[str, tuple[Teacher, list[Assignment]]] = {}
    for assignment in plan.assignments:
        by_digest.setdefault(assignment.teacher.digest, (assignment.teacher, []))[1].append(assignment)
    return [
        (teacher, distinct(pair for assignment in several for pair in units_of(assignment, plan.spec.seed)))
        for teacher, several in by_digest.values()
    ]


def take_over(plan: JobPlan, ledger: AnswerLedger, log: Log) -> None:
    """Copy answers that other jobs paid for onto the ledger."""
    units = [unit for _, several in units_by_teacher(plan) for unit in several]
    for place in plan.spec.ledgers:
        with AnswerLedger(Path(place).expanduser() / LEDGER) as other:
            log(f"{counted(ledger.take_over(other, units), 'answer')} taken over from {place}")


def cost_lines(plan: JobPlan) -> list[str]:
    """Units by teacher, with the most they may cost, or an estimate from what is on the ledger already."""
    lines = []
    for teacher, units in units_by_teacher(plan):
        most = sum(unit.max_tokens for unit in units)
        limit = "" if teacher.is_searching else f", at most {most:,} tokens"
        lines.append(f"{teacher.name} ({teacher.strategy.label}): {counted(len(units), 'answer')}{limit}")
        for place in plan.spec.ledgers:
            with AnswerLedger(Path(place).expanduser() / LEDGER) as other:
                lines.append(f"{len(other.answered(units)):,} of them are on the ledger of {place}")
    path = plan.job.folder / LEDGER
    if path.is_file():
        with AnswerLedger(path) as ledger:
            lines.append(expected_cost(plan, ledger) or "everything is on the ledger")
    return lines


def expected_cost(plan: JobPlan, ledger: AnswerLedger) -> str:
    """The estimated rest of the cost, by the mean of the ledger; empty without any, or with nothing left.

    An answer that a lower cap cut counts as one that the current cap cuts.
    """
    lines = []
    for teacher, units in units_by_teacher(plan):
        there = ledger.usages({unit.key for unit in units})
        missing = len(ledger.missing(units))
        if there and missing:
            most = max(unit.max_tokens for unit in units)
            shares = [most / cap if cap is not None and cap < most else 1.0 for _, cap in there]
            tokens = sum(usage.tokens * share for (usage, _), share in zip(there, shares, strict=True)) / len(there)
            flops = sum(usage.flops * share for (usage, _), share in zip(there, shares, strict=True)) / len(there)
            cost = f"{counted(missing, 'answer')} to make, about {missing * tokens:,.0f} tokens"
            lines.append(f"{teacher.name}: {cost}" + (f", {missing * flops:.2g} FLOPs" if flops else ""))
    return "; ".join(lines)


async def spend(plan: JobPlan, ledger: AnswerLedger, opener: Opener, log: Log, stop: StopRequest) -> None:
    """Bring every unit onto the ledger, or as many as are done before a signal asks for an end.

    Raises:
        ConfigError: the smoke gate refuses the job.
        EngineError: a teacher broke; run it again to go on.
        Interrupted: a signal asked; answers that were being made are given up, the others are kept.
    """
    with stop.heeded():
        await stop.cut(_fill_all(plan, ledger, opener, log))


async def _fill_all(plan: JobPlan, ledger: AnswerLedger, opener: Opener, log: Log) -> None:
    """The smoke gate, then the missing units, teacher by teacher."""
    teachers = _OpenTeachers(opener)
    missing = {teacher.digest: len(ledger.missing(units)) for teacher, units in units_by_teacher(plan)}
    try:
        if plan.spec.smoke:
            for assignment in plan.assignments:
                if assignment.gated and assignment.label != PROBE:
                    await _smoke(plan, assignment, ledger, teachers, log)
        cost = expected_cost(plan, ledger)
        if cost:
            log(cost)
        for teacher, units in units_by_teacher(plan):
            say = partial(_say_progress, log, Reminder(), teacher.name)
            await fill(ledger, teacher, units, concurrency=plan.spec.concurrency, opener=teachers.open, progress=say)
            num_new = missing[teacher.digest]
            num_old = len(units) - num_new
            there = f"{counted(num_old, 'answer')} {'was' if num_old == 1 else 'were'} on the ledger"
            log(f"{teacher.name}: {there}, {num_new:,} made now")
    finally:
        await teachers.end()


async def _smoke(
    plan: JobPlan, assignment: Assignment, ledger: AnswerLedger, teachers: _OpenTeachers, log: Log
) -> None:
    spec = plan.spec
    first = assignment.items[: spec.smoke]
    gate = replace(assignment, items=first)
    units = distinct(units_of(gate, spec.seed))
    if not ledger.missing(units) and not ledger.missing(distinct(units_of(assignment, spec.seed))):
        return  # all of it is paid for
    name = assignment.teacher.name
    log(f"smoke gate: {name} answers the first {counted(len(first), 'problem')}")
    say = partial(_say_progress, log, Reminder(), name)
    await fill(ledger, assignment.teacher, units, concurrency=spec.concurrency, opener=teachers.open, progress=say)
    answers = await gather(ledger, [gate], spec.seed, spec.verifier)
    filters = {name: judge for name, judge in plan.filters.items() if isinstance(judge, PerAnswer)}
    passed = _learnable(plan, run_pipeline(answers.samples, filters, plan.context, None, spec.seed))
    lost = len(first) - len({sample.prompt for sample in passed.kept})
    log(f"smoke gate: {len(first) - lost} of {counted(len(first), 'problem')} got an accepted answer from {name}")
    if lost > spec.smoke_failures:
        kinds = Counter(f"{d.stage}: {kind_of(d.reason)}" for d in passed.dropped.values())
        kinds.update(f"failed: {kind_of(error)}" for error in answers.failed)
        reasons = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        raise ConfigError(
            f"smoke gate: {lost} of the first {counted(len(first), 'problem')} got no answer of {name} that is "
            f"accepted ({reasons}); nothing more was spent. {_remedy(answers.failed, lost)}"
        )


def _learnable(plan: JobPlan, passed: Funnel) -> Funnel:
    """The answers that the audit of rows would leave to the student."""
    unfit = audit_rows([row_of(sample) for sample in passed.kept], plan.job.student, room_of(plan.job.student)).unfit
    return passed.without({passed.kept[place].key: reason for place, reason in unfit.items()}, AUDIT)


def _remedy(failed: Sequence[str], lost: int) -> str:
    """What to change after a failed smoke gate, by the calls' errors, or else the wrong answers."""
    if not failed:
        better = "Take a better teacher, more answers (n), more tokens (sampling.max_tokens)"
        return f"{better}, or accept it: smoke_failures = {lost}"
    kind, _ = Counter(map(kind_of, failed)).most_common(1)[0]
    error = next(error for error in failed if kind_of(error) == kind)
    if kind == PromptTooLong.__name__:
        return f"Set sampling.max_tokens lower, so that question and answer fit the teacher's context ({error})"
    if kind == PromptRefused.__name__:
        return f"Leave out the problems that the filter refuses, or accept it: smoke_failures = {lost} ({error})"
    return f"Fix what stopped the calls, then run the same command again: failed calls are repeated ({error})"


def _say_progress(log: Log, reminder: Reminder, name: str, written: int, missing: int) -> None:
    """Log from time to time how far a teacher has come."""
    if reminder.due() or (written % max(1, missing // 10) == 0 and missing >= 100):
        log(f"{name}: {written:,} of {counted(missing, 'answer')}")


class _OpenTeachers:
    """The generator of the last teacher, which stays open between two uses; opening another one closes it."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._digest = ""
        self._open: list[Generator] = []

    def open(self, teacher: Teacher, concurrency: int) -> Generator:
        """Return this generator, switched to `teacher`."""
        if self._digest != teacher.digest:
            self._open.append(self._opener(teacher, concurrency))
            self._digest = teacher.digest
        return self

    async def answer(self, units: Sequence[WorkUnit]) -> AsyncGenerator[tuple[WorkUnit, Outcome], None]:
        """See `Generator.answer`."""
        await self._close(keep=1)
        async for pair in self._open[-1].answer(units):
            yield pair

    async def close(self) -> None:
        """Leave the teacher open for its next use."""

    async def end(self) -> None:
        """Close every teacher."""
        await self._close(keep=0)

    async def _close(self, keep: int) -> None:
        while len(self._open) > keep:
            await self._open.pop(0).close()
