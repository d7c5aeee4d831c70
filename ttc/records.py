"""Records on disk: one JSON object per line, appended as each problem ends.

A file of records can be read at any moment and survives any death of its writer: every append is flushed and synced
before the next one starts, and a last line that was torn by a kill is ignored by readers and cut off by the next
writer. What is wrong with a line is a `RecordError` that names file, line and field.

Left out: compression, indexes, migration of older schemas (there is one schema so far).
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import itertools
import json
import math
import os
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypeVar, Union

from ttc.core import Record
from ttc.durable import about, sync_folder
from ttc.errors import ConfigError, RecordError

Decoder = Callable[[Any], Any]
T = TypeVar("T")


class _Misfit(Exception):
    """A value that does not fit its field; the decoders of the values around it add its place."""

    def __init__(self, text: str) -> None:
        self.text, self.where = text, ""

    def within(self, step: str) -> _Misfit:
        """The same error with the path extended by an outer step."""
        self.where = step + self.where
        return self


def decode(kind: type[T], data: Any) -> T:
    """Rebuild a dataclass of type `kind` from what `encode` made of it; raises RecordError naming the field."""
    try:
        return typing.cast(T, _decoder(typing.cast(Any, kind))(data))
    except _Misfit as misfit:
        raise RecordError(f"{misfit.where.removeprefix('.') or 'record'}: {misfit.text}") from None


def encode(value: Any) -> Any:
    """Return a dataclass value (or a container of them) as JSON data, tuples as lists, mappings as objects."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [item if type(item) in _PLAIN else encode(item) for item in value]
    kind: Any = type(value)
    names = _field_names(kind)
    if names is not None:
        items = [(name, getattr(value, name)) for name in names]
    elif isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    else:
        raise RecordError(f"cannot store a {type(value).__name__} in a record: {value!r}")
    return {name: item if type(item) in _PLAIN else encode(item) for name, item in items}


_PLAIN = frozenset({type(None), bool, int, str})
"""What JSON holds as it is."""


@functools.cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


@functools.cache
def _decoder(annotation: Any) -> Decoder:
    """Build the decoder of one type annotation, once."""
    if annotation is Any:
        return lambda value: value
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

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _unlike("an object", value)
        if not decoders:
            decoders.update({name: _decoder(hints[name]) for name in fields})
        if not required <= value.keys() <= decoders.keys():
            for name in value.keys() - decoders.keys():
                raise _Misfit(f"no such field in {kind.__name__}").within(f".{name}")
            raise _Misfit("missing").within(f".{min(required - value.keys())}")
        values, name = {}, ""
        try:
            for name, item in value.items():
                values[name] = decoders[name](item)
        except _Misfit as misfit:
            raise misfit.within(f".{name}") from None
        return kind(**values)

    return decode


def _unlike(wanted: str, value: Any) -> _Misfit:
    return _Misfit(f"expected {wanted}, got {str(value)[:80]!r}")


def _scalar(kind: type, wanted: str) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not kind:  # JSON has no subclasses: true is no whole number
            raise _unlike(wanted, value)
        return value

    return decode


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int and value not in ("inf", "-inf", "nan"):
        raise _unlike("a number", value)
    return float(value)


def _literal(choices: tuple[Any, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        if value not in choices:
            raise _unlike(f"one of {', '.join(map(str, choices))}", value)
        return value

    return decode


def _union(options: tuple[Any, ...]) -> Decoder:
    others = [_decoder(option) for option in options if option is not types.NoneType]

    def decode(value: Any) -> Any:
        if value is None and types.NoneType in options:
            return None
        for decoder in others[:-1]:
            try:
                return decoder(value)
            except _Misfit:  # the next alternative may fit; the last one reports
                continue
        return others[-1](value)

    return decode


def _tuple(items: tuple[Any, ...]) -> Decoder:
    decoders = [_decoder(item) for item in items if item is not Ellipsis]
    open_ended = Ellipsis in items

    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise _unlike("a list", value)
        if not open_ended and len(value) != len(decoders):
            raise _unlike(f"{len(decoders)} items", value)
        values: list[Any] = []
        try:
            for item, decoder in zip(value, itertools.repeat(decoders[0]) if open_ended else decoders, strict=False):
                values.append(decoder(item))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(values)}]") from None
        return tuple(values)

    return decode


def _mapping(items: tuple[Any, ...]) -> Decoder:
    decoder = _decoder(items[1])

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _unlike("an object", value)
        values, key = {}, ""
        try:
            for key, item in value.items():
                values[key] = decoder(item)
        except _Misfit as misfit:
            raise misfit.within(f".{key}") from None
        return values

    return decode


