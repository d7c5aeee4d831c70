"""The signature is the schema: parameters, defaults, documentation and checks are all read from the function itself.

`describe` says what a function takes, for `ttc list` and help texts; `bind` checks values against it and parses text by
the annotations. So documentation, help and checks cannot drift apart. The text of a parameter is its entry in the
`Args:` section of the docstring (Google style). What a signature cannot say, a factory adds with `checked_by`: a check
of its arguments that `bind` makes as well, so before anything is loaded.

Left out: positional parameters other than `model`; they belong to the caller.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ttc.config.values import nearest, parse, type_text
from ttc.errors import ConfigError

__all__ = ["Description", "Parameter", "bind", "checked_by", "describe"]

Factory = TypeVar("Factory", bound=Callable[..., Any])
_CHECK = "__ttc_check__"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One keyword of a registered function: its type as text, its default, and its line of documentation."""

    name: str
    type: str
    required: bool
    default: Any
    doc: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; a default that JSON cannot hold is given as text."""
        plain = self.default is None or isinstance(self.default, (bool, int, float, str))
        default = self.default if plain else _default_text(self.default)
        return {"name": self.name, "type": self.type, "required": self.required, "default": default, "doc": self.doc}


@dataclass(frozen=True, slots=True)
class Description:
    """What a registered function says of itself: first line of its documentation, and its keyword parameters.

    `about` is the rest of its module's documentation: paper, cost, what is left out.
    """

    kind: str
    name: str
    doc: str
    takes_model: bool
    parameters: tuple[Parameter, ...]
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "kind": self.kind,
            "name": self.name,
            "doc": self.doc,
            "takes_model": self.takes_model,
            "parameters": [parameter.to_json() for parameter in self.parameters],
        }


def describe(kind: str, name: str, function: Callable[..., Any]) -> Description:
    """Return the description of `function`: its keywords, and the first line that says what it is.

    That line is its module's where the module is named like it (one technique, one file), else its own.
    """
    module_doc = inspect.getdoc(sys.modules.get(function.__module__)) or ""
    own_doc = inspect.getdoc(function) or ""
    own_module = function.__module__.rpartition(".")[2] == function.__name__
    lines = ((module_doc if own_module else "") or own_doc or module_doc).strip().splitlines()
    signature = inspect.signature(function)
    argument_docs = _argument_docs(module_doc) | _argument_docs(own_doc)
    hints = _hints(function)
    parameters = tuple(
        Parameter(
            name=item.name,
            type=type_text(hints[item.name]),
            required=item.default is item.empty,
            default=None if item.default is item.empty else item.default,
            doc=argument_docs.get(item.name, ""),
        )
        for item in signature.parameters.values()
        if item.kind is item.KEYWORD_ONLY
    )
    about = module_doc.strip().partition("\n")[2].strip() if own_module else ""
    doc = lines[0].strip() if lines else ""
    return Description(kind, name, doc, "model" in signature.parameters, parameters, about)


def bind(function: Callable[..., Any], params: Mapping[str, object], *, supply: Mapping[str, object]) -> dict[str, Any]:
    """Return the keyword arguments for `function`: `params` checked and parsed, with those of `supply` it asks for.

    `params` may name keyword-only parameters; a string is parsed by the annotation. `supply` fills parameters that are
    not text, such as `scorer`; what `function` does not ask for is left out.

    Raises:
        ConfigError: an unknown parameter (with the nearest), a value that does not fit, or a required one missing;
            or what the function's own check refuses (`checked_by`).
    """
    signature = inspect.signature(function)
    keywords = {p.name: p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    settable = [name for name in keywords if name not in supply]
    hints = _hints(function)
    label = function.__name__
    bound: dict[str, Any] = {}
    for raw_name, value in params.items():
        name = raw_name.replace("-", "_")
        if name in settable:
            bound[name] = parse(f"{label}: {name}", value, hints[name])
        elif open_ended and name not in keywords and name not in supply:
            bound[name] = value
        else:
            known = ", ".join(settable) or "none"
            raise ConfigError(f"{label} has no parameter {raw_name!r}{nearest(name, settable)} (it takes: {known})")
    positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    bound.update({name: value for name, value in supply.items() if name in keywords or name in positional})
    missing = [name for name, p in keywords.items() if p.default is p.empty and name not in bound]
    if missing:
        wanted = type_text(hints[missing[0]])
        raise ConfigError(f"{label} needs {missing[0]!r} ({wanted}), which was not given")
    if hasattr(function, _CHECK):
        defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not p.empty}
        _check(getattr(function, _CHECK), {**defaults, **bound})
    return bound


def checked_by(check: Callable[..., None]) -> Callable[[Factory], Factory]:
    """Let `check` refuse a factory's arguments, by their names, in `bind` and before the factory's own body."""

    def decorate(factory: Factory) -> Factory:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def checked(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            _check(check, bound.arguments)
            return factory(*args, **kwargs)

        setattr(checked, _CHECK, check)
        return cast("Factory", checked)

    return decorate


def _check(check: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Call `check` with those of `arguments` that it names, with all of them where it takes any."""
    parameters = inspect.signature(check).parameters.values()
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    check(**(arguments if every else {parameter.name: arguments[parameter.name] for parameter in parameters}))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of every parameter.

    Each annotation is resolved by itself: one that exists for type checkers only stays text. A parameter without an
    annotation has the type of its default.
    """
    target = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)
    annotations = inspect.get_annotations(target)
    resolved: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = annotations.get(name, type(parameter.default))
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            resolved[name] = typing.get_type_hints(holder, getattr(target, "__globals__", {}))[name]
        except NameError:
            resolved[name] = annotation
    return resolved


def _argument_docs(doc: str) -> dict[str, str]:
    """Read the `Args:` section of a Google-style docstring: parameter name to its text on one line."""
    found: dict[str, str] = {}
    name, in_section, indent = "", False, 0
    for line in doc.splitlines():
        if line.strip() in ("Args:", "Arguments:"):
            in_section, indent = True, len(line) - len(line.lstrip())
        elif in_section and line.strip():
            depth = len(line) - len(line.lstrip())
            if depth <= indent:
                in_section = False
                continue
            entry = re.match(r"\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
            if entry and depth <= indent + 4:
                name = entry[1]
                found[name] = entry[2].strip()
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _default_text(value: object) -> str:
    """Return a default for reading: dataclasses show only the fields that differ from their own defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [
            f"{f.name}={getattr(value, f.name)!r}"
            for f in dataclasses.fields(value)
            if f.repr and getattr(value, f.name) != f.default
        ]
        return f"{type(value).__name__}({', '.join(given)})"
    return repr(value)
