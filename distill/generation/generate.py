"""Fill the ledger with missing answers: bounded, resumable, and one failure costs one sample.

    Generator.answer(units) -> (unit, answer or failure), as they end

The local generator opens the teacher in this process and solves each unit in a session of its own, at most
`concurrency` at once. The generator of `distill.generation.shards` has the same interface; only this module writes to
the ledger. A failed call is a failure on the ledger and the others continue; `MAX_STREAK` in a row mean that the engine
is gone and stop the job, which the next run resumes. Cost: the teacher's; the ledger adds well under a millisecond a
row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

from distill.generation.ledger import AnswerLedger, Failure, Outcome, WorkUnit
from distill.spec.teacher import Teacher
from ttc.config.plugins import described, leaf
from ttc.core import Engine, Strategy
from ttc.errors import ConfigError, EngineError, Unsupported, is_unanswerable
from ttc.session.session import Shared
from ttc.session.solve import solve, spent

MAX_STREAK = 8
"""This many failures in a row, across different problems, mean that the engine is gone."""


class Generator(Protocol):
    """Answers units of one teacher."""

    def answer(self, units: Sequence[WorkUnit]) -> AsyncGenerator[tuple[WorkUnit, Outcome], None]:
        """Yield units with their outcomes, in any order; raises ConfigError or Unsupported for what would fail all."""
        ...

    async def close(self) -> None:
        """Free the teacher."""
        ...


Opener = Callable[[Teacher, int], Generator]
"""(teacher, most units at once) -> its generator."""
Progress = Callable[[int, int], None]
"""(units written now, units that were missing)."""

Done: TypeAlias = asyncio.Queue[tuple[WorkUnit, Outcome] | Exception]
"""Where workers put outcomes, or the error that ends them all."""


class LocalGenerator:
    """A teacher in this process."""

    def __init__(self, engine: Engine, strategy: Strategy, concurrency: int) -> None:
        self._engine, self._strategy, self._concurrency = engine, strategy, concurrency
        self._shared: Shared = {}

    async def answer(self, units: Sequence[WorkUnit]) -> AsyncGenerator[tuple[WorkUnit, Outcome], None]:
        """See `Generator.answer`."""
        todo: Iterator[WorkUnit] = iter(units)
        outbox: Done = asyncio.Queue()

        async def work() -> None:
            for unit in todo:
                outbox.put_nowait((unit, await self._one(unit)))

        async with aclosing(made([work() for _ in units[: self._concurrency]], outbox, len(units))) as outcomes:
            async for pair in outcomes:
                yield pair

    async def close(self) -> None:
        """See `Generator.close`."""
        await self._engine.close()

    async def _one(self, unit: WorkUnit) -> Outcome:
        began = time.perf_counter()
        try:
            return await solve(
                unit.problem,
                engine=self._engine,
                strategy=self._strategy,
                seed=unit.seed,
                sampling=unit.sampling,
                thinking=unit.thinking,
                shared=self._shared,
            )
        except (ConfigError, Unsupported):
            raise
        except Exception as raised:  # whatever goes wrong with one sample is data; the others continue
            error = leaf(raised)
            if isinstance(error, ConfigError | Unsupported):
                raise error from None
            return Failure(described(error)[:500], spent(raised), time.perf_counter() - began)


async def made(
    workers: Sequence[Coroutine[Any, Any, None]], outbox: Done, num: int
) -> AsyncGenerator[tuple[WorkUnit, Outcome], None]:
    """Run workers that put outcomes into `done`: yield `num` of them, raise a worker's error, then end the workers."""

    async def run(worker: Coroutine[Any, Any, None]) -> None:
        try:
            await worker
        except Exception as error:
            await outbox.put(error)

    tasks = [asyncio.create_task(run(worker)) for worker in workers]
    try:
        for _ in range(num):
            outcome = await outbox.get()
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def open_local(teacher: Teacher, concurrency: int) -> Generator:
    """Load the teacher into this process."""
    engine, strategy = teacher.open()
    return LocalGenerator(engine, strategy, min(concurrency, engine.capabilities.max_concurrency))


async def fill(
    ledger: AnswerLedger,
    teacher: Teacher,
    units: Sequence[WorkUnit],
    *,
    concurrency: int,
    opener: Opener = open_local,
    progress: Progress = lambda num_written, missing: None,
) -> int:
    """Answer the missing ones of `units`, all of `teacher`; returns how many there were.

    With none missing, opens nothing.

    Raises:
        EngineError: `MAX_STREAK` units in a row failed.
        TTCError: what would fail every unit alike.
    """
    todo = ledger.missing(units)
    if not todo:
        return 0
    generator, streak, num_written = opener(teacher, concurrency), 0, 0
    try:
        async with aclosing(generator.answer(todo)) as outcomes:
            async for unit, outcome in outcomes:
                ledger.record(unit, outcome)
                num_written += 1
                progress(num_written, len(todo))
                streak = streak + 1 if _engine_failed(outcome) else 0
                if isinstance(outcome, Failure) and streak >= MAX_STREAK:
                    raise EngineError(
                        f"{streak} answers of {teacher.name} in a row failed, the last with {outcome.error}; the job "
                        "is stopped and nothing is lost: run it again to resume"
                    )
    finally:
        await generator.close()
    return len(todo)


def _engine_failed(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and not is_unanswerable(outcome.error)
