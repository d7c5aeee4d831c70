"""Text and tables to typed values: how `--set n=16` becomes the integer 16, and a table of a recipe a dataclass.

    parse("n", "16", int | None)                       16
    build(Budget, {"tokens": "2000"})                  Budget(tokens=2000)

One decoder serves the command line, recipes and the server, so that an option reads the same everywhere. A type
annotation is the schema: bool, int, float, str, Path, Literal, `X | None`, other unions (members tried in order),
tuples and lists of these (`a,b` or `["a", "b"]`), and dataclasses, whose fields are named options. Dataclasses of a
union are told apart by a field with a single `Literal` value. Text is read by the annotation, never evaluated.

Ranges are checked before anything is loaded, with one message for every factory. None means that a parameter was not
given; NaN is outside every range.

    at_least("embedded", 1, threads=threads, max_batch=max_batch)
    within("simulated", 0, 1, p=p)
    at_most("confidence", n, "n", warmup=warmup)       warmup must be at most n=4, got 8: lower it or raise n

A mapping is a table with free keys, which its reader checks, and values of one type. Left out: arbitrary classes, which
code supplies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import pathlib
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from ttc.errors import ConfigError

T = TypeVar("T")
Dtype: TypeAlias = Literal["auto", "bfloat16", "float16", "float32", "bf16", "fp16", "fp32"]
"""Precision of a model that runs in this process."""
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
KEY = re.compile(r"\s*[A-Za-z_][\w.-]*\s*=")
"""How a parameter of a spec begins."""

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NONE = ("none", "null", "")
_MAX_SEED = 2**63 - 1
_MAX_THREADS = 1024
"""More than any machine's cores; OpenMP ends the process when the system refuses it a thread."""


def nearest(name: str, names: Sequence[str]) -> str:
    """Return "; did you mean 'x'?" for the closest of `names`, or an empty string when nothing is close."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 problem", "0 problems", "1,200 problems"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which problem 2 comes before problem 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name)]


def why_no_file(path: pathlib.Path) -> str:
    """Return why `path`, which is no file, cannot be read: it "is a folder", or "does not exist"."""
    return "is a folder" if path.is_dir() else "does not exist"


def storage(num_bytes: float) -> str:
    """Return a size in a readable unit: "3.7 MB", "7.20 GB"."""
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 0.9995e9 else f"{num_bytes / 1e6:.3g} MB"


def parse(name: str, value: object, annotation: Any) -> Any:
    """Return `value` as the type `annotation`; `name` is only for the error.

    A string is read as text and a mapping as the fields of a dataclass; any other value must already be of the type (an
    int also serves as a float, a list as a tuple).

    Raises:
        ConfigError: the value does not fit, or the type cannot be written as text.
    """
    if annotation is Any or annotation is object:
        return value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _parse_literal(name, value, arguments)
    if origin is Mapping:
        return _parse_mapping(name, value, arguments)
    if isinstance(value, Mapping) and variants(annotation):
        return build(annotation, value, where=f"{name}.")
    if origin in (Union, types.UnionType):
        return _parse_union(name, value, annotation, arguments)
    if origin in (tuple, list):
        return _parse_sequence(name, value, annotation, origin, arguments)
    if annotation not in _SCALARS:
        if isinstance(annotation, type) and isinstance(value, annotation):
            return value
        if dataclasses.is_dataclass(annotation):
            raise ConfigError(f"{name} cannot be set from text: it is a table [{name}], got {value!r}")
        raise ConfigError(f"{name} cannot be set from text: it is a {type_text(annotation)} and must be given in code")
    written_as, read = _SCALARS[annotation]
    if isinstance(value, written_as) and (bool in written_as or not isinstance(value, bool)):
        with contextlib.suppress(ValueError, KeyError, OverflowError):
            return read(value)
    raise _mismatch(name, value, annotation)


def build(cls: type[T], values: Mapping[str, Any], *, where: str = "") -> T:
    """Return a `cls` (a dataclass, or a union of them) made of `values`; text is parsed by each field's annotation.

    Raises:
        ConfigError: an unknown key (with the nearest), a missing one, or a value of the wrong type.
    """
    kind = variant(variants(cls), values, where)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}

    def unknown(key: str) -> ConfigError:
        hint = nearest(key.replace("-", "_"), list(fields))
        return ConfigError(f"unknown key {where + key!r}{hint} (known: {', '.join(fields)})")

    hints = hints_of(kind)
    arguments = read_named(values, {name: hints[name] for name in fields}, where, unknown)
    for name, field in fields.items():
        if _is_required(field) and name not in arguments:
            raise ConfigError(f"key {where + name!r} is required")
    return typing.cast("T", kind(**arguments))


def read_named(
    values: Mapping[str, object], annotations: Mapping[str, Any], where: str, unknown: Callable[[str], ConfigError]
) -> dict[str, Any]:
    """Return named values (hyphens count as underscores), each parsed by the annotation of its name.

    Raises:
        ConfigError: a value that does not fit, called `where` and its name; or `unknown` of a name without annotation.
    """
    arguments: dict[str, Any] = {}
    for raw_name, value in values.items():
        name = raw_name.replace("-", "_")
        if name not in annotations:
            raise unknown(raw_name)
        arguments[name] = parse(where + name, value, annotations[name])
    return arguments


def variants(annotation: Any) -> tuple[Any, ...]:
    """Return the dataclasses that `annotation` is or offers."""
    members = (annotation, *get_args(annotation))
    return tuple(item for item in members if isinstance(item, type) and dataclasses.is_dataclass(item))


def variant(kinds: Sequence[Any], values: Mapping[str, object], where: str) -> Any:
    """Return the dataclass among `kinds` that `values` are for, by their tag; the first if they have none.

    Raises:
        ConfigError: no kind has this tag.
    """
    tags = {tag: kind for kind in kinds if (tag := tag_of(kind))}
    name = next(iter(tags))[0] if len(tags) > 1 else ""
    if name not in values:
        return kinds[0]
    return tags[name, parse(where + name, values[name], Literal[tuple(value for _, value in tags)])]


@functools.cache
def hints_of(kind: Any) -> Mapping[str, Any]:
    """The types of a dataclass's fields; to evaluate them takes most of the time of reading a table."""
    return typing.get_type_hints(kind)


