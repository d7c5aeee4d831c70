"""Where dataset rows come from: the hub's format through `datasets`, or a file on the disk.

    dataset(Source("gsm8k_test", "openai/gsm8k", "main", "test"), data=None, read=one_row_to_an_item)

`data` is a file of rows (`ROWS`, or a folder of `save_to_disk`) of any name, or a folder. If the folder holds a file
called `gsm8k_test`, that is read; if it holds a copy of the hub repository under `openai/gsm8k`, that copy is loaded by
`datasets`. Otherwise the rows come from the hub itself, unless the source forbids it. Rows of files are as published,
or in the "local" format, which has an `id`, and `problem` for the question.

A training stage names rows in one line, with the columns that hold what it needs (`NamedRows`):

    openai/gsm8k:config=main,split=train,stem=gsm8k_train,prompt=problem|question,completion=solution|answer
    mine.jsonl:prompt=instruction,completion=output

Left out: streaming, revisions other than the newest.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from evals.task import ROWS, Item, Loader, has_rows, sample
from ttc.config.recipes import overrides
from ttc.core import half_character, join_surrogates
from ttc.errors import ConfigError, RecordError, missing_extra
from ttc.records import each_once

_OTHER_MARKS = {";": "';'", "\t": "tabs", "|": "'|'"}
"""Separators other than commas, with their names."""


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset under its two names: the local file's stem and the hub's repository, configuration and split.

    `on_hub` is False for a dataset that is only read from a copy the user has.
    """

    stem: str
    repository: str
    config: str | None
    split: str
    on_hub: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it came from; `local` tells the format."""

    data: Mapping[str, Any]
    where: str
    number: int
    local: bool

    def column(self, name: str, published: str) -> str:
        """Return what a field is called here: `name` in the local format, `published` in the published one."""
        return name if self.local else published

    def id(self, prefix: str, column: str | None = None) -> str:
        """Return the local `id`; for a published row the prefix with this column, or with the row's number from 0."""
        if self.local:
            return self.text("id")
        return f"{prefix}-{self.number - 1 if column is None else self.text(column)}"

    def text(self, name: str, published: str | None = None) -> str:
        """Return a field that must be a non-empty string (numbers are accepted and written out).

        `published` is its name in the published format, where that is another.
        """
        name = self.column(name, published or name)
        value = self.data.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = repr(value)
        if not isinstance(value, str) or not value.strip():
            raise RecordError(f"{self.where}: {name}: expected a non-empty string, got {value!r}")
        return value

    def numeric(self, name: str, published: str | None = None) -> str:
        """`text` that must be a number, without thousands separators and without a final `.0`."""
        name = self.column(name, published or name)
        text = self.text(name).strip().replace(",", "")
        try:
            Fraction(text)
        except (ValueError, ZeroDivisionError) as exc:
            raise RecordError(f"{self.where}: {name}: expected a number, got {text!r}") from exc
        return text.removesuffix(".0")

    def labels(self, **columns: str) -> dict[str, str]:
        """Return the given columns as text under new names, without those that the row does not have."""
        values = {name: self.data.get(column) for name, column in columns.items()}
        return {name: str(value).strip() for name, value in values.items() if value is not None and str(value).strip()}


def dataset(source: Source, data: str | None, read: Callable[[Row], Item | None]) -> Loader:
    """Return the loader of a task whose problems are the rows of `source`; `read` returns None to leave a row out."""

    def load(limit: int | None, seed: int) -> list[Item]:
        return sample([item for row in rows_from(source, data) if (item := read(row)) is not None], limit)

    return load


