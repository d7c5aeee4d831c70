"""Engines and scorers, tried for real: the packaged model answers a question, and every scorer scores that answer.

What needs something of the user's (a model, a server, a script) says so itself and is `ready`.
"""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Awaitable
from dataclasses import replace

from ttc.commands._doctor.check import Check, State
from ttc.commands._doctor.foreign import FOREIGN
from ttc.commands._doctor.packages import install, reinstall
from ttc.config.choices import DEFAULT_ENGINE, PartChoice
from ttc.config.registry import ENGINES, SCORERS
from ttc.core import Engine, Message, Prompt, Sampling
from ttc.errors import ConfigError, MissingExtra

__all__ = ["engines", "scorers"]

TIMEOUT_S = 60.0
QUESTION = (Message("user", "12+30*2"),)
GREEDY = Sampling(temperature=0.0, max_tokens=16, seed=0)


def engines(try_all: bool) -> list[Check]:
    """Check every engine; those of other packages load a model only with `try_all`."""
    return [
        _foreign(name, try_all) if name in FOREIGN else asyncio.run(_checked("engines", name, _engine(name)))
        for name in ENGINES.names()
    ]


def scorers() -> list[Check]:
    """Check every scorer on one answer of the default engine."""
    return asyncio.run(_scorers())


def _foreign(name: str, try_it: bool) -> Check:
    try:
        return FOREIGN[name](try_it)
    except Exception as exc:  # whatever the check of one engine meets, the others are still to come
        return Check("engines", name, "broken", f"{type(exc).__name__}: {exc}")


async def _checked(group: str, name: str, attempt: Awaitable[str]) -> Check:
    """Await an attempt; whatever it raises becomes the check."""
    state: State
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return Check(group, name, "ok", await attempt)
    except MissingExtra as exc:
        state, detail, command = "missing", f"{exc.package} is not installed", install(exc.extra)
    except ConfigError as exc:
        state, detail, command = "ready", str(exc), None
    except ImportError as exc:
        state, detail, command = "broken", str(exc), reinstall()
    except Exception as exc:
        state, detail, command = "broken", f"{type(exc).__name__}: {exc}", None
    return Check(group, name, state, detail, command)


async def _engine(name: str) -> str:
    engine: Engine = ENGINES.load(name)()
    try:
        started = time.perf_counter()
        answer = await _answer(engine)
        seconds = time.perf_counter() - started
        model = pathlib.PurePath(engine.capabilities.model).name
        return f"{model} said {len(answer.generated_ids)} tokens in {seconds:.2f} s"
    finally:
        await engine.close()


async def _scorers() -> list[Check]:
    engine: Engine = ENGINES.load(DEFAULT_ENGINE)()
    try:
        answer = await _answer(engine)
        return [await _checked("scorers", name, _scorer(name, engine, answer)) for name in SCORERS.names()]
    finally:
        await engine.close()


async def _scorer(name: str, engine: Engine, answer: Prompt) -> str:
    scorer = PartChoice("scorer", name, None, SCORERS.load(name), {}).create_scorer(engine)
    started = time.perf_counter()
    (score,) = await scorer.score([answer], lambda usage: None)
    seconds = time.perf_counter() - started
    scorer.release(answer.problem_id)
    text = "no verdict on" if score.value is None else f"{score.value:.3g} for"
    return f"{text} that answer, {seconds:.2f} s"


async def _answer(engine: Engine) -> Prompt:
    """The question with the first tokens of the answer."""
    prompt = replace(engine.render(QUESTION, False), problem_id="doctor", messages=QUESTION)
    sampling = replace(GREEDY, logprobs=engine.capabilities.logprobs)
    (completion,) = await engine.generate(prompt, sampling, range(1), lambda usage: None)
    return prompt.then(completion)