def tag_of(kind: Any) -> tuple[str, Any] | None:
    """Return the field with a single `Literal` value that identifies a dataclass, with that value; or None."""
    for name, hint in hints_of(kind).items():
        if get_origin(hint) is Literal and len(get_args(hint)) == 1:
            return name, get_args(hint)[0]
    return None


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


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
    names = [str(choice) for choice in choices]
    raise ConfigError(f"{name} must be one of {', '.join(names)}, got {value!r}{nearest(str(value), names)}")


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


def _parse_mapping(name: str, value: object, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """A table with free keys, which its reader checks, and values of one type."""
    if not isinstance(value, Mapping):
        by_text = f" (or, by --set, {name}.KEY=VALUE)" if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be a table [{name}]{by_text}, got {value!r}")
    kind = arguments[1] if arguments else Any
    return {key: parse(f"{name}.{key}", item, kind) for key, item in value.items()}


def _parse_sequence(name: str, value: object, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    kind = arguments[0] if arguments else Any
    if isinstance(value, str):
        items = _items(value, kind)
    elif isinstance(value, (list, tuple)):
        items = list(value)
    else:
        raise _mismatch(name, value, annotation)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(items) != len(arguments):
            raise ConfigError(f"{name} must have {len(arguments)} items, got {len(items)} in {value!r}")
        pairs = enumerate(zip(items, arguments, strict=True))
        return tuple(parse(f"{name}[{i}]", item, own) for i, (item, own) in pairs)
    return origin(parse(f"{name}[{i}]", item, kind) for i, item in enumerate(items))


def _items(text: str, kind: Any) -> list[Any]:
    """The items of a list in one text: a,b or, as in TOML, ["a", "b"]; of texts, [1] and [END] are single items."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            items = list(tomllib.loads(f"items = {text}")["items"])
            if kind is not str or all(isinstance(item, str) for item in items):
                return items
    return list(_split(text)) if text.strip() else []


def _split(text: str) -> list[str]:
    """The items of a comma list; a comma between the options of one item, as in a:x=1,y=2, does not split it."""
    items: list[str] = []
    for part in text.split(","):
        if items and KEY.match(part) and re.search(f":{KEY.pattern}", items[-1]):
            items[-1] += f",{part}"
        else:
            items.append(part.strip())
    return items


_SCALARS: dict[Any, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    bool: ((str, bool), lambda value: _BOOLEANS[str(value).lower()]),
    int: ((str, int), int),
    float: ((str, int, float), float),
    str: ((str,), str),
    pathlib.Path: ((str, pathlib.Path), lambda path: pathlib.Path(path).expanduser()),
}
"""What a scalar may be written as, and how it is read."""


def at_least(owner: str, least: float, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter below `least`."""
    _check(owner, f"at least {least:g}", values, lambda value: value >= least)


def at_most(owner: str, most: float, name: str = "", /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter above `most`, which is the value of parameter `name`, if any."""
    limit, fix = (f"{name}={most:g}", f": lower it or raise {name}") if name else (f"{most:g}", "")
    _check(owner, f"at most {limit}", values, lambda value: value <= most, fix)


def above(owner: str, limit: float, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter not above `limit`."""
    _check(owner, f"> {limit:g}", values, lambda value: value > limit)


def within(owner: str, low: float, high: float, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter outside [low, high]."""
    _check(owner, f"in [{low:g}, {high:g}]", values, lambda value: low <= value <= high)


def finite(owner: str, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter that is NaN or endless."""
    _check(owner, "a finite number", values, math.isfinite)


def check_seed(owner: str, **seeds: int | None) -> None:
    """Refuse a seed that is negative or too large for random generators; raises ConfigError."""
    at_least(owner, 0, **seeds)
    at_most(owner, _MAX_SEED, **seeds)


def check_threads(owner: str, threads: int) -> None:
    """Refuse an impossible number of threads; raises ConfigError."""
    at_least(owner, 1, threads=threads)
    at_most(owner, _MAX_THREADS, threads=threads)


def check_place(owner: str, device: str, threads: int) -> None:
    """Refuse a device that does not exist anywhere, and threads; raises ConfigError."""
    check_threads(owner, threads)
    if not _DEVICE.fullmatch(device):
        raise ConfigError(f"{owner}: device must be auto, cpu or cuda, got {device!r}")


def check_training_place(owner: str, device: str, threads: int) -> None:
    """Like `check_place`, but without `auto`, as a training run records its device; raises ConfigError."""
    check_threads(owner, threads)
    if device == "auto" or not _DEVICE.fullmatch(device):
        raise ConfigError(f"{owner}: device must be cpu or cuda, got {device!r}")


def _check(
    owner: str, rule: str, values: Mapping[str, float | None], holds: Callable[[float], bool], fix: str = ""
) -> None:
    for name, value in values.items():
        if value is not None and not holds(value):
            raise ConfigError(f"{owner}: {name} must be {rule}, got {value}{fix}")
