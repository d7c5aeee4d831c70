"""The figure of `benchmarks.frontier`: accuracy against tokens, single answers and samples beside tree searches.

`auto` and the envelope are in both halves, so that each strategy can be compared with them. Between two budgets `auto`
is drawn as their mixture, which is no straight line where tokens are logarithmic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.frontier_table import NAMES

Spots = Sequence[Mapping[str, Any]]

AUTO, ENVELOPE = "auto", "best mixture of all"
ENLARGED = 400, (62, 95)
SAMPLES = {
    "majority": ("#475569", "o"),
    "adaptive": ("#15803d", "o"),
    "best_of_n": ("#0e7490", "o"),
    "best_of_n, weighted": ("#0b62c4", "o"),
    "auto of samples": ("#f59e0b", "o"),
    "confidence": ("#7c3aed", "^"),
    "first_finished": ("#db2777", "v"),
    "knockout": ("#a16207", "s"),
    "aggregate": ("#64748b", "D"),
    "no_think_then_think": ("#0f766e", "P"),
    "direct": ("#111827", "*"),
    "budget_forcing": ("#b91c1c", "X"),
    "early_exit": ("#4d7c0f", "<"),
    "refine": ("#9333ea", ">"),
}
SEARCHES = {
    "tree, dvts": ("#7c3aed", "o"),
    "tree, beam": ("#0b62c4", "s"),
    "tree, rebase": ("#0e7490", "D"),
    "tree, particle": ("#84cc16", "*"),
    "tree, particle, islands of 4": ("#15803d", "^"),
    "tree, particle, of 16": ("#4d7c0f", "<"),
    "tree, entropic": ("#a16207", "v"),
    "tree, gibbs": ("#db2777", "P"),
    "tree, puct": ("#475569", "X"),
}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the saved result to `path`; its ending picks the format."""
    figure = Figure(figsize=(11.0, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    title = f"arithmetic level 4: {result['problems']} problems, {result['problems_sampled']} of them sampled"
    for axes, look, text in ((left, SAMPLES, title), (right, SEARCHES, "tree searches, enlarged")):
        _common(axes, result)
        for name, (colour, marker) in look.items():
            _line(axes, result["spots"], name, color=colour, marker=marker, markersize=5, linewidth=1.3)
        axes.set_title(text, fontsize=9, loc="left")
        axes.set_xlabel("tokens per problem: generated, scored, and auto's calibration")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "ncols": 3, "columnspacing": 1.0}
        axes.legend(frameon=False, fontsize=8, **below)
    right.set_xlim(ENLARGED[0], None)
    right.set_ylim(*ENLARGED[1])
    left.set_ylabel("accuracy")
    figure.savefig(path, dpi=160)


def _common(axes: Axes, result: Mapping[str, Any]) -> None:
    """The axes, the envelope and auto with its interval."""
    tokens, values = zip(*result["envelope"], strict=True)
    axes.plot(tokens, [100 * value for value in values], color="#94a3b8", linewidth=1, linestyle="--", label=ENVELOPE)
    line = sorted((spot for spot in result["spots"] if spot["strategy"] == AUTO), key=lambda spot: spot["tokens"])
    known = [spot["tokens"] for spot in line]
    between = np.geomspace(known[0], known[-1], 200)
    value, low, high = (np.interp(between, known, [100 * spot[s] for spot in line]) for s in ("value", "low", "high"))
    axes.plot(between, value, color="#f97316", linewidth=2.6, label="auto")
    axes.plot(known, [100 * spot["value"] for spot in line], "o", color="#f97316", markersize=5)
    axes.fill_between(between, low, high, color="#f97316", alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Axes, spots: Spots, name: str, **look: Any) -> None:
    """Draw the spots of one name, from few tokens to many."""
    line = sorted((spot for spot in spots if spot["strategy"] == name), key=lambda spot: spot["tokens"])
    xs, ys = [spot["tokens"] for spot in line], [100 * spot["value"] for spot in line]
    axes.plot(xs, ys, label=NAMES.get(name, name.removeprefix("tree, ")), **look)
