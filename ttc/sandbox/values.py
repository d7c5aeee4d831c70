"""Values between a program, its tests and the host as JSON: data only, never objects with behaviour.

Sent are None, booleans, numbers, strings, lists and, with a tag, tuples (with the names of their fields, if any), sets,
dicts, counters, bytes, ranges, iterators (their items, at most a hundred thousand; lazily their first hundred, the rest
by handle), complex numbers, fractions, decimals, dates, built-in types, numpy arrays. An instance of a subclass is sent
as its base type, so that a value never brings its own comparison. Any other object stays where it is, and a number, its
handle, is sent. Objects of classes that both sides have (`Nodes`) are sent as their attributes, beside the value, so
that lists and trees of them may be long and may contain cycles. Left out: other values that contain themselves, and
nesting deeper than two hundred.
"""

from __future__ import annotations

import datetime
import inspect
import itertools
import json
import sys
from collections import Counter, deque, namedtuple
from collections.abc import AsyncIterator, Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

MAX_DEPTH = 200
MAX_ITEMS = 100_000
LAZY_ITEMS = 100
_SPARE = 10
_MOST_FIELDS = 100
_EXACT_INTEGER = 10_000
"""Bits of the largest integer that is written in decimal."""
Keep: TypeAlias = Callable[[object], int]
Fetch: TypeAlias = Callable[[int], object]


class Unsendable(Exception):
    """The value cannot be sent; the message gives the reason."""


class Oversized(Unsendable):
    """The value has too many items, objects or levels to be sent."""


def dump(value: object, keep: Keep, nodes: Nodes | None = None, *, lazy: bool = False) -> bytes:
    """Return `value` as bytes; `keep` returns the handle of an object that is not data; `lazy`: long iterators get one.

    Raises:
        Unsendable: it cannot be sent.
    """
    sender = _Sender(keep, nodes, lazy)
    encoded = _encode(value, sender, 0)
    if not sender.queue:
        return json.dumps(encoded).encode("ascii")
    return json.dumps({"t": "nodes", "v": [encoded, sender.entries()]}).encode("ascii")


def load(data: bytes, fetch: Fetch, nodes: Nodes | None = None) -> Any:
    """Return the value in `data`, which is untrusted; `fetch` returns the object of a handle.

    Raises:
        Unsendable: the bytes are not a value.
    """
    try:
        parsed = json.loads(data)
        reader = _Reader(fetch)
        if nodes is not None and isinstance(parsed, dict) and parsed["t"] == "nodes":
            parsed, entries = parsed["v"]
            reader.objects = {number: nodes.make(name, number) for name, number, _ in entries}
            for _, number, attributes in entries:
                nodes.fill(reader.objects[number], {key: _decode(item, reader, 0) for key, item in attributes.items()})
        return _decode(parsed, reader, 0)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ArithmeticError, AttributeError) as exc:
        raise Unsendable(f"not a value: {type(exc).__name__}") from exc


@dataclass(frozen=True, slots=True)
class ByHandle:
    """An object that stays where it is, though it could be sent as data."""

    value: object


class Nodes:
    """Objects of classes that both sides have, by numbers that both sides know; `first` is 0 here and 1 there."""

    def __init__(self, classes: Mapping[type, str], first: int = 0) -> None:
        self.classes = dict(classes)
        self._numbers, self._objects = itertools.count(first, 2), dict[int, object]()
        self._number_of: dict[int, int] = {}

    def number(self, node: object) -> int:
        """The number of an object; a new one the first time."""
        if id(node) not in self._number_of:
            self._join(next(self._numbers), node)
        return self._number_of[id(node)]

    def make(self, name: str, number: int) -> object:
        """The object with that number; the first time, a new one of the class `name`."""
        if number not in self._objects:
            cls = next(cls for cls, known in self.classes.items() if known == name)
            self._join(int(number), object.__new__(cls))
        return self._objects[number]

    def fill(self, node: object, attributes: Mapping[str, object]) -> None:
        """Set an object's attributes; those that would hide a method are refused."""
        for name, value in attributes.items():
            if name.startswith("__") or callable(getattr(type(node), name, None)):
                raise ValueError(name)
            setattr(node, name, value)

    def _join(self, number: int, node: object) -> None:
        self._objects[number], self._number_of[id(node)] = node, number


