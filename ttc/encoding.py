"""Dataclasses to plain JSON data and back, by their annotations alone.

The decoder is built from the dataclasses themselves and is strict: an unknown field, a missing one or a value of the
wrong type is a `RecordError` that names the field. Numbers that JSON lacks become "inf", "-inf" and "nan".
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union

from ttc.errors import RecordError

__all__ = ["decode", "encode"]

Decoder = Callable[[Any, str], Any]
T = TypeVar("T")


def decode(kind: type[T], data: Any) -> T:
    """Rebuild a dataclass of type `kind` from what `encode` made of it; raises RecordError naming the field."""
    return typing.cast(T, _decoder(typing.cast(Any, kind))(data, ""))


def encode(value: Any) -> Any:
    """Return a dataclass value (or a container of them) as JSON data, tuples as lists, mappings as objects."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    raise RecordError(f"cannot store a {type(value).__name__} in a record: {value!r}")


@functools.cache
def _decoder(annotation: Any) -> Decoder:
    """Build the decoder of one type annotation, once."""
    if annotation is Any:
        return lambda value, where: value
    if dataclasses.is_dataclass(annotation):
        return _dataclass_decoder(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin = typing.get_origin(annotation)
    if origin not in _GENERICS:
        raise RecordError(f"no decoder for fields of type {annotation!r}")
    return _GENERICS[origin](typing.get_args(annotation))


def _dataclass_decoder(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    required = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    decoders: dict[str, Decoder] = {}  # filled at first use

    def decode(value: Any, where: str) -> Any:
        _expect(isinstance(value, dict), value, "an object", where)
        if not decoders:
            decoders.update({name: _decoder(hints[name]) for name in fields})
        for name in value.keys() - decoders.keys():
            raise RecordError(f"{_at(where, name)}: no such field in {kind.__name__}")
        for name in required - value.keys():
            raise RecordError(f"{_at(where, name)}: missing")
        return kind(**{name: decoders[name](item, _at(where, name)) for name, item in value.items()})

    return decode


def _at(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _expect(ok: bool, value: Any, wanted: str, where: str) -> None:
    if not ok:
        raise RecordError(f"{where or 'record'}: expected {wanted}, got {str(value)[:80]!r}")


def _integer(value: Any, where: str) -> int:
    _expect(isinstance(value, int) and not isinstance(value, bool), value, "a whole number", where)
    return int(value)


def _number(value: Any, where: str) -> float:
    named = value in ("inf", "-inf", "nan")
    _expect(named or (isinstance(value, int | float) and not isinstance(value, bool)), value, "a number", where)
    return float(value)


def _text(value: Any, where: str) -> str:
    _expect(isinstance(value, str), value, "a string", where)
    return str(value)


def _boolean(value: Any, where: str) -> bool:
    _expect(isinstance(value, bool), value, "true or false", where)
    return bool(value)


def _null(value: Any, where: str) -> None:
    _expect(value is None, value, "null", where)


def _literal(choices: tuple[Any, ...]) -> Decoder:
    def decode(value: Any, where: str) -> Any:
        _expect(value in choices, value, f"one of {', '.join(map(str, choices))}", where)
        return value

    return decode


def _union(options: tuple[Any, ...]) -> Decoder:
    others = [_decoder(option) for option in options if option is not types.NoneType]

    def decode(value: Any, where: str) -> Any:
        if value is None and types.NoneType in options:
            return None
        for decoder in others[:-1]:
            try:
                return decoder(value, where)
            except RecordError:  # the next alternative may fit; the last one reports
                continue
        return others[-1](value, where)

    return decode


def _tuple(items: tuple[Any, ...]) -> Decoder:
    decoders = [_decoder(item) for item in items if item is not Ellipsis]
    open_ended = Ellipsis in items

    def decode(value: Any, where: str) -> Any:
        _expect(isinstance(value, list), value, "a list", where)
        if not open_ended:
            _expect(len(value) == len(decoders), value, f"{len(decoders)} items", where)
        used = decoders * len(value) if open_ended else decoders
        return tuple(decoder(item, f"{where}[{i}]") for i, (item, decoder) in enumerate(zip(value, used, strict=True)))

    return decode


def _mapping(items: tuple[Any, ...]) -> Decoder:
    decoder = _decoder(items[1])

    def decode(value: Any, where: str) -> Any:
        _expect(isinstance(value, dict), value, "an object", where)
        return {key: decoder(item, _at(where, key)) for key, item in value.items()}

    return decode


_SCALARS: Mapping[Any, Decoder] = {
    int: _integer,
    float: _number,
    str: _text,
    bool: _boolean,
    types.NoneType: _null,
}
_GENERICS: Mapping[Any, Callable[[tuple[Any, ...]], Decoder]] = {
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    tuple: _tuple,
    Mapping: _mapping,
}
