"""The table of what was retained: a row per model, a column per task; see `train.measure.retention`."""

from __future__ import annotations

from collections.abc import Sequence

from evals.report.svg import element, text
from train.measure.retention import Kept

__all__ = ["render_retention", "retention_lines"]

_NOTE = (
    "Sampled accuracy in % of every stage's model on every held-out task. In brackets, against the model before: the "
    "change with its 95 % interval, and the share of problems it wins, ties counting one half."
)


def retention_lines(rows: Sequence[Kept]) -> list[str]:
    """The table in plain text; no line without rows."""
    if not rows:
        return []
    lines = ["retention: sampled accuracy in % (change against the model before, 95 % interval; win rate over it)"]
    for task in _tasks(rows):
        lines.append(f"  {task}")
        lines += [f"    {row.stage:18} {_cell(row)}" for row in rows if row.task == task]
    return lines


def render_retention(rows: Sequence[Kept]) -> str:
    """The table as HTML; empty without rows."""
    if not rows:
        return ""
    tasks = _tasks(rows)
    cells = {(row.stage, row.task): _cell(row) for row in rows}
    head = element("tr", *(element("th", text(title), scope="col") for title in ("after", *tasks)))
    body = [
        element(
            "tr",
            element("th", text(stage), scope="row"),
            *(element("td", text(cells.get((stage, task), ""))) for task in tasks),
        )
        for stage in dict.fromkeys(row.stage for row in rows)
    ]
    table = element("table", element("thead", head), element("tbody", *body))
    card = element("div", table, element("p", text(_NOTE), class_="note"), class_="card scroll")
    return element("section", element("h2", "Retention"), card)


def _tasks(rows: Sequence[Kept]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def _cell(row: Kept) -> str:
    value = f"{100 * row.sampled.value:.1f}"
    if row.change is None or row.wins is None:
        return value
    change = f"{100 * row.change.value:+.1f}, {100 * row.change.low:+.1f} to {100 * row.change.high:+.1f}"
    return f"{value} ({change}; wins {100 * row.wins.value:.1f})"
