"""`ttc.run` and `ttc.arun`: one question from Python, with the names of the command line.

    answer = ttc.run("12+30*2", strategy="majority", n=8)
    answer = await ttc.arun("12+30*2", strategy=mine, scorer=lambda prompt: -len(prompt.generated_text))

Strategies, engines and scorers may be names, objects or functions. Synchronous forms also work where an event loop is
already running.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from ttc.config.choices import DEFAULT_ENGINE, DEFAULT_SCORER, ENDPOINT, PartChoice, StrategyChoice
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

_PLACES: Mapping[str, str] = {
    **{each.name: f"sampling=ttc.Sampling({each.name}=...)" for each in fields(Sampling) if each.name != "seed"},
    **{each.name: f"budget=ttc.Budget({each.name}=...)" for each in fields(Budget)},
    "device": "engine=ttc.ENGINES.load('embedded')('MODEL', device=...)",
    "dtype": "engine=ttc.ENGINES.load('embedded')('MODEL', dtype=...)",
    "enable_thinking": "thinking=ttc.Thinking(mode='on')",
    "num_samples": "n=...",
    "n_samples": "n=...",
}
"""Options of other tools, and how to write them here."""


def with_options(
    function: Callable[_Parameters, Coroutine[Any, Any, _Outcome]],
) -> Callable[_Parameters, Coroutine[Any, Any, _Outcome]]:
    """The same function, but first of all it refuses unknown options and values of a wrong type, by name."""
    options = [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    takes = set(inspect.signature(function).parameters)

    @functools.wraps(function)
    async def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Outcome:
        for name in kwargs:
            if name not in takes and name in _PLACES:
                raise ConfigError(f"there is no option {name!r}: write {_PLACES[name]}")
            if name not in takes:
                raise ConfigError(
                    f"there is no option {name!r}{nearest(name, options)} (known: {', '.join(options)}); "
                    f"a parameter of the strategy stands in params={{{name!r}: ...}}"
                )
        hints = get_type_hints(function)
        for name, value in kwargs.items():
            _check_type(name, value, get_args(hints[name]))
            if isinstance(value, Integral):
                kwargs[name] = int(value)  # numpy's, too
        return await function(*args, **kwargs)

    return call


def _check_type(name: str, value: object, types: Sequence[Any]) -> None:
    """Refuse a value that should be a whole number or one of our value objects; other types are checked later.

    `types` are those of a union; None stands for types that are not checked.
    """
    if value is None or not types or type(None) not in types:
        return
    kind: Any = types[0]
    if kind is int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    is_own = is_dataclass(kind)
    if is_own and not isinstance(value, kind):
        own = f"ttc.{kind.__name__}"
        raise ConfigError(f"{name} must be a {own}, such as {own}({fields(kind)[0].name}=...), got {value!r}")


def as_problem(question: Problem | str | Sequence[Message | Mapping[str, str]]) -> Problem:
    """Make a problem of a question, or of a conversation as chat endpoints take it.

    Raises:
        ConfigError: it is none of these, or empty.
    """
    if isinstance(question, Problem):
        return question
    turns: object = [Message("user", question)] if isinstance(question, str) else question
    if not isinstance(turns, list | tuple):
        raise ConfigError(f"problem must be a question, a list of messages or a ttc.Problem, got {question!r}")
    messages = tuple(_message(turn, i) for i, turn in enumerate(turns))
    if messages and messages[-1].role == "assistant":
        raise ConfigError("problem ends with the assistant's turn, so nothing is asked: end with the user's")
    if not any(message.content.strip() for message in messages):
        raise ConfigError("problem is empty: write what is asked")
    return Problem(id="ask", messages=messages)


def _message(turn: object, index: int) -> Message:
    """A turn of a conversation; a ConfigError describes the right form."""
    if isinstance(turn, Message):
        return turn
    if isinstance(turn, Mapping) and turn.keys() == {"role", "content"}:
        role, content = turn["role"], turn["content"]
        if isinstance(content, list):
            raise ConfigError(
                f"problem[{index}]: content must be text, got a list of parts; pictures cannot be asked about"
            )
        if isinstance(content, str) and role in ("system", "user", "assistant"):
            return Message(role, content)
    raise ConfigError(
        f"problem[{index}] must be a message, such as {{'role': 'user', 'content': 'What is 6*7?'}} "
        f"(system, user or assistant), got {turn!r}; ttc.evaluate takes several questions"
    )


@with_options
async def arun(
    problem: Problem | str | Sequence[Message | Mapping[str, str]],
    *,
    strategy: str | Strategy = "direct",
    seed: int | None = None,
    n: int | None = None,
    params: Mapping[str, object] | None = None,
    engine: str | Engine | None = None,
    model: str | None = None,
    base_url: str | None = None,
    scorer: str | Scorer | ScoreFunction | None = None,
    sampling: Sampling | None = None,
    thinking: Thinking | None = None,
    budget: Budget | None = None,
) -> Answer:
    """Solve one problem: `await ttc.arun("12+30*2", strategy="majority", n=8)`.

    The problem is a question, or a conversation: a list of messages such as `{"role": "user", "content": "..."}`.
    Strategy, engine, model, address and scorer are named as on the command line (`majority`, `mine.py:vote`,
    `model="gpt-x", base_url="https://api.example.com/v1"`, `prm:MODEL`); strategy, engine and scorer may be objects,
    strategy and scorer functions (`ttc.config.functions`). An engine given by name is closed at the end. `n` and
    `params` are parameters of the strategy. With the packaged model, a strategy that needs a scorer gets the packaged
    one. Without `seed` every call draws afresh; without `sampling` it draws as the model's authors recommend.

    Raises:
        ConfigError: a name, a parameter or a value that does not fit.
        TTCError: as `solve`.
    """
    problem = as_problem(problem)
    choice, chosen = choose_strategy(strategy, n, params), choose_engine(engine, model, base_url)
    scorer = usual_scorer(choice, chosen) if scorer is None else scorer
    check_scorer(choice, scorer)
    async with opened(chosen) as running:
        return await solve(
            problem,
            engine=running,
            strategy=choice.bind(choose_scorer(scorer, running)),
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            sampling=sampling or running.capabilities.as_recommended(Sampling()),
            thinking=thinking,
            budget=budget,
        )


def choose_strategy(strategy: str | Strategy, n: int | None, params: Mapping[str, object] | None) -> StrategyChoice:
    """Return the strategy of this name, or this function, with its parameters checked; raises ConfigError."""
    parameters = {**({} if n is None else {"n": n}), **(params or {})}
    if n is not None and parameters["n"] != n:
        raise ConfigError(f"n is {n}, and {parameters['n']} in params: give it once")
    if not isinstance(strategy, str):
        return StrategyChoice.of_function(strategy, parameters)
    name, inline = parse_spec(strategy)
    twice = next((each for each in inline if each in parameters and inline[each] != str(parameters[each])), None)
    if twice is not None:
        raise ConfigError(f"{twice} is {parameters[twice]!r}, and {inline[twice]} in {strategy!r}: give it once")
    return StrategyChoice.of(name, {**parameters, **inline})


def choose_engine(engine: str | Engine | None, model: str | None, base_url: str | None) -> PartChoice | Engine:
    """Return the engine of these names, or this object; raises ConfigError for what does not go together."""
    if engine is None or isinstance(engine, str):
        usual, own = (DEFAULT_ENGINE, {}) if base_url is None else (ENDPOINT, {"base_url": base_url})
        return PartChoice.of(ENGINES, engine or usual, own, model)
    if model is not None or base_url is not None:
        raise ConfigError("model and base_url name an engine, and engine is one already: give one or the other")
    return engine


def usual_scorer(choice: StrategyChoice, engine: PartChoice | Engine) -> str | None:
    """The packaged scorer, where a strategy needs one and the packaged model runs."""
    is_packaged = isinstance(engine, PartChoice) and (engine.name, engine.model) == (DEFAULT_ENGINE, None)
    return DEFAULT_SCORER if choice.needs_scorer and is_packaged else None


def check_scorer(choice: StrategyChoice, scorer: object) -> None:
    """Refuse a scorer that the strategy would not use."""
    if scorer is not None and not choice.takes_scorer:
        raise ConfigError(f"scorer has no effect: {choice.name} takes none")


def choose_scorer(scorer: str | Scorer | ScoreFunction | None, engine: Engine) -> Scorer | None:
    """Return the scorer of this name, made for `engine`, or this object or function as one; raises ConfigError."""
    if isinstance(scorer, str):
        return PartChoice.of(SCORERS, scorer, {}).create_scorer(engine)
    return None if scorer is None else as_scorer(scorer)


@asynccontextmanager
async def opened(engine: PartChoice | Engine) -> AsyncIterator[Engine]:
    """An engine: opened by name and closed at the end, or an object, left open."""
    if not isinstance(engine, PartChoice):
        yield engine
        return
    own = engine.create_engine()
    try:
        yield own
    finally:
        await own.close()


def synchronous(
    function: Callable[_Parameters, Coroutine[Any, Any, _Outcome]],
) -> Callable[_Parameters, _Outcome]:
    """The same from synchronous code; in a thread of its own if a loop is already running, as in a notebook."""

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
