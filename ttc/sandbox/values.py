"""Values between a program, its tests and the host as JSON: data only, never objects with behaviour.

None, booleans, numbers, strings, lists and, under a tag, tuples (with the names of their fields, where they have
some), sets, dicts, counters, bytes, ranges, iterators (their items, at most a hundred thousand), complex numbers,
fractions, decimals, dates. An instance of a subclass travels as its base type, so that a value never brings its own
comparison. What is none of these stays where it is, and a number, its handle, travels. Left out: values that contain
themselves, and nesting deeper than two hundred.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections import Counter, deque, namedtuple
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

MAX_DEPTH = 200
MAX_ITEMS = 100_000
_SPARE = 10
_MOST_FIELDS = 100
_EXACT_INTEGER = 10_000
"""Bits of the largest integer that is written in decimal."""
Keep: TypeAlias = Callable[[object], int]
Fetch: TypeAlias = Callable[[int], object]


class Unsendable(Exception):
    """The value cannot travel; says why."""


def dump(value: object, keep: Keep) -> bytes:
    """Return `value` as bytes; `keep` gives the handle of an object that is not data."""
    return json.dumps(_encode(value, keep, 0)).encode("ascii")


def load(data: bytes, fetch: Fetch) -> Any:
    """Return the value in `data`, which may come from anyone; `fetch` gives what a handle stands for.

    Raises:
        Unsendable: the bytes are no value.
    """
    try:
        return _decode(json.loads(data), fetch, 0)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ArithmeticError) as exc:
        raise Unsendable(f"not a value: {type(exc).__name__}") from exc


def _encode(value: object, keep: Keep, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Unsendable(f"nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    for type_, encode in _ENCODERS:
        if isinstance(value, type_):
            return encode(value, keep, depth + 1)
    return {"t": "handle", "v": keep(value)}


def _integer(value: int, _keep: Keep, _depth: int) -> Any:
    plain = int.__index__(value)
    return plain if int.bit_length(plain) <= _EXACT_INTEGER else {"t": "int", "v": int.__format__(plain, "x")}


def _sequence(tag: str) -> Callable[[Any, Keep, int], Any]:
    def encode(value: Any, keep: Keep, depth: int) -> Any:
        items = list(itertools.islice(value, MAX_ITEMS + 1)) if tag == "iterator" else list(value)
        if tag == "iterator" and len(items) > MAX_ITEMS:
            raise Unsendable(f"an iterator of more than {MAX_ITEMS} items")
        return {"t": tag, "v": [_encode(item, keep, depth) for item in items]}

    return encode


def _dict(value: Mapping[Any, Any], keep: Keep, depth: int) -> Any:
    return {"t": "dict", "v": [[_encode(k, keep, depth), _encode(v, keep, depth)] for k, v in value.items()]}


def _tagged(tag: str, fields: Callable[[Any], Any]) -> Callable[[Any, Keep, int], Any]:
    return lambda value, _keep, _depth: {"t": tag, "v": fields(value)}


def _tuple(value: tuple[Any, ...], keep: Keep, depth: int) -> Any:
    names = getattr(type(value), "_fields", ())
    encoded = _sequence("tuple")(value, keep, depth)
    if isinstance(names, tuple) and len(names) == len(encoded["v"]) <= _MOST_FIELDS and all(map(_is_name, names)):
        return {"t": "named", "v": [[str.__str__(name) for name in names], encoded["v"]]} if names else encoded
    return encoded


def _is_name(name: object) -> bool:
    return isinstance(name, str) and str.isidentifier(name)


_VIEWS = (KeysView, ValuesView, ItemsView)
_ENCODERS: tuple[tuple[Any, Callable[[Any, Keep, int], Any]], ...] = (
    (int, _integer),
    (float, lambda value, _keep, _depth: float.__float__(value)),
    (str, lambda value, _keep, _depth: str.__str__(value)),
    (list, lambda value, keep, depth: [_encode(item, keep, depth) for item in list.__iter__(value)]),
    (tuple, _tuple),
    (Counter, lambda value, keep, depth: {"t": "counter", "v": _dict(value, keep, depth)["v"]}),
    (dict, _dict),
    (set, _sequence("set")),
    (frozenset, _sequence("frozenset")),
    (complex, _tagged("complex", lambda v: [v.real, v.imag])),
    ((bytes, bytearray), _tagged("bytes", lambda v: bytes(v).hex())),
    (range, _tagged("range", lambda v: [v.start, v.stop, v.step])),
    (deque, _sequence("deque")),
    (_VIEWS, _sequence("list")),
    (Fraction, _tagged("fraction", lambda v: [v.numerator, v.denominator])),
    (Decimal, _tagged("decimal", str)),
    (datetime.datetime, _tagged("datetime", lambda v: v.isoformat())),
    (datetime.date, _tagged("date", lambda v: v.isoformat())),
    (datetime.time, _tagged("time", lambda v: v.isoformat())),
    (datetime.timedelta, _tagged("timedelta", lambda v: [v.days, v.seconds, v.microseconds])),
    (Iterator, _sequence("iterator")),
)


def _decode(value: Any, fetch: Fetch, depth: int) -> Any:
    # Less deep than what may be written, so that a test can put a value into a list and send it back.
    if depth > MAX_DEPTH - _SPARE:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_decode(item, fetch, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = value["t"], value["v"]
    if tag == "handle":
        return fetch(int(content))
    if tag == "dict":
        return {_decode(key, fetch, depth + 1): _decode(item, fetch, depth + 1) for key, item in content}
    if tag == "counter":
        return Counter({_decode(key, fetch, depth + 1): _decode(item, fetch, depth + 1) for key, item in content})
    if tag == "named":
        names, items = content
        return namedtuple("Named", names, rename=True)(*[_decode(item, fetch, depth + 1) for item in items])
    if tag in _CONTAINERS:
        if tag == "iterator" and len(content) > MAX_ITEMS:
            raise ValueError("too many items")
        return _CONTAINERS[tag]([_decode(item, fetch, depth + 1) for item in content])
    return _SCALARS[tag](content)


_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque, "list": list, "iterator": iter,
}  # fmt: skip
_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "complex": lambda parts: complex(*parts),
    "bytes": bytes.fromhex,
    "range": lambda parts: range(*parts),
    "fraction": lambda parts: Fraction(*parts),
    "decimal": Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda parts: datetime.timedelta(*parts),
}
