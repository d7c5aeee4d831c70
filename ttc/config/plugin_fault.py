"""Whose fault it is: an exception of the user's own code is told as theirs, with their file and line.

A module that a registry loaded from a file carries what it was loaded as (`LABEL`); other distributions are known by
their entry points. An exception whose last frame of ours or theirs is theirs becomes a `PluginError`; one that our own
code raises, also when theirs called it, stays what it is, with a note of where it was called. Calling a strategy and
reading what a scorer gave go through here as well, so that what they return is checked.

Left out: functions handed over in Python, which no registry has named; their exceptions go through untouched.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import math
import numbers
import pathlib
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from ttc.core import Answer, Problem, Score, Scorer
from ttc.errors import PluginError, TTCError

__all__ = [
    "LABEL",
    "blamed",
    "call_strategy",
    "check_answer",
    "checked_return",
    "described",
    "is_own",
    "leaf",
    "line_in",
    "read_scores",
    "without_scores",
]

T = TypeVar("T")
LABEL = "__ttc_plugin__"
"""The name, in a plug-in's module, of what the module was loaded as: `strategy mine.py:vote`."""
_OWN = frozenset({"ttc", "evals", "train", "distill", "serve"})


def leaf(error: BaseException) -> BaseException:
    """Return the first failure inside a group of failures, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def is_own(function: Callable[..., Any]) -> bool:
    """Whether a function comes with the toolkit."""
    return function.__module__.partition(".")[0] in _OWN


def blamed(error: Exception) -> Exception:
    """Return the `PluginError` that tells `error` as the plug-in's, or `error` itself where it is not the plug-in's.

    What a plug-in raises on purpose, an error of the toolkit's own tree, is left as it is.
    """
    first = leaf(error)
    if isinstance(first, TTCError):
        return error
    label, place = None, ""
    for frame, line in traceback.walk_tb(first.__traceback__):
        here = _label_of(frame.f_globals)
        if here is not None:
            label, place = here, f"{pathlib.Path(frame.f_code.co_filename).name}, line {line}"
        elif _root(frame.f_globals) in _OWN:
            label = None
    if label is None:
        note = f"called from {place}"
        if place and note not in getattr(first, "__notes__", ()):
            first.add_note(note)
        return error
    text = f": {first}" if str(first) else ""
    fault = PluginError(f"{label} raised {type(first).__name__}{text} ({place})")
    fault.__cause__ = error
    return fault


def described(error: BaseException) -> str:
    """Return the type of an error, its message and, where our own code raised it, where theirs called."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


def line_in(file: str, error: BaseException) -> str:
    """Return " (mine.py, line 3)" for the last line of `file` that `error` came through, nothing where it did not."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f" ({pathlib.Path(file).name}, line {lines[-1]})" if lines else ""


async def call_strategy(strategy: Callable[..., Awaitable[Answer]], problem: Problem, session: object) -> Answer:
    """Await a strategy on a problem, with its session, and check its answer.

    Raises:
        PluginError: it raised, or returned something else.
        TTCError: what it let through.
    """
    try:
        returned: object = strategy(problem, session)
        answer = await returned if inspect.isawaitable(returned) else returned
    except Exception as error:
        fault = blamed(error)
        if fault is error:
            raise
        raise fault from error
    return check_answer(strategy, answer)


def check_answer(strategy: Callable[..., Any], answer: object) -> Answer:
    """Return `answer`; raises PluginError where a strategy returned anything but an Answer."""
    if isinstance(answer, Answer):
        return answer
    name = _named("strategy", strategy)
    if inspect.iscoroutine(answer):
        answer.close()
        raise PluginError(f"{name} returned a coroutine that was not awaited; return await ...")
    raise PluginError(f"{name} returned {_kind(answer)}; return session.answer(chosen, candidates)")


def checked_return(kind: str, plugin: object, returned: object, form: type[T], num: int | None = None) -> T:
    """Return what a plug-in of this kind returned; raises PluginError where it is no `wanted`, or not `num` of them."""
    if not isinstance(returned, form):
        raise PluginError(f"{_named(kind, plugin)} returned {_kind(returned)}; return a {form.__name__}")
    if num is not None and len(cast("Sequence[object]", returned)) != num:
        got = len(cast("Sequence[object]", returned))
        raise PluginError(f"{_named(kind, plugin)} returned {got} values for {num}; return one for each, in order")
    return returned


def read_scores(scorer: Scorer, returned: object, num: int) -> list[Score]:
    """Return what a scorer gave for `num` prompts; a score that is not finite is no verdict, and says so.

    Raises:
        PluginError: something else than `num` scores with numbers.
    """
    if not isinstance(returned, Sequence) or not all(isinstance(score, Score) for score in returned):
        raise PluginError(f"{_named('scorer', scorer)} gave {_kind(returned)}; return a list of Score, one a prompt")
    if len(returned) != num:
        raise PluginError(f"{_named('scorer', scorer)} gave {len(returned)} scores for {num} prompts")
    return [_finite(scorer, score) for score in returned]


def without_scores(answers: Iterable[Answer]) -> str:
    """Say that a scorer was asked and no score of it could be used; empty where one could, or none was asked for."""
    num, note = 0, ""
    for event in (event for answer in answers for event in answer.trace if event.kind == "score"):
        if event.data["value"] is not None:
            return ""
        num, note = num + 1, note or str(event.data["note"])
    return f"no usable score in {num} of {num}" + (f": {note}" if note else "") if num else ""


def _finite(scorer: Scorer, score: Score) -> Score:
    if score.value is None:
        return score
    values = (score.value, *score.steps)
    if not all(isinstance(value, float | numbers.Real) for value in values):
        raise PluginError(f"{_named('scorer', scorer)} gave {score!r}; its value and steps must be numbers")
    odd = next((value for value in values if not math.isfinite(value)), None)
    if odd is not None:
        return Score(None, note=f"{odd} is not a finite score")
    if all(type(value) is float for value in values):
        return score
    return replace(score, value=float(score.value), steps=tuple(float(step) for step in score.steps))


def _kind(returned: object) -> str:
    return "None" if returned is None else type(returned).__name__


def _named(kind: str, plugin: object) -> str:
    """What a plug-in was loaded as; for others the kind and the name of the function, or of the object's class."""
    while isinstance(plugin, functools.partial):
        plugin = plugin.func
    place = plugin if inspect.isroutine(plugin) or inspect.isclass(plugin) else type(plugin)
    module = sys.modules.get(place.__module__)
    label = getattr(plugin, "__globals__", {}).get(LABEL) or getattr(module, LABEL, None)
    return str(label or f"{kind} {place.__qualname__.partition('.<locals>')[0]}")


def _label_of(module: Mapping[str, Any]) -> str | None:
    """What the module of a frame was loaded as, None where it is no plug-in's."""
    label = module.get(LABEL)
    return str(label) if label else _installed().get(_root(module))


def _root(module: Mapping[str, Any]) -> str:
    return str(module.get("__name__", "")).partition(".")[0]


@functools.cache
def _installed() -> Mapping[str, str]:
    """The packages of other distributions that declare plug-ins, with how they are called; asked after a failure."""
    entries = (entry for package in importlib.metadata.distributions() for entry in package.entry_points)
    roots = {entry.module.partition(".")[0] for entry in entries if entry.group.startswith("ttc.")}
    return {root: f"plug-in package {root}" for root in roots - _OWN}
