"""`figure.png`: the main figure by matplotlib, for slides and papers. Imported only when a report is written.

Same runs, colours, dashes and frontier as the page. Drawn on a figure of its own, so no global state is touched and
no display is needed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from evals.report.chart import kind_name
from evals.report.kit import count, percent
from evals.report.runs import ORACLE_KINDS, Curve, Point, RunSummary, drawn_curves, frontier, headline
from ttc.durable import replaced_file

LEGEND_WIDTH = 44
"""Characters of a line of the legend: a longer one would leave no room for the axes."""
COLOURS = ("#0b62c4", "#c2410c", "#15803d", "#7c3aed", "#0e7490", "#be185d", "#7a6400", "#475569")
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "s")
DASHES: dict[str, Any] = {"best_of_n": (0, (6, 3)), "best_of_k": (0, (6, 3)), "weighted": (0, (2, 2, 6, 2))}


def write_png(path: Path, groups: dict[str, list[RunSummary]]) -> None:
    """Draw one panel per group of runs to `path`; groups without a positive token cost are left out."""
    panels = {name: runs for name, runs in groups.items() if any(run.point.cost("tokens") for run in runs)}
    figure = Figure(figsize=(8.6, 4.9 * max(len(panels), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    for i, runs in enumerate(panels.values(), start=1):
        _panel(figure.add_subplot(len(panels), 1, i), runs)
    with replaced_file(path) as scratch:
        figure.savefig(scratch, dpi=160, format="png")


def _panel(axes: Any, runs: Sequence[RunSummary]) -> None:
    best = frontier(runs, "tokens")
    edge = max((p.cost("tokens") or 1.0) for run in runs for p in _every(run)) * 1.5
    axes.step(
        [*(p.tokens for p in best), edge],
        [*(100 * p.accuracy for p in best), *(100 * p.accuracy for p in best[-1:])],
        where="post", color="#94a3b8", linewidth=6, alpha=0.35, label="frontier",
    )  # fmt: skip
    curves = drawn_curves(runs, "tokens")
    for i, run in enumerate(runs):
        colour = COLOURS[i % len(COLOURS)]
        for number, curve in curves:
            if number == i:
                _curve(axes, curve, colour)
        _own(axes, run, colour, MARKERS[i % len(MARKERS)])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("tokens per problem (log scale)")
    axes.set_ylabel("accuracy, with 95 % interval")
    axes.set_title(headline(runs).replace("; ", ";\n"), fontsize=9, loc="left", parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    kinds = dict.fromkeys(curve.kind for _, curve in curves)
    handles += [Line2D([], [], color="#475569", linestyle=_style(kind)) for kind in kinds]
    axes.legend(
        handles,
        [*names, *map(kind_name, kinds)],
        frameon=False,
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )


def _curve(axes: Any, curve: Curve, colour: str) -> None:
    xs, ys = [p.tokens for p in curve.points], [100 * p.accuracy for p in curve.points]
    axes.errorbar(
        xs, ys, yerr=_errors(curve.points), color=colour, alpha=0.45 if curve.oracle else 0.7,
        linestyle=_style(curve.kind), linewidth=1.3, marker="o", markersize=3, elinewidth=0.8,
    )  # fmt: skip


def _own(axes: Any, run: RunSummary, colour: str, marker: str) -> None:
    if run.point.cost("tokens") is None:
        return
    axes.errorbar(
        [run.point.tokens], [100 * run.point.accuracy], yerr=_errors([run.point]), color=colour, marker=marker,
        markersize=9, capsize=4, elinewidth=1.6, linestyle="none", zorder=5,
        label=textwrap.fill(f"{run.label}: {percent(run.point.accuracy)}", LEGEND_WIDTH),
    )  # fmt: skip


def _style(kind: str) -> Any:
    return ":" if kind in ORACLE_KINDS else DASHES.get(kind, "-")


def _errors(found: Sequence[Point]) -> list[list[float]]:
    low = [100 * max(p.accuracy - (p.accuracy if p.low is None else p.low), 0.0) for p in found]
    high = [100 * max((p.accuracy if p.high is None else p.high) - p.accuracy, 0.0) for p in found]
    return [low, high]


def _every(run: RunSummary) -> list[Point]:
    return [run.point, *(point for curve in run.curves for point in curve.points)]
