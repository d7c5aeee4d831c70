"""Tables: the aligned one for stdout, its twin for the page, and `curve.csv` with every point of the figure.

All three print what `summary.json` holds. Columns that no run has a value for are left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evals.report.chart import kind_name, legend_marker, slot
from evals.report.kit import MISSING, count, element, finite, interval, percent, points, quantity, seconds, table, text
from evals.report.runs import RunSummary, groups, read_runs

Column = tuple[str, str, Callable[[RunSummary], str]]
CSV_FIELDS = ("task", "run", "strategy", "kind", "k", "accuracy", "low", "high", "tokens", "flops")


def _covered(run: RunSummary) -> str:
    return percent(run.share("coverage")) if run.point.k > 1 else MISSING


def _regret(run: RunSummary) -> str:
    return points(run.share("selection_regret")).lstrip("+") if run.point.k > 1 else MISSING


COLUMNS: tuple[Column, ...] = (
    ("accuracy", "share of problems answered correctly", lambda r: percent(r.point.accuracy)),
    ("95 %", "bootstrap interval over problems", lambda r: interval(r.point.low, r.point.high)),
    ("tokens", "generated, judged and scored, per problem", lambda r: count(r.point.tokens)),
    ("FLOPs", "per problem, scorer included", lambda r: quantity(r.point.flops)),
    ("seconds", "per problem", lambda r: seconds(finite(r.entry.get("seconds_per_problem")))),
    ("covered", "a right candidate was found, chosen or not (needs the answer key)", _covered),
    ("regret", "covered minus accuracy, points: what choosing better could win", _regret),
    ("cut", "answers cut by length", lambda r: percent(r.share("truncated"))),
    ("no answer", "answers without a final", lambda r: percent(r.share("no_answer"))),
    ("failed", "problems that failed", lambda r: count(finite(r.entry.get("errors")))),
)


def render_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Aligned plain text, one block per task and level, for standard output."""
    blocks = []
    for name, runs in groups(read_runs(summaries)).items():
        columns = _columns(runs)
        head = ["strategy", *(title for title, _, _ in columns)]
        rows = [[run.label, *(show(run) for _, _, show in columns)] for run in runs]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = [_aligned(row, widths) for row in (head, ["─" * width for width in widths], *rows)]
        blocks.append("\n".join([f"{name}, {count(max(run.problems for run in runs))} problems", "", *lines]))
    return "\n\n".join(blocks) + "\n"


def html_table(runs: Sequence[RunSummary]) -> str:
    """The table of one group for the page; each row carries the run's colour and marker."""
    columns = _columns(runs)
    head = [element("th", "strategy", scope="col")]
    head += [element("th", text(title), scope="col", title=note) for title, note, _ in columns]
    best = max(run.point.accuracy for run in runs)
    rows = [
        element(
            "tr",
            element("th", legend_marker(slot(i)), text(run.label), scope="row"),
            *(element("td", text(show(run)), data_label=title) for title, _, show in columns),
            class_="best" if run.point.accuracy == best else None,
        )
        for i, run in enumerate(runs)
    ]
    return _scrolling(head, rows, "summary")


def curve_table(runs: Sequence[RunSummary]) -> str:
    """Every point of the figure as a table: the same numbers for those who cannot see it."""
    titles = ("run", "chosen by", "k", "accuracy", "95 %", "tokens", "FLOPs")
    rows = [
        element("tr", *(element("td", text(value)) for value in _curve_cells(run.label, kind, point)))
        for run in runs
        for kind, point in _points(run)
    ]
    return _scrolling([element("th", title, scope="col") for title in titles], rows, "plain")


def difficulty_table(runs: Sequence[RunSummary]) -> str:
    """Accuracy per difficulty, where the task tells difficulties apart; empty markup otherwise."""
    parts = {run.label: run.entry.get("by_difficulty") or {} for run in runs}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    if not names:
        return ""
    head = [element("th", title, scope="col") for title in ["strategy", *map(text, names)]]
    rows = [
        element(
            "tr",
            element("th", legend_marker(slot(i)), text(run.label), scope="row"),
            *(element("td", *_rate(parts[run.label].get(name))) for name in names),
        )
        for i, run in enumerate(runs)
    ]
    return _scrolling(head, rows, "summary")


def _rate(found: Mapping[str, Any] | None) -> list[str]:
    if not found:
        return [MISSING]
    bounds = interval(finite(found.get("low")), finite(found.get("high")))
    return [text(percent(finite(found.get("accuracy")))), element("small", f" {bounds}")]


def curve_csv(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Every point of the figure as CSV; kind `run` is a run's own point, the others are sub-sampled from its pool."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for run in read_runs(summaries):
        for kind, p in _points(run):
            name = "run" if kind is None else kind
            writer.writerow(
                [run.group, run.label, run.strategy, name, p.k, p.accuracy, p.low, p.high, p.tokens, p.flops]
            )
    return out.getvalue()


def _points(run: RunSummary) -> list[tuple[str | None, Any]]:
    return [(None, run.point), *((curve.kind, point) for curve in run.curves for point in curve.points)]


def _curve_cells(label: str, kind: str | None, point: Any) -> list[str]:
    chooser = "the strategy" if kind is None else kind_name(kind)
    bounds = interval(point.low, point.high)
    return [label, chooser, str(point.k), percent(point.accuracy), bounds, count(point.tokens), quantity(point.flops)]


def _columns(runs: Sequence[RunSummary]) -> list[Column]:
    return [column for column in COLUMNS if any(column[2](run) != MISSING for run in runs)]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def _scrolling(head: Sequence[str], rows: Sequence[str], style: str) -> str:
    return element("div", table(head, rows, style), class_="scroll")
