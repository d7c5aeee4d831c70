"""Solve problems: bind a strategy to a session per problem and return answers.

`solve` is one problem; `solve_all` runs many at once and turns a failed problem into data instead of cancelling its
siblings; `arun` names everything as on the command line, and `run` is that from synchronous code. There is no barrier
between problems: the engine batches across them. `fit_to_context` makes a default length fit the model.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ParamSpec, cast

from ttc.answers import kind_of
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.recipes import parse_spec
from ttc.config.registry import ENGINES, SCORERS
from ttc.core import Answer, Budget, Engine, Message, Problem, Sampling, Scorer, Strategy, Usage
from ttc.errors import ConfigError, PromptTooLong, TTCError
from ttc.session.meter import Clock
from ttc.session.session import Session, Shared
from ttc.session.thinking import Thinking

_Parameters = ParamSpec("_Parameters")
_INJECTION_RESERVE = 128
"""Tokens kept free for hand-over and wait texts."""
_SPENT = "ttc_usage"


def fit_to_context(sampling: Sampling, engine: Engine, problem: Problem, thinking: Thinking) -> Sampling:
    """Lower `max_tokens` to what the model's context leaves after the prompt; for a default that nobody asked for.

    Where thinking control may inject text, room for it is kept. A prompt that leaves no room at all is left to the
    engine to refuse.

    Raises:
        PromptTooLong: there is room for an answer, but none beside the text that thinking control may inject.
    """
    prompt = engine.render(problem.messages, thinking.template)
    length = len(prompt.text) if prompt.token_ids is None else len(prompt.token_ids)
    context = engine.capabilities.max_context
    room = context - length - (_INJECTION_RESERVE if thinking.active else 0)
    if thinking.active and room < 1 <= context - length:
        raise PromptTooLong(
            f"{length} prompt tokens and {_INJECTION_RESERVE} kept free for the end of a thinking budget fill the "
            f"context of {context}: shorten the prompt, or do without --max-thinking, --min-thinking and --waits"
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

    Problems that are solved as one run get one `shared` dictionary, empty at first (see `Session.shared`).
    A budget that ends before the strategy does gives the best of what was drawn by then, with `stop_cause` "budget"; a
    budget in seconds is measured by `clock`. When the problem fails, what it had cost is not lost: `spent(error)` gives
    it.

    Raises:
        TTCError: the engine, a scorer, the configuration or the strategy failed.
    """
    started = time.perf_counter()
    session = Session(
        problem,
        engine,
        answers=kind_of(problem.kind),
        seed=seed,
        sampling=sampling or Sampling(),
        thinking=thinking,
        budget=budget,
        shared=shared,
        clock=clock,
    )
    try:
        answer = await session.attempt(strategy)
    except Exception as error:
        error.__dict__[_SPENT] = session.usage
        raise
    finally:
        session.close()
    return replace(answer, usage=session.usage, trace=session.trace, seconds=time.perf_counter() - started)


def spent(error: BaseException) -> Usage:
    """Return what a problem had cost when `solve` raised `error` for it; nothing for any other error."""
    usage = error.__dict__.get(_SPENT)
    return usage if isinstance(usage, Usage) else Usage()


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

    `problems` is read as they start, so it may be endless.

    Configuration errors are raised: they would fail every problem alike.
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
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running |= {asyncio.create_task(one(problem)) for problem in itertools.islice(waiting, len(ended))}
            for task in ended:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *ended, return_exceptions=True)


async def arun(
    problem: Problem | str,
    *,
    strategy: str | Strategy = "direct",
    seed: int | None = None,
    n: int | None = None,
    params: Mapping[str, object] | None = None,
    engine: str | Engine = "embedded",
    scorer: str | Scorer | None = None,
    sampling: Sampling | None = None,
    thinking: Thinking | None = None,
    budget: Budget | None = None,
) -> Answer:
    """Solve one problem: `await ttc.arun("12+30*2", strategy="majority", n=8)`.

    Strategy, engine and scorer are named as on the command line (`majority`, `mine.py:vote`, `embedded:MODEL`,
    `prm:MODEL`), or are objects; an engine that is named is closed at the end. `n` and `params` are parameters of a
    strategy that is named. A strategy that needs a scorer has the packaged one with the packaged model. Without `seed`
    every call draws anew.

    Raises:
        ConfigError: a name, a parameter or a value that does not fit.
        TTCError: as `solve`.
    """
    if isinstance(problem, str):
        problem = Problem(id="ask", messages=(Message("user", problem),))
    named = {**({} if n is None else {"n": n}), **(params or {})}
    if isinstance(strategy, str):
        name, inline = parse_spec(strategy)
        choice = StrategyChoice.of(name, {**named, **inline})
        if scorer is None and choice.needs_scorer and engine == "embedded":
            scorer = "prm"
    elif named:
        raise ConfigError(f"{', '.join(named)} belongs to a strategy that is named: bind it with functools.partial")
    else:
        choice = None

    own = PartChoice.of(ENGINES, engine, {}).create_engine() if isinstance(engine, str) else None
    running = own or cast("Engine", engine)
    try:
        judge = PartChoice.of(SCORERS, scorer, {}).create_scorer(running) if isinstance(scorer, str) else scorer
        return await solve(
            problem,
            engine=running,
            strategy=cast("Strategy", strategy) if choice is None else choice.bind(judge),
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            sampling=sampling,
            thinking=thinking,
            budget=budget,
        )
    finally:
        if own is not None:
            await own.close()


def _synchronous(function: Callable[_Parameters, Coroutine[Any, Any, Answer]]) -> Callable[_Parameters, Answer]:
    """The same from synchronous code; where a loop runs already, as in a notebook, in a thread of its own."""

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Answer:
        work = function(*args, **kwargs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, work).result()

    return call


run = _synchronous(arun)
"""`arun` from synchronous code, in notebooks too: `ttc.run("12+30*2", strategy="majority", n=8)`."""
