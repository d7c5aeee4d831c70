"""The generation stage of a job: a smoke gate on the first problems, then the whole spend, teacher by teacher.

The gate asks for all answers to the first few problems of every assignment and refuses the job when more than
`smoke_failures` of them get none that passes the filters that judge an answer by itself, saying what those said. What
it generated stays on the ledger and is not paid again. A teacher is opened once where there is only one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence

from distill.data.pipeline import PerAnswer, kind_of, run_pipeline
from distill.generation.generate import Generator, Opener, fill
from distill.generation.judging import gather
from distill.generation.ledger import AnswerLedger, Outcome, WorkUnit, distinct, units_of
from distill.plan.resolve import PROBE, JobPlan
from distill.spec.method import Assignment
from distill.spec.teacher import Teacher
from ttc.errors import ConfigError

Log = Callable[[str], None]


async def spend(plan: JobPlan, ledger: AnswerLedger, opener: Opener, log: Log) -> None:
    """Bring every unit of the plan onto the ledger.

    Raises:
        ConfigError: the smoke gate, or what would fail every unit alike.
        EngineError: the engine is gone; run the job again to go on.
    """
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
            ticks = _ProgressLog(log, teacher)
            await fill(ledger, teacher, units, concurrency=plan.spec.concurrency, opener=teachers.open, progress=ticks)
            num_new = missing[teacher.digest]
            log(f"{teacher.name}: {len(units) - num_new} answers were on the ledger, {num_new} made now")
    finally:
        await teachers.close()


def units_by_teacher(plan: JobPlan) -> list[tuple[Teacher, list[WorkUnit]]]:
    """Every teacher with its units, each once."""
    by_digest: dict[str, tuple[Teacher, list[Assignment]]] = {}
    for assignment in plan.assignments:
        by_digest.setdefault(assignment.teacher.digest, (assignment.teacher, []))[1].append(assignment)
    return [
        (teacher, distinct(pair for assignment in several for pair in units_of(assignment, plan.spec.seed)))
        for teacher, several in by_digest.values()
    ]


def expected_cost(plan: JobPlan, ledger: AnswerLedger) -> str:
    """What is still to be paid, by the mean of what is on the ledger; empty when nothing is, or nothing is left."""
    lines = []
    for teacher, units in units_by_teacher(plan):
        there = ledger.usages({unit.key for unit in units})
        missing = len(ledger.missing(units))
        if there and missing:
            tokens = sum(usage.tokens for usage in there) / len(there)
            flops = sum(usage.flops for usage in there) / len(there)
            cost = f"{missing:,} answers to make, about {missing * tokens:,.0f} tokens"
            lines.append(f"{teacher.name}: {cost}" + (f", {missing * flops:.2g} FLOPs" if flops else ""))
    return "; ".join(lines)


async def _smoke(
    plan: JobPlan, assignment: Assignment, ledger: AnswerLedger, teachers: _OpenTeachers, log: Log
) -> None:
    spec = plan.spec
    first = assignment.items[: spec.smoke]
    first_ids = {item.problem.id for item in first}
    units = distinct(pair for pair in units_of(assignment, spec.seed) if pair[0].problem.id in first_ids)
    if not ledger.missing(units) and not ledger.missing(distinct(units_of(assignment, spec.seed))):
        return  # all of it is paid for
    await fill(ledger, assignment.teacher, units, concurrency=spec.concurrency, opener=teachers.open)
    answers = await gather(ledger, [assignment], spec.seed, spec.verifier, first=spec.smoke)
    filters = {name: judge for name, judge in plan.filters.items() if isinstance(judge, PerAnswer)}
    passed = run_pipeline(answers.samples, filters, plan.context, None, spec.seed)
    lost = len(first) - len({sample.prompt for sample in passed.kept})
    name = assignment.teacher.name
    log(f"smoke gate: {len(first) - lost} of {len(first)} problems got an accepted answer from {name}")
    if lost > spec.smoke_failures:
        kinds = Counter(f"{d.stage}: {kind_of(d.reason)}" for d in passed.dropped.values())
        kinds.update(f"failed: {error[:80]}" for error in answers.failed)
        reasons = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        raise ConfigError(
            f"smoke gate: {lost} of the first {len(first)} problems got no answer of {name} that is "
            f"accepted ({reasons}); nothing more was spent. Take a better teacher, more answers (n), more tokens "
            f"(sampling.max_tokens), or accept it: smoke_failures = {lost}"
        )


class _ProgressLog:
    """Says now and then how far a teacher has come."""

    def __init__(self, log: Log, teacher: Teacher) -> None:
        self._log, self._name = log, teacher.name

    def __call__(self, written: int, missing: int) -> None:
        if written % max(1, missing // 10) == 0 and missing >= 100:
            self._log(f"{self._name}: {written:,} of {missing:,} answers")


class _OpenTeachers:
    """Keeps the last teacher open between two uses; opening another one closes it."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._digest = ""
        self._inner: Generator | None = None
        self._stale: list[Generator] = []

    def open(self, teacher: Teacher, concurrency: int) -> Generator:
        """The teacher's generator, whose `close` leaves it open."""
        if self._inner is None or self._digest != teacher.digest:
            if self._inner is not None:
                self._stale.append(self._inner)
            self._inner, self._digest = self._opener(teacher, concurrency), teacher.digest
        return _Unclosed(self, self._inner)

    async def close_stale(self) -> None:
        """Close what is no longer used."""
        while self._stale:
            await self._stale.pop().close()

    async def close(self) -> None:
        """Close everything."""
        if self._inner is not None:
            self._stale.append(self._inner)
            self._inner = None
        await self.close_stale()


class _Unclosed:
    """A generator that somebody else will close."""

    def __init__(self, owner: _OpenTeachers, inner: Generator) -> None:
        self._owner, self._inner = owner, inner

    async def answer(self, units: Sequence[WorkUnit]) -> AsyncGenerator[tuple[WorkUnit, Outcome], None]:
        """See `Generator.answer`."""
        await self._owner.close_stale()
        async for pair in self._inner.answer(units):
            yield pair

    async def close(self) -> None:
        """Leave it open."""
