"""Solve problems: bind a strategy to a session per problem and return answers.

`solve` is for one problem; `solve_all` runs many at once and turns a failed problem into data instead of cancelling the
others. There is no barrier between problems: the engine batches across them. `fit_to_context` makes a default length
fit the model. Names in place of objects: `ttc.session.door`.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from ttc.answers.kinds import kind_of
from ttc.core import Answer, Budget, Engine, Problem, Sampling, Strategy, Usage
from ttc.errors import ConfigError, PromptTooLong, TTCError
from ttc.session.meter import Clock
from ttc.session.session import Session, Shared
from ttc.session.thinking import Thinking

_INJECTION_RESERVE = 128
"""Tokens kept free for hand-over and wait texts."""
_SPENT = "ttc_usage"
_RARELY = (20_000, 20, 20)
"""Thresholds of the collector of cycles: new objects, then collections of the younger generation."""


def fit_to_context(sampling: Sampling, engine: Engine, problem: Problem, thinking: Thinking) -> Sampling:
    """Lower a default `max_tokens` to what the model's context leaves after the prompt.

    Room is kept for text that thinking control may inject, and for the minimum of thinking. A prompt that leaves no
    room at all is left to the engine to refuse.

    Raises:
        PromptTooLong: there is room for an answer, but not beside what thinking control needs.
    """
    prompt = engine.render(problem.messages, thinking.template)
    length = len(prompt.text) if prompt.token_ids is None else len(prompt.token_ids)
    context = engine.capabilities.max_context
    room = context - length - (_INJECTION_RESERVE if thinking.active else 0)
    if thinking.active and room <= thinking.min_tokens < sampling.max_tokens and length < context:
        least = f", and {thinking.min_tokens} of thought" if thinking.min_tokens else ""
        raise PromptTooLong(
            f"{length} prompt tokens and {_INJECTION_RESERVE} kept free for the end of a thinking budget{least} fill "
            f"the context of {context}: shorten the prompt, or do without --max-thinking, --min-thinking and --waits"
        )
    return replace(sampling, max_tokens=min(sampling.max_tokens, max(room, 1)))


async def solve(
    problem: Problem,
    *,
    engine: Engine,
    strategy: Strategy,
    seed: int,
    sampling: Sampling | None = None,
    thinking: Thinking | None = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    clock: Clock = time.monotonic,
) -> Answer:
    """Solve one problem; the answer carries its usage, trace and seconds.

    Problems that are solved as one run get one `shared` dictionary, empty at first (see `Session.shared`). A budget
    that ends before the strategy does gives the best of what was drawn by then, with `stop_cause` "budget"; a budget in
    seconds is measured by `clock`. When the problem fails, `spent(error)` gives its cost.

    Raises:
        TTCError: the engine, a scorer, the configuration or the strategy failed.
    """
    started = time.perf_counter()
    sampling, thinking = sampling or Sampling(), thinking or Thinking()
    thinking.check_length(sampling.max_tokens)
    session = Session(
        problem,
        engine,
        answers=kind_of(problem.kind),
        seed=seed,
        sampling=sampling,
        thinking=thinking,
        budget=budget,
        shared=shared,
        clock=clock,
    )
    try:
        answer = await session.attempt(strategy)
    except Exception as error:
        charged(error, session.usage)
        raise
    finally:
        session.close()
    return replace(answer, usage=session.usage, trace=session.trace, seconds=time.perf_counter() - started)


def spent(error: BaseException) -> Usage:
    """Return the cost of a problem for which `solve` raised `error`; zero for any other error."""
    usage = error.__dict__.get(_SPENT)
    return usage if isinstance(usage, Usage) else Usage()


_Error = TypeVar("_Error", bound=BaseException)


def charged(error: _Error, usage: Usage) -> _Error:
    """Return the error that ended a problem with the problem's cost attached, for `spent`."""
    error.__dict__[_SPENT] = usage
    return error


async def solve_all(
    problems: Iterable[Problem],
    *,
    engine: Engine,
    strategy: Strategy,
    seed: int,
    sampling: Sampling | None = None,
    thinking: Thinking | None = None,
    budget: Budget | None = None,
    concurrency: int | None = None,
) -> AsyncIterator[tuple[Problem, Answer | TTCError]]:
    """Yield (problem, answer or error) as problems finish, at most `concurrency` in flight.

    `problems` is read as they start, so it may be endless. Until the last has ended, Python collects garbage as rarely
    as in the command `ttc`, or as its user has set if that is rarer: a search makes thousands of objects and hardly any
    cycles, and with torch in the process one collection stops all threads for a while. Configuration errors are raised:
    they would fail every problem alike.
    """
    shared: Shared = {}

    async def one(problem: Problem) -> tuple[Problem, Answer | TTCError]:
        try:
            return problem, await solve(
                problem,
                engine=engine,
                strategy=strategy,
                seed=seed,
                sampling=sampling,
                thinking=thinking,
                budget=budget,
                shared=shared,
            )
        except ConfigError:
            raise
        except TTCError as error:
            return problem, error

    # Only what is in flight is held, so that memory does not grow with the number of problems.
    waiting, width = iter(problems), concurrency or engine.capabilities.max_concurrency
    running = {asyncio.create_task(one(problem)) for problem in itertools.islice(waiting, width)}
    ended: set[asyncio.Task[tuple[Problem, Answer | TTCError]]] = set()
    try:
        with _collecting_rarely():
            while running:
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                running |= {asyncio.create_task(one(problem)) for problem in itertools.islice(waiting, len(ended))}
                for task in ended:
                    yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *ended, return_exceptions=True)


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Set the garbage collector as `ttc.cli.process` does; of overlapping runs, the first sets it for all."""
    usual = gc.get_threshold()
    if not 0 < usual[0] < _RARELY[0]:  # 0: never
        yield
        return
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        if gc.get_threshold() == _RARELY:
            gc.set_threshold(*usual)