@dataclass
class _Sender:
    keep: Keep
    nodes: Nodes | None
    lazy: bool
    nodes_sent: set[int] = field(default_factory=set)
    queue: list[tuple[int, object]] = field(default_factory=list)

    def other(self, value: object) -> Any:
        """An object that is not data: a node by its number, else a handle."""
        if self.nodes is None or type(value) not in self.nodes.classes:
            return {"t": "handle", "v": self.keep(value)}
        number = self.nodes.number(value)
        if number not in self.nodes_sent:
            self.nodes_sent.add(number)
            self.queue.append((number, value))
        return {"t": "node", "v": number}

    def entries(self) -> list[Any]:
        """Class, number and attributes of every reachable node; without recursion."""
        entries: list[Any] = []
        for number, node in self.queue:  # the queue grows while attributes are written
            attributes = {key: _encode(item, self, 1) for key, item in _attributes(node)}
            entries.append([self.nodes.classes[type(node)] if self.nodes else "", number, attributes])
            if len(entries) > MAX_ITEMS:
                raise Oversized(f"more than {MAX_ITEMS} objects")
        return entries


def _attributes(node: object) -> list[tuple[str, object]]:
    slots = [name for cls in type(node).__mro__ for name in getattr(cls, "__slots__", ())]
    own = [(name, getattr(node, name)) for name in slots if name != "__dict__" and hasattr(node, name)]
    return [*own, *getattr(node, "__dict__", {}).items()]


@dataclass
class _Reader:
    fetch: Fetch
    objects: dict[int, object] = field(default_factory=dict)


