"""Plug-ins: their form, checked by signature before a call, and whose fault an error is.

Each registry has a `PluginShape`: a strategy is an async function of (problem, session) and keywords; all others are
plain factories. A factory's product is described by its existing type: a protocol (its methods, which are async, what
they take), a class, or a `Callable` alias (how many arguments). So a shape cannot drift from what the toolkit calls.
Cost: reading signatures.

An exception of a user's code is reported as theirs, with file and line. Code is a user's if a registry loaded its
module from a file (and marked it with `LABEL`), or its distribution has entry points of the toolkit. The last frame
that is ours or theirs decides: if it is theirs, the exception becomes a `PluginError`; if it is ours, even when called
by their code, the exception stays unchanged, with a note of where it was called. Strategies are called and scores are
read through this module, too, so that what they return is checked.

Left out: the types of arguments and return values; functions passed in Python without a registry, whose exceptions pass
through unchanged.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import math
import numbers
import pathlib
import pkgutil
import sys
import traceback
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar, cast

from ttc.core import Answer, Problem, Score, Scorer
from ttc.errors import ConfigError, PluginError, TTCError

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class PluginShape:
    """The form of one kind of registered function.

    `takes` are positional arguments, in order; `supplied` are passed by name if the function has them; `num_free`
    further arguments may have any name. `makes` lists possible types of the result, as `module:name`, which are
    imported only for a check.
    """

    makes: tuple[str, ...]
    takes: tuple[str, ...] = ()
    supplied: tuple[str, ...] = ()
    num_free: int = 0
    is_async: bool = False
    has_options: bool = True

    def text(self, name: str) -> str:
        """How such a function is written: `async def NAME(problem, session, *, ...) -> Answer`."""
        model = ["model=None"] if "model" in self.supplied else []
        listed = ", ".join([*self.takes, *model, *(["*", "..."] if self.has_options else [])])
        products = " | ".join(reference.rpartition(":")[2] for reference in self.makes)
        return f"{'async ' if self.is_async else ''}def {name}({listed}) -> {products}"

    def check_function(self, label: str, function: object) -> None:
        """Refuse a function of another form; `label` names it, `strategy mine.py:vote`.

        Raises:
            ConfigError: says what it is and how it is written.
        """
        fault = self._fault(function)
        if fault:
            name = getattr(function, "__name__", "NAME")
            raise ConfigError(f"{label} {fault}: write {self.text(name)}{self._product_text()}")

    def check_product(self, label: str, product: object) -> None:
        """Refuse a factory's product that is none of `makes`.

        Raises:
            ConfigError: names what it lacks, with the signature that is expected.
        """
        products = self._products()
        lacks = {name: _lacks(product, kind) for name, kind in products.items()}
        name = min(lacks, key=lambda name: len(lacks[name]))
        if lacks[name]:
            value = "nothing" if product is None else f"a value of type {type(product).__name__}"
            verb = "it lacks" if _is_protocol(products[name]) else "return"
            raise ConfigError(f"{label} made {value}, not a {name}: {verb} {_listed(lacks[name])}")

    def _products(self) -> dict[str, Any]:
        """The types of the result, by name."""
        return {reference.rpartition(":")[2]: pkgutil.resolve_name(reference) for reference in self.makes}

    def _fault(self, function: object) -> str | None:
        if not callable(function):
            return f"is a {type(function).__name__}, not a function"
        if is_async(function) != self.is_async:
            return "is not an async function" if self.is_async else "is an async function, which a factory is not"
        signature = _signature(function)
        if signature is None:
            return None
        parameters = list(signature.parameters.values())
        by_place = [parameter for parameter in parameters if parameter.kind in _BY_PLACE]
        is_open = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        if len(by_place) < len(self.takes) and not is_open:
            listed = ", ".join(parameter.name for parameter in by_place) or "nothing"
            return f"takes {listed}, and is given {', '.join(self.takes)}"
        rest = by_place[len(self.takes) :]
        unmet = [p.name for p in rest if p.default is p.empty and p.name not in self.supplied]
        if len(unmet) > self.num_free:
            return f"takes {unmet[self.num_free]}, which nothing gives it"
        return None

    def _product_text(self) -> str:
        """The members of a factory's product, if that is a single protocol."""
        protocols = {name: kind for name, kind in self._products().items() if _is_protocol(kind)}
        if self.is_async or len(protocols) != 1:
            return ""
        ((name, kind),) = protocols.items()
        return f"; a {name} has {_listed([_written(name, member) for name, member in _members(kind).items()])}"


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives a coroutine; looks behind partials, wrappers and objects that can be called."""
    plain: Any = function
    while isinstance(plain, functools.partial) or hasattr(plain, "__wrapped__"):
        plain = plain.func if isinstance(plain, functools.partial) else plain.__wrapped__
    if inspect.isclass(plain):
        return False
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


def _lacks(product: object, kind: Any) -> list[str]:
    """The members of a protocol that `product` lacks, as they should be; empty if it has them all."""
    if _is_protocol(kind):
        members = _members(kind).items()
        return [_written(name, member) for name, member in members if not _has(product, name, member)]
    if isinstance(kind, type):
        return [] if isinstance(product, kind) else [f"{kind.__name__}(...)"]
    arguments = typing.get_args(kind)[0]
    if callable(product) and not inspect.isclass(product) and _accepts(product, len(arguments), ()):
        return []
    listed = ", ".join(getattr(argument, "__name__", str(argument)) for argument in arguments)
    return [f"a function of ({listed})"]


def _is_protocol(kind: Any) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _members(protocol: Any) -> dict[str, Any]:
    """The public members of a protocol and of those it extends: functions, properties, and annotations (as None)."""
    members: dict[str, Any] = {}
    for base in reversed(protocol.__mro__):
        if _is_protocol(base) and base is not typing.Protocol:
            members |= {name: None for name in inspect.get_annotations(base) if not name.startswith("_")}
            members |= {name: member for name, member in vars(base).items() if not name.startswith("_")}
    return members


def _has(product: object, name: str, member: Any) -> bool:
    """Whether `product` has the member, callable like the protocol's if it is a method."""
    if not inspect.isfunction(member):
        return hasattr(product, name)
    own = getattr(product, name, None)
    parameters = list(inspect.signature(member).parameters.values())[1:]
    by_place = [parameter for parameter in parameters if parameter.kind in _BY_PLACE]
    by_name = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return callable(own) and is_async(own) == is_async(member) and _accepts(own, len(by_place), by_name)