def rows_from(source: Source, data: str | None) -> Iterator[Row]:
    """Yield the rows of `source`; raises ConfigError when it cannot be found and RecordError for a broken line."""
    if data is None and not source.on_hub:
        raise ConfigError(
            f"{source.repository} is read from a copy only: give the file, --data FILE, or a folder that holds "
            f"{source.stem}.csv or {source.stem}.jsonl(.gz), --data DIR or TTC_DATA"
        )
    if data is None:
        return _hub_rows(source, source.repository)
    folder = Path(data).expanduser()
    names = [folder] if has_rows(folder) else [folder / f"{source.stem}{ending}" for ending in ROWS]
    path = next((path for path in names if has_rows(path)), None)
    if path is not None:
        return (Row(value, where, number, local=_is_local(value)) for value, where, number in rows_of(path))
    if (folder / source.repository).is_dir():
        return _hub_rows(source, str(folder / source.repository))
    place = f"data {data!r}" + (f" (by the environment's {DATA})" if data == os.environ.get(DATA) else "")
    if not folder.exists():
        raise ConfigError(f"{place} does not exist; give a file of rows, or the folder that holds it")
    raise ConfigError(
        f"{place} holds neither {source.stem}.jsonl(.gz), .csv, .json or .parquet nor a copy of the hub "
        f"repository {source.repository}; a file of another name is given itself: --data FILE"
    )


def _is_local(row: Mapping[str, Any]) -> bool:
    """Whether a row of a named data set is in the local format: it has an id, and no question under another name."""
    return "id" in row and ("problem" in row or "question" not in row)


def json_lines(path: Path) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    """Yield (object, "file, line n", n) of a JSON-lines file, plain or gzipped; blank lines are skipped."""
    opener = _opener(path)
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield _object(line, where), where, number
    except UnicodeDecodeError as exc:
        raise _not_utf8(path, opener, exc) from exc
    except (OSError, EOFError, zlib.error) as exc:  # the last two: a gzip file that was cut short
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


def _not_utf8(path: Path, opener: Callable[..., Any], error: UnicodeDecodeError) -> ConfigError:
    """Name the line that is not UTF-8, and the fix."""
    with opener(path, "rb") as file:
        numbers = (number for number, line in enumerate(file, start=1) if not _is_utf8(line))
        number = next(numbers, 1)
    byte = error.object[error.start]
    return ConfigError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def rows_of(path: Path, needs: Sequence[Sequence[str]] = ()) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    """Yield (row, its place, its number) of a file of `ROWS` or a saved folder; empty cells of CSV are left out.

    Each of `needs` is a group of columns: where a CSV file has any of them, every row must fill one.

    Raises:
        ConfigError: the file cannot be read.
        RecordError: a line is no JSON object, or a row of CSV has too many fields, too few, or lacks one of `needs`.
    """
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending in ("csv", "tsv"):
        return _filled_rows(path, needs)
    read = _saved_rows if path.is_dir() else _TABLES.get(ending)
    if read is None:
        return json_lines(path)
    return ((row, f"{path}, row {number}", number) for number, row in enumerate(read(path), start=1))


