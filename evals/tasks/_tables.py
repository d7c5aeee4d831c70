"""Problems as a table in Python: a list of dictionaries, a data frame of pandas or polars, a Hugging Face dataset.

The rows have the columns of a task file (`evals.tasks.rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from evals.task import CHECKS, Item
from evals.tasks._columns import READ, Columns, read_rows
from evals.tasks._items import items_of, kind_of_rows
from ttc.errors import ConfigError, RecordError


class DataFrame(Protocol):
    """A data frame of pandas or another library with this method; frames of polars and datasets are known, too."""

    def to_dict(self, orient: Any, /) -> Any:
        """The rows as dictionaries, for orient "records"."""
        ...


Problems: TypeAlias = Iterable[Mapping[str, Any]] | DataFrame

_ROWS = (("to_dicts",), ("to_list",), ("to_dict", "records"))
"""The methods by which tables give their rows: polars frames, Hugging Face datasets, pandas frames."""


def items_of_table(problems: Problems, kind: str | None, columns: Columns) -> list[Item]:
    """The rows as items; raises TTCError naming the row and the column that does not fit."""
    listed: Any = next((getattr(problems, way)(*args) for way, *args in _ROWS if hasattr(problems, way)), problems)
    splits = [name for name, part in listed.items() if hasattr(part, "to_list")] if isinstance(listed, Mapping) else []
    if splits:
        raise ConfigError(f"problems: give one split of the dataset, such as dataset[{splits[-1]!r}]")
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise ConfigError(
            f"problems: give a list of dictionaries, a data frame or a dataset, got {type(problems).__name__}; "
            "of a file its rows, such as list(csv.DictReader(open(FILE))), or: ttc eval --task FILE"
        )
    table = list(listed)
    if not table:
        raise ConfigError("problems: there are none")
    for number, row in enumerate(table, start=1):
        if not isinstance(row, Mapping):
            raise ConfigError(f"problems: row {number} is no dictionary but {type(row).__name__}")
    rows = [_cells(row, READ | columns.heads) for row in table]
    if kind is not None and kind not in CHECKS:
        raise ConfigError(f"kind must be one of {', '.join(CHECKS)}, got {kind!r}")
    numbered = [(row, f"row {number}", number) for number, row in enumerate(rows, start=1)]
    try:
        ours, _ = read_rows(numbered, columns, kind)
        items = list(items_of(ours, kind or kind_of_rows([row for row, _, _ in ours]), "row"))
    except RecordError as exc:
        here = (
            "; in Python, columns={'KEY': 'COLUMN'} stands for --set task.KEY=COLUMN"
            if "--set task." in str(exc)
            else ""
        )
        raise RecordError(f"{exc}{here}") from exc
    ids = [item.problem.id for item in items]
    twice = next((name for name in ids if ids.count(name) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise ConfigError(f"problems: two rows have the id {twice!r}")
    return items


def _cells(row: Mapping[str, Any], read: frozenset[str]) -> dict[str, Any]:
    """A row as plain Python values, without the empty cells of a data frame; it must have an answer."""
    cells = {str(name): _native(value) if name in read else value for name, value in row.items()}
    return {name: value for name, value in cells.items() if name in ("answer", "target") or not _blank(value)}


def _native(value: Any) -> Any:
    """Numpy values, as in a data frame that was read from parquet, as plain Python values."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, list | tuple):
        return [_native(part) for part in plain]
    return {name: _native(part) for name, part in plain.items()} if isinstance(plain, Mapping) else plain


def _blank(value: object) -> bool:
    is_missing = type(value).__name__ in ("NAType", "NaTType")  # pandas' own
    return value is None or is_missing or (isinstance(value, float) and math.isnan(value))
