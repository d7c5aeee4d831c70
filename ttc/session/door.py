"""`ttc.run` and `ttc.arun`: one question from Python, with everything named as on the command line.

    answer = ttc.run("12+30*2", strategy="majority", n=8)
    answer = await ttc.arun("12+30*2", strategy=mine, scorer=lambda prompt: -len(prompt.generated_text))

Strategies, engines and scorers may be names, objects or functions. Synchronous forms work where a loop runs already.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.functions import ScoreFunction, as_scorer
from ttc.config.recipes import parse_spec
from ttc.config.registry import ENGINES, SCORERS
from ttc.config.values import nearest
from ttc.core import Answer, Budget, Engine, Message, Problem, Sampling, Scorer, Strategy
from ttc.errors import ConfigError
from ttc.session.solve import solve
from ttc.session.thinking import Thinking

_Parameters = ParamSpec("_Parameters")
_Outcome = TypeVar("_Outcome")


def with_options(
    function: Callable[_Parameters, Coroutine[Any, Any, _Outcome]],
) -> Callable[_Parameters, Coroutine[Any, Any, _Outcome]]:
    """The same function, which refuses an option that it does not have by name, before anything else."""
    options = [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    takes = set(inspect.signature(function).parameters)

    @functools.wraps(function)
    async def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Outcome:
        for name in kwargs:
            if name not in takes:
                raise ConfigError(
                    f"there is no option {name!r}{nearest(name, options)} (known: {', '.join(options)}); "
                    f"a parameter of the strategy stands in params={{{name!r}: ...}}"
                )
        return await function(*args, **kwargs)

    return call


@with_options
async def arun(
    problem: Problem | str,
    *,
    strategy: str | Strategy = "direct",
    seed: int | None = None,
    n: int | None = None,
    params: Mapping[str, object] | None = None,
    engine: str | Engine = "embedded",
    scorer: str | Scorer | ScoreFunction | None = None,
    sampling: Sampling | None = None,
    thinking: Thinking | None = None,
    budget: Budget | None = None,
) -> Answer:
    """Solve one problem: `await ttc.arun("12+30*2", strategy="majority", n=8)`.

    Strategy, engine and scorer are named as on the command line (`majority`, `mine.py:vote`, `embedded:MODEL`,
    `prm:MODEL`), or are objects; strategy and scorer may be functions (`ttc.config.functions`). An engine that is named
    is closed at the end. `n` and `params` are parameters of the strategy. A strategy that needs a scorer has the
    packaged one with the packaged model. Without `seed` every call draws anew.

    Raises:
        ConfigError: a name, a parameter or a value that does not fit.
        TTCError: as `solve`.
    """
    if isinstance(problem, str):
        problem = Problem(id="ask", messages=(Message("user", problem),))
    choice = choose_strategy(strategy, n, params)
    if scorer is None and choice.needs_scorer and engine == "embedded":
        scorer = "prm"
    check_scorer(choice, scorer)
    async with opened(engine) as running:
        return await solve(
            problem,
            engine=running,
            strategy=choice.bind(choose_scorer(scorer, running)),
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            sampling=sampling,
            thinking=thinking,
            budget=budget,
        )


def choose_strategy(strategy: str | Strategy, n: int | None, params: Mapping[str, object] | None) -> StrategyChoice:
    """Return the strategy of this name, or this function, with its parameters checked; raises ConfigError."""
    parameters = {**({} if n is None else {"n": n}), **(params or {})}
    if not isinstance(strategy, str):
        return StrategyChoice.of_function(strategy, parameters)
    name, inline = parse_spec(strategy)
    return StrategyChoice.of(name, {**parameters, **inline})


def check_scorer(choice: StrategyChoice, scorer: object) -> None:
    """Refuse a scorer that the strategy would not read."""
    if scorer is not None and not choice.takes_scorer:
        raise ConfigError(f"scorer has no effect: {choice.name} takes none")


def choose_scorer(scorer: str | Scorer | ScoreFunction | None, engine: Engine) -> Scorer | None:
    """Return the scorer of this name, made for `engine`, or this object or function as one; raises ConfigError."""
    if isinstance(scorer, str):
        return PartChoice.of(SCORERS, scorer, {}).create_scorer(engine)
    return None if scorer is None else as_scorer(scorer)


@asynccontextmanager
async def opened(engine: str | Engine) -> AsyncIterator[Engine]:
    """An engine by name, closed at the end; one that is an object is left open."""
    if not isinstance(engine, str):
        yield engine
        return
    own = PartChoice.of(ENGINES, engine, {}).create_engine()
    try:
        yield own
    finally:
        await own.close()


def synchronous(
    function: Callable[_Parameters, Coroutine[Any, Any, _Outcome]],
) -> Callable[_Parameters, _Outcome]:
    """The same from synchronous code; where a loop runs already, as in a notebook, in a thread of its own."""

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Outcome:
        work = function(*args, **kwargs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, work).result()

    return call


run = synchronous(arun)
"""`arun` from synchronous code, in notebooks too: `ttc.run("12+30*2", strategy="majority", n=8)`."""