def _written(name: str, member: Any) -> str:
    """A member as its class declares it."""
    if not inspect.isfunction(member):
        return f"the attribute {name}"
    listed = ", ".join(str(p.replace(annotation=p.empty)) for p in inspect.signature(member).parameters.values())
    return f"{'async ' if is_async(member) else ''}def {name}({listed})"


def _accepts(function: Callable[..., Any], num: int, names: typing.Sequence[str]) -> bool:
    """Whether `function` can be called with `num` positional arguments and these by name."""
    signature = _signature(function)
    if signature is None:
        return True
    try:
        signature.bind(*range(num), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature; None for a function in C without one."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _listed(items: typing.Sequence[str]) -> str:
    return " and ".join([*([", ".join(items[:-1])] if len(items) > 1 else []), items[-1]])


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
    """Return `error` as a `PluginError` if it is the plug-in's fault, else `error` itself.

    Errors of the toolkit's own tree, which a plug-in raises on purpose, stay unchanged.
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
    """Return the type of an error, its message and, if our code raised it, the place in the plug-in that called it."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


def line_in(file: str, error: BaseException) -> str:
    """Return " (mine.py, line 3)" for the last line of `file` in the traceback of `error`; empty if there is none."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f" ({pathlib.Path(file).name}, line {lines[-1]})" if lines else ""


async def call_strategy(strategy: Callable[..., Awaitable[Answer]], problem: Problem, session: object) -> Answer:
    """Await a strategy on a problem, with its session, and check its answer.

    Raises:
        PluginError: it raised, or returned something else.
        TTCError: an error of the toolkit that it did not catch.
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
    """Return `answer`; raises PluginError if a strategy returned no Answer, or one without text."""
    name = _named("strategy", strategy)
    if isinstance(answer, Answer):
        for field, value in (("text", answer.text), ("final", "" if answer.final is None else answer.final)):
            if not isinstance(value, str):
                raise PluginError(f"{name} returned an Answer whose {field} is {_kind(value)}; give text: str(...)")
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
        raise PluginError(f"{name} returned a coroutine that was not awaited; return await ...")
    raise PluginError(f"{name} returned {_kind(answer)}; return session.answer(chosen, candidates)")


def checked_return(kind: str, plugin: object, returned: object, form: type[T], num: int | None = None) -> T:
    """Return what a plug-in of this kind returned; raises PluginError if it is no `form`, or has not `num` items."""
    if not isinstance(returned, form):
        raise PluginError(f"{_named(kind, plugin)} returned {_kind(returned)}; return a {form.__name__}")
    if num is not None and len(cast("Sequence[object]", returned)) != num:
        got = len(cast("Sequence[object]", returned))
        raise PluginError(f"{_named(kind, plugin)} returned {got} values for {num}; return one for each, in order")
    return returned


def checked_shape(kind: str, plugin: object, returned: Any, shape: Sequence[int]) -> None:
    """Raise PluginError if a tensor returned by a plug-in of this kind has another shape; it may be a mean, say."""
    if tuple(returned.shape) != tuple(shape):
        raise PluginError(
            f"{_named(kind, plugin)} returned a tensor of shape {tuple(returned.shape)}; return one of {tuple(shape)}, "
            "one number for each, before any mean"
        )


def read_scores(scorer: Scorer, returned: object, num: int) -> list[Score]:
    """Return what a scorer gave for `num` prompts; a score that is not finite becomes no verdict, with a note.

    Raises:
        PluginError: something else than `num` scores with numbers.
    """
    if not isinstance(returned, Sequence) or not all(isinstance(score, Score) for score in returned):
        raise PluginError(f"{_named('scorer', scorer)} gave {_kind(returned)}; return a list of Score, one a prompt")
    if len(returned) != num:
        raise PluginError(f"{_named('scorer', scorer)} gave {len(returned)} scores for {num} prompts")
    return [_finite(scorer, score) for score in returned]


def without_scores(answers: Iterable[Answer]) -> str:
    """Report that no score of a scorer was usable, or that some could not weigh a vote; empty otherwise."""
    num, usable, unweighed, note = 0, 0, 0, ""
    for event in (event for answer in answers for event in answer.trace):
        if event.kind == "score":
            num, usable = num + 1, usable + (event.data["value"] is not None)
            note = note or str(event.data["note"])
        unweighed += int(event.data.get("unweighed", 0)) if event.kind == "note" else 0
    if num and not usable:
        return f"no usable score in {num} of {num}" + (f": {note}" if note else "")
    help_text = "set select=argmax, or let the scorer give probabilities"
    return f"scores below 0 weigh nothing in a vote ({unweighed} here): {help_text}" if unweighed else ""


def cut_by_budget(answer: Answer, max_tokens: int) -> bool:
    """Whether a larger budget would let the chosen draw of an answer go on, which has fewer than `max_tokens`."""
    path = next((event.path for event in reversed(answer.trace) if event.kind == "select"), None)
    spans = [event.data.get("injected", ()) for event in answer.trace if event.path == path]
    injected = sum(end - start for start, end in chain.from_iterable(spans))
    lengths = [candidate.num_tokens for candidate in answer.candidates if candidate.path == path]
    return answer.stop_cause == "budget" and all(length - injected < max_tokens for length in lengths)


def _finite(scorer: Scorer, score: Score) -> Score:
    if score.value is None:
        return score
    values = (score.value, *score.steps)
    if all(type(value) is float and math.isfinite(value) for value in values):
        return score
    if not all(isinstance(value, float | numbers.Real) for value in values):
        raise PluginError(f"{_named('scorer', scorer)} gave {score!r}; its value and steps must be numbers")
    odd = next((value for value in values if not math.isfinite(value)), None)
    if odd is not None:
        return Score(None, note=f"{odd} is not a finite score")
    return replace(score, value=float(score.value), steps=tuple(float(step) for step in score.steps))


def _kind(returned: object) -> str:
    return "None" if returned is None else type(returned).__name__


def _named(kind: str, plugin: object) -> str:
    """The name that a plug-in was loaded by; for others the kind and the name of the function or object's class."""
    while isinstance(plugin, functools.partial):
        plugin = plugin.func
    place = plugin if inspect.isroutine(plugin) or inspect.isclass(plugin) else type(plugin)
    module = sys.modules.get(place.__module__)
    label = getattr(plugin, "__globals__", {}).get(LABEL) or getattr(module, LABEL, None)
    return str(label or f"{kind} {place.__qualname__.partition('.<locals>')[0]}")


def _label_of(module: Mapping[str, Any]) -> str | None:
    """The name that a frame's module was loaded by; None if it is no plug-in."""
    label = module.get(LABEL)
    return str(label) if label else _installed().get(_root(module))


def _root(module: Mapping[str, Any]) -> str:
    return str(module.get("__name__", "")).partition(".")[0]


@functools.cache
def _installed() -> Mapping[str, str]:
    """The packages of other distributions that declare plug-ins, with their labels; used only after a failure."""
    entries = (entry for package in importlib.metadata.distributions() for entry in package.entry_points)
    roots = {entry.module.partition(".")[0] for entry in entries if entry.group.startswith("ttc.")}
    return {root: f"plug-in package {root}" for root in roots - _OWN}
