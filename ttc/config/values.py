"""Text and TOML values to typed ones: how `--set n=16` becomes the integer 16.

One function, `parse`, serves the command line, recipes and the server, so that a parameter reads the same everywhere.
A type annotation is the schema: bool, int, float, str, Path, Literal, `X | None`, other unions (members tried in
order), tuples and lists of these. Text is read by the annotation, never evaluated.

Left out: mappings and arbitrary classes; such parameters are supplied by code.
"""

from __future__ import annotations

import difflib
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from ttc.errors import ConfigError

__all__ = ["nearest", "parse", "type_text"]

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NONE = ("none", "null", "")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return "; did you mean 'x'?" for the closest of `known`, or an empty string when nothing is close."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def parse(name: str, value: object, annotation: Any) -> Any:
    """Return `value` as `annotation` asks; `name` is for the error only.

    A string is read as text; any other value must already be of the type (an int also serves as a float, a list as a
    tuple).

    Raises:
        ConfigError: the value does not fit, or the type cannot be written as text.
    """
    if annotation is Any or annotation is object:
        return value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _parse_literal(name, value, arguments)
    if origin in (Union, types.UnionType):
        return _parse_union(name, value, annotation, arguments)
    if origin in (tuple, list):
        return _parse_sequence(name, value, annotation, origin, arguments)
    reader = _SCALARS.get(annotation)
    if reader is None:
        if isinstance(annotation, type) and isinstance(value, annotation):
            return value
        raise ConfigError(f"{name} cannot be set from text: it is a {type_text(annotation)} and must be given in code")
    try:
        return reader(value)
    except (ValueError, TypeError, OverflowError):
        raise _mismatch(name, value, annotation) from None


def type_text(annotation: Any) -> str:
    """Return `annotation` as a reader would write it: `int | None`, `"on" | "off"`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(repr(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(member) for member in arguments)
    if annotation is type(None):
        return "None"
    if isinstance(annotation, str):
        return annotation
    if origin is not None:
        inside = ", ".join("..." if member is Ellipsis else type_text(member) for member in arguments)
        return f"{getattr(origin, '__name__', origin)}[{inside}]"
    return str(getattr(annotation, "__name__", annotation))


def _mismatch(name: str, value: object, annotation: Any) -> ConfigError:
    return ConfigError(f"{name} must be {type_text(annotation)}, got {value!r}")


def _parse_literal(name: str, value: object, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if value == choice or (isinstance(value, str) and value == str(choice)):
            return choice
    known = [str(choice) for choice in choices]
    raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}")


def _parse_union(name: str, value: object, annotation: Any, members: tuple[Any, ...]) -> Any:
    if type(None) in members and (value is None or (isinstance(value, str) and value.lower() in _NONE)):
        return None
    failure: ConfigError | None = None
    candidates = [member for member in members if member is not type(None)]
    for member in candidates:
        try:
            return parse(name, value, member)
        except ConfigError as exc:
            failure = exc
    if failure is not None and len(candidates) == 1 and get_origin(candidates[0]) is not None:
        raise failure
    raise _mismatch(name, value, annotation)


def _parse_sequence(name: str, value: object, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(value, str):
        items: list[object] = [part.strip() for part in value.split(",")] if value.strip() else []
    elif isinstance(value, (list, tuple)):
        items = list(value)
    else:
        raise _mismatch(name, value, annotation)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(items) != len(arguments):
            raise ConfigError(f"{name} must have {len(arguments)} items, got {len(items)} in {value!r}")
        pairs = enumerate(zip(items, arguments, strict=True))
        return tuple(parse(f"{name}[{i}]", item, kind) for i, (item, kind) in pairs)
    kind = arguments[0] if arguments else Any
    return origin(parse(f"{name}[{i}]", item, kind) for i, item in enumerate(items))


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    raise ValueError(value)


def _int(value: object) -> int:
    if isinstance(value, str):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(value)


def _float(value: object) -> float:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(value)


def _str(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(value)


def _path(value: object) -> pathlib.Path:
    if isinstance(value, (str, pathlib.Path)):
        return pathlib.Path(value).expanduser()
    raise ValueError(value)


_SCALARS: dict[Any, Callable[[object], Any]] = {bool: _bool, int: _int, float: _float, str: _str, pathlib.Path: _path}
