"""What the functions of a registry look like, and what they make: checked by their signatures, before they are called.

A `PluginShape` stands with its registry: a strategy is an async function of (problem, session) and keywords; all others
are plain factories. What a factory makes is named by the types that describe it anyway: a protocol (its methods, which
of them are async, what they take), a class, or a `Callable` alias (how many arguments). So a shape cannot drift from
what the toolkit calls. Cost: reading signatures. Left out: the types of arguments and of what methods return.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ttc.errors import ConfigError

__all__ = ["PluginShape", "is_async"]

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class PluginShape:
    """The form of one kind of registered function.

    `takes` are arguments given by place, in order; `supplied` may be given besides, by name, where the function asks
    for them; `num_free` arguments more may have any name. `makes` refers to the types of what is returned, as
    `module:name`; one of them is enough. They are imported when something is checked.
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
        """Refuse what a factory made when it is none of `makes`.

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
        """The types of what is returned, by name."""
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
        """What the product of a factory has, where that is one protocol."""
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
    """The members of a protocol that `product` lacks, or what should be there in its place; empty where it is one."""
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
    """Whether `product` has the member, and where that is a method, one that can be called as the protocol's is."""
    if not inspect.isfunction(member):
        return hasattr(product, name)
    own = getattr(product, name, None)
    parameters = list(inspect.signature(member).parameters.values())[1:]
    by_place = [parameter for parameter in parameters if parameter.kind in _BY_PLACE]
    by_name = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return callable(own) and is_async(own) == is_async(member) and _accepts(own, len(by_place), by_name)


def _written(name: str, member: Any) -> str:
    """A member as its class writes it."""
    if not inspect.isfunction(member):
        return f"the attribute {name}"
    listed = ", ".join(str(p.replace(annotation=p.empty)) for p in inspect.signature(member).parameters.values())
    return f"{'async ' if is_async(member) else ''}def {name}({listed})"


def _accepts(function: Callable[..., Any], num: int, names: typing.Sequence[str]) -> bool:
    """Whether `function` can be called with `num` arguments by place and these by name."""
    signature = _signature(function)
    if signature is None:
        return True
    try:
        signature.bind(*range(num), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """None for what was written in C and says nothing of its arguments."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _listed(items: typing.Sequence[str]) -> str:
    return " and ".join([*([", ".join(items[:-1])] if len(items) > 1 else []), items[-1]])