def _saved_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a folder that `save_to_disk` wrote."""
    try:
        import datasets
    except ImportError as exc:
        raise missing_extra(exc) from exc
    try:
        table = datasets.load_from_disk(str(path))
    except Exception as exc:  # foreign errors of many kinds: cut, no permission, another version
        raise ConfigError(f"{path} cannot be read: {type(exc).__name__}: {exc}") from exc
    if isinstance(table, Mapping):
        names = ", ".join(str(path / name) for name in table)
        raise ConfigError(f"{path} holds several splits; name the folder of one: {names}")
    yield from table


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as exc:
        raise missing_extra(exc) from exc
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches():
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


def _array(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a file that is one JSON array, or an object with one array of them; or JSON lines after all."""
    try:
        with _opener(path)(path, "rt", encoding="utf-8-sig") as file:
            text = file.read()
        value = json.loads(text, object_pairs_hook=each_once)
    except UnicodeDecodeError as exc:
        raise _not_utf8(path, _opener(path), exc) from exc
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    except RecordError as exc:
        raise RecordError(f"{path}: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        if "Extra data" in str(exc):  # one object behind the other, as many files called .json are
            return [row for row, _, _ in json_lines(path)]
        raise RecordError(f"{path}: not JSON ({exc})") from exc
    lists = [part for part in value.values() if isinstance(part, list)] if isinstance(value, dict) else [value]
    rows = lists[0] if len(lists) == 1 else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecordError(f"{path}: expected an array of objects, one a problem; or JSON lines, called .jsonl")
    for number, row in enumerate(rows, start=1) if "\\u" in text else ():
        _refuse_halves(row, f"{path}, row {number}")
    return rows


_TABLES: Mapping[str, Callable[[Path], Iterable[Mapping[str, Any]]]] = {"parquet": _parquet_rows, "json": _array}


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if path.suffix.lower() == ".gz" else open


def _filled_rows(path: Path, needs: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    for row in _csv_rows(path):
        cells = {name: cell for name, cell in row.data.items() if name and cell}
        for names in needs:
            empty = [name for name in names if name in row.data and name not in cells]
            if empty and not cells.keys() & set(names):
                raise RecordError(f"{row.where}: {empty[0]}: the cell is empty")
        yield cells, row.where, row.number


def _csv_rows(path: Path) -> Iterator[Row]:
    mark = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with _opener(path)(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=mark)
            lines = (cells for cells in reader if any(map(str.strip, cells)))  # as spreadsheets end a sheet: ",,"
            names = _csv_names(next(lines, []), path)
            for number, cells in enumerate(lines, start=1):
                where = f"{path}, row {number}"
                yield Row(dict(zip(names, _fitting(cells, names, where), strict=True)), where, number, local=False)
    except UnicodeDecodeError as exc:
        raise _not_utf8(path, _opener(path), exc) from exc
    except csv.Error as exc:
        place = f"{path}, near line {reader.line_num}"
        raise ConfigError(f"{place}: {exc}; is a quotation mark left open?") from exc
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


def _csv_names(cells: list[str], path: Path) -> list[str]:
    """The names of the columns; raises ConfigError where no commas separate them, or one occurs twice."""
    for mark, label in _OTHER_MARKS.items():
        if len(cells) == 1 and mark in cells[0]:
            raise ConfigError(f"{path}: its fields seem to be separated by {label}; save it with commas between them")
    names = [cell.strip() for cell in cells]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: two columns are called {twice!r}; rename one")
    return names


def _fitting(cells: list[str], names: Sequence[str], where: str) -> list[str]:
    """The cells of a row, one for each name; extra ones may be there if they are empty, as spreadsheets write them."""
    num_cells, num_names = len(cells), len(names)
    if any(cells[num_names:]):
        raise RecordError(f"{where}: {num_cells} fields under {num_names} names; quote a value that holds a comma")
    if num_cells < num_names:
        missing = ", ".join(names[num_cells:])
        hint = "; is a quotation mark left open?" if "\n" in cells[-1] else ""
        raise RecordError(f"{where}: {num_cells} of {num_names} fields, without {missing}{hint}")
    return cells[:num_names]


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line, object_pairs_hook=each_once)
    except RecordError as exc:
        raise RecordError(f"{where}: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        if "integer string conversion" in str(exc):
            raise RecordError(f"{where}: a number has too many digits to be read; write it as text, in quotes") from exc
        raise RecordError(f"{where}: not JSON ({exc}); each line is an object of its own") from exc
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected a JSON object, got {type(value).__name__}; give each its own line")
    if "\\u" in line:
        _refuse_halves(value, where)
    return value


def _refuse_halves(row: Mapping[str, Any], where: str) -> None:
    for name, field in row.items():
        if half_character(json.dumps([name, field], ensure_ascii=False)) is not None:
            words = join_surrogates(name)
            raise RecordError(f"{where}: {words}: holds half of a character (\\ud800 to \\udfff): give it whole")


def _hub_rows(source: Source, repository: str) -> Iterator[Row]:
    try:
        import datasets  # takes a second; only the hub's format needs it
    except ImportError as exc:
        raise missing_extra(exc) from exc
    try:
        table = datasets.load_dataset(repository, source.config, split=source.split)
    except Exception as exc:  # foreign errors of many kinds: no network, no such name, broken files
        raise ConfigError(
            f"{source.repository} ({source.split}) cannot be loaded: {type(exc).__name__}: {exc}; "
            "without a network, give a folder with a copy: --data DIR or TTC_DATA"
        ) from exc
    for number, row in enumerate(table, start=1):
        yield Row(row, f"{source.repository} {source.split}, row {number}", number, local=False)


DATA = "TTC_DATA"
"""The variable of the environment that names the folder of local copies."""
_NAMED = re.compile(r"[\w.-]+/[\w.-]+:[a-z_]+=")
_PLACES = ("config", "split", "stem", "limit")
_ENDINGS = "|".join(re.escape(ending) for ending in ROWS)
_FILE = re.compile(rf"(?P<path>.+?(?:{_ENDINGS})):(?P<columns>[a-z_]+=.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Rows of a published dataset, or of a file: at most how many, and the columns that make up a row of ours.

    A column is written as a path (`messages.0.content`), several as `problem|question`, of which the first that a row
    has counts; `mode=off` and `weight=2` are values, not columns. A prompt that is Alpaca's `instruction` takes the
    row's `input` with it.
    """

    source: Source
    columns: Mapping[str, str]
    limit: int | None = None
    path: Path | None = None

    @classmethod
    def of(cls, spec: str) -> NamedRows | None:
        """Read `ID:KEY=VALUE,...` or `FILE:KEY=VALUE,...`; None for a text that is neither.

        Raises:
            ConfigError: no columns are named.
        """
        file = _FILE.fullmatch(spec)
        if file is None and not _NAMED.match(spec):
            return None
        repository, _, rest = spec.partition(":") if file is None else (file["path"], ":", file["columns"])
        options = overrides(re.split(r",(?=[a-z_]+=)", rest), spec)
        stem = options.get("stem") or repository.partition("/")[2].lower()
        limit = options.get("limit")
        if limit is not None and not limit.isdecimal():
            raise ConfigError(f"{spec}: limit must be a number, got {limit!r}")
        places = _PLACES if file is None else ("limit",)
        columns = {name: value for name, value in options.items() if name not in places}
        if not columns.keys() & {"prompt", "messages"}:
            raise ConfigError(f"{spec}: name the column of the prompt (prompt=...) or of the turns (messages=...)")
        source = Source(stem, repository, options.get("config"), options.get("split", "train"))
        path = None if file is None else Path(repository).expanduser()
        return cls(source, columns, None if limit is None else int(limit), path)

    def file(self) -> Path | None:
        """The local file that they are read from; None for the hub, and for a copy of its repository."""
        if self.path is not None:
            return self.path
        folder = os.environ.get(DATA)
        paths = [Path(folder, f"{self.source.stem}{ending}") for ending in ROWS] if folder else []
        return next((path for path in paths if path.is_file()), None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, by our names of fields; raises like `rows_from`, and RecordError for a column that is not there."""
        for number, row in enumerate(self._read()):
            if number == self.limit:
                return
            yield {name: self._value(name, column, row) for name, column in self.columns.items()}

    def _read(self) -> Iterator[Row]:
        if self.path is None:
            return rows_from(self.source, os.environ.get(DATA))
        return (Row(value, where, number, local=False) for value, where, number in rows_of(self.path))

    def _value(self, name: str, column: str, row: Row) -> Any:
        if name in ("mode", "weight"):
            return column if name == "mode" else float(column)
        for path in column.split("|"):
            value = _at(row.data, path.split("."))
            if value is not None:
                alpaca = name == "prompt" and path == "instruction" and "input" not in self.columns.values()
                return with_input(value, row.data.get("input")) if alpaca else value
        raise RecordError(f"{row.where}: no column {column} (known: {', '.join(row.data)})")


def with_input(instruction: Any, more: Any) -> Any:
    """An instruction of Alpaca with the input that it is about on the next line, as others join them; or alone."""
    joins = isinstance(instruction, str) and isinstance(more, str) and more.strip()
    return f"{instruction}\n{more}" if joins else instruction


def _at(value: Any, path: list[str]) -> Any:
    """The value at a path of names and numbers; None where there is none."""
    for name in path:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