def _encode(value: object, sender: _Sender, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Oversized(f"nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    if type(value) is ByHandle:
        return {"t": "handle", "v": sender.keep(value.value)}
    for type_, encode in _ENCODERS:
        if isinstance(value, type_):
            return encode(value, sender, depth + 1)
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return {"t": "type", "v": value.__name__}
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _array(value, sender, depth + 1)
    if inspect.iscoroutine(value) or isinstance(value, AsyncIterator):
        tag = "coroutine" if inspect.iscoroutine(value) else "steps"
        return {"t": tag, "v": sender.keep(value)} if sender.lazy else sender.other(value)
    return sender.other(value)


def _array(value: Any, sender: _Sender, depth: int) -> Any:
    """An array as its type and nested lists; a numpy scalar as the built-in number."""
    if not hasattr(value, "shape") or value.shape == ():
        return _encode(value.item(), sender, depth)
    return {"t": "array", "v": [value.dtype.str, list(value.shape), _encode(value.ravel().tolist(), sender, depth)]}


_TYPES: Mapping[str, type] = {
    cls.__name__: cls for cls in (
        int, float, complex, str, bytes, bool, list, tuple, dict, set, frozenset, range, object, type(None),
        ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError, RuntimeError, Exception,
    )
}  # fmt: skip
"""Built-in types that are sent by name."""


def _integer(value: int, _sender: _Sender, _depth: int) -> Any:
    plain = int.__index__(value)
    return plain if int.bit_length(plain) <= _EXACT_INTEGER else {"t": "int", "v": int.__format__(plain, "x")}


def _sequence(tag: str) -> Callable[[Any, _Sender, int], Any]:
    return lambda value, sender, depth: {"t": tag, "v": [_encode(item, sender, depth) for item in value]}


def _iterator(value: Iterator[Any], sender: _Sender, depth: int) -> Any:
    """The items; lazily the first ones, and the handle of the rest."""
    most = LAZY_ITEMS if sender.lazy else MAX_ITEMS
    items = list(itertools.islice(value, most + 1))
    if len(items) > most and not sender.lazy:
        raise Oversized(f"an iterator of more than {MAX_ITEMS} items")
    rest = sender.keep(value) if len(items) > most else None
    return {"t": "iterator", "v": [_encode(item, sender, depth) for item in items], "rest": rest}


def _dict(value: Mapping[Any, Any], sender: _Sender, depth: int) -> Any:
    return {"t": "dict", "v": [[_encode(k, sender, depth), _encode(v, sender, depth)] for k, v in value.items()]}


def _tagged(tag: str, fields: Callable[[Any], Any]) -> Callable[[Any, _Sender, int], Any]:
    return lambda value, _sender, _depth: {"t": tag, "v": fields(value)}


def _tuple(value: tuple[Any, ...], sender: _Sender, depth: int) -> Any:
    names = getattr(type(value), "_fields", ())
    encoded = _sequence("tuple")(value, sender, depth)
    if isinstance(names, tuple) and len(names) == len(encoded["v"]) <= _MOST_FIELDS and all(map(_is_name, names)):
        return {"t": "named", "v": [[str.__str__(name) for name in names], encoded["v"]]} if names else encoded
    return encoded


def _is_name(name: object) -> bool:
    return isinstance(name, str) and str.isidentifier(name)


_VIEWS = (KeysView, ValuesView, ItemsView)
_ENCODERS: tuple[tuple[Any, Callable[[Any, _Sender, int], Any]], ...] = (
    (int, _integer),
    (float, lambda value, _sender, _depth: float.__float__(value)),
    (str, lambda value, _sender, _depth: str.__str__(value)),
    (list, lambda value, sender, depth: [_encode(item, sender, depth) for item in list.__iter__(value)]),
    (tuple, _tuple),
    (Counter, lambda value, sender, depth: {"t": "counter", "v": _dict(value, sender, depth)["v"]}),
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
    (Iterator, _iterator),
)


def _decode(value: Any, reader: _Reader, depth: int) -> Any:
    # a lower limit than for writing, so that a test can put a value into a list and send it back
    if depth > MAX_DEPTH - _SPARE:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_decode(item, reader, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = value["t"], value["v"]
    if tag in _HANDLED:
        return _HANDLED[tag](reader.fetch(int(content)))
    if tag == "node":
        return reader.objects[content]
    if tag == "array":
        return _to_array(content[0], content[1], _decode(content[2], reader, depth + 1))
    if tag in ("dict", "counter"):
        pairs = {_decode(key, reader, depth + 1): _decode(item, reader, depth + 1) for key, item in content}
        return pairs if tag == "dict" else Counter(pairs)
    if tag == "named":
        names, items = content
        return namedtuple("Named", names, rename=True)(*[_decode(item, reader, depth + 1) for item in items])
    if tag in _CONTAINERS:
        return _CONTAINERS[tag]([_decode(item, reader, depth + 1) for item in content])
    if tag == "iterator":
        if len(content) > MAX_ITEMS:
            raise ValueError("too many items")
        items = [_decode(item, reader, depth + 1) for item in content]
        rest: Any = None if value.get("rest") is None else reader.fetch(int(value["rest"]))
        return iter(items) if rest is None else itertools.chain(items, rest.rest())
    return _SCALARS[tag](content)


def _to_array(kind: str, shape: list[int], items: list[Any]) -> Any:
    """An array; a list if numpy is not installed here."""
    numpy = sys.modules.get("numpy")
    return items if numpy is None else numpy.array(items, dtype=numpy.dtype(str(kind))).reshape(shape)


_HANDLED: Mapping[str, Callable[[Any], Any]] = {
    "handle": lambda remote: remote,
    "coroutine": lambda remote: remote.finish(),
    "steps": lambda remote: remote.steps(),
}  # fmt: skip
"""Objects that stay where they are, and how they are used from here."""
_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque, "list": list,
}  # fmt: skip
_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "type": lambda name: _TYPES[name],
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