_SCALARS: Mapping[Any, Decoder] = {
    int: _scalar(int, "a whole number"),
    float: _number,
    str: _scalar(str, "a string"),
    bool: _scalar(bool, "true or false"),
    types.NoneType: _scalar(types.NoneType, "null"),
}
_GENERICS: Mapping[Any, Callable[[tuple[Any, ...]], Decoder]] = {
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    tuple: _tuple,
    Mapping: _mapping,
}

SCHEMA = 1


def to_json(record: Record) -> dict[str, Any]:
    """Return `record` as plain JSON data; numbers that JSON lacks become "inf", "-inf" and "nan"."""
    return {"schema": SCHEMA, **encode(record)}


def from_json(data: Any) -> Record:
    """Rebuild a record from `to_json` data; raises RecordError naming the field."""
    if not isinstance(data, dict):
        raise RecordError(f"a record must be a JSON object, got {type(data).__name__}")
    if data.get("schema") != SCHEMA:
        raise RecordError(f"schema: this version reads {SCHEMA}, got {data.get('schema')!r}")
    return decode(Record, {key: value for key, value in data.items() if key != "schema"})


def iterate(path: Path, *, whole: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield (line number, JSON value) of a JSON-lines file; blank lines are skipped.

    A last line without a newline was torn when its writer was killed, and is left out; in a `whole` file, such as one
    written by a person, it counts. Raises RecordError naming file and line where a line is not JSON.
    """
    for number, _, data in _lines(path, whole=whole):
        yield number, data


def _lines(path: Path, *, whole: bool = False, fix: str = "") -> Iterator[tuple[int, int, Any]]:
    """Yield (line number, byte at which the line begins, JSON value); see `iterate`. `fix` ends an error's text."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not whole and not line.endswith(b"\n"):
                return
            if line.strip():
                try:
                    data = json.loads(line, object_pairs_hook=each_once if whole else None)
                except RecordError as exc:
                    raise RecordError(f"{path}, line {number}: {exc}") from exc
                except (ValueError, RecursionError) as exc:
                    raise RecordError(f"{path}, line {number}: not JSON ({exc}){fix}") from exc
                yield number, start, data
            start += len(line)


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these names and values, for JSON written by a person.

    Raises: RecordError: a name occurs twice, so one of its values would be lost.
    """
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise RecordError(f"{max(names, key=names.count)!r} occurs twice in an object; keep one")
    return data


def read(path: Path) -> list[Record]:
    """Read all whole records of `path` in file order; a missing file raises ConfigError."""
    return [record for _, record in scan(path)]


def scan(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield (byte at which its line begins, record) of all whole records of `path`; raises like `read`."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; expected a file of records")
    for number, start, data in _lines(path, fix=_ANEW):
        try:
            yield start, from_json(data)
        except RecordError as exc:
            raise RecordError(f"{path}, line {number}: {exc}") from exc


_ANEW = "; delete this line, and the command that made the run, given again, asks its problem anew"


def read_at(file: BinaryIO, place: int) -> Record:
    """Read the record whose line begins at byte `place`, as returned by `scan` or `RecordFile.append`."""
    file.seek(place)
    return from_json(json.loads(file.readline()))


class LineFile:
    """An append-only file of JSON lines, open for one writer.

    Opening cuts off a torn last line. `write` may be called from any thread. A second writer on the same file is
    refused.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, creating it; raises ConfigError while another process writes to it."""
        self.path = path
        self._lock = threading.Lock()
        is_new = not path.exists()
        self._file: BinaryIO = path.open("a+b")
        try:
            _lock_exclusively(self._file, path)
            if is_new:
                sync_folder(path.parent)
            _cut_torn_line(self._file)
        except BaseException:
            self._file.close()
            raise

    def write(self, data: Mapping[str, Any], *, sync: bool = True) -> int:
        """Write one line whole; return the byte at which it begins.

        `sync` waits until it is on the disk; without it, a power failure may lose it.
        """
        line = json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock, about(self.path):
            self._file.write(line)
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
            return self._file.tell() - len(line)

    def close(self) -> None:
        """Sync everything written to the disk and release the lock for the next writer."""
        with self._lock, about(self.path):
            if not self._file.closed:
                os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        """Return the open file."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


class RecordFile(LineFile):
    """An append-only file of records; `append` returns when the record is on the disk."""

    def append(self, record: Record) -> int:
        """Write one record and wait until it is on the disk; return the byte at which its line begins."""
        return self.write(to_json(record))


def _lock_exclusively(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise ConfigError(f"{path} is being written by another process; wait for it or choose another folder") from exc


def _cut_torn_line(file: BinaryIO) -> None:
    """Truncate after the last newline; a line longer than one block is searched backwards block by block."""
    end = file.seek(0, os.SEEK_END)
    keep = end
    while keep > 0:
        start = max(0, keep - 65536)
        file.seek(start)
        newline = file.read(keep - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        file.truncate(keep)
