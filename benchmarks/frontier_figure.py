"""The figure of `benchmarks.frontier`: accuracy against tokens, lines for what has sizes, markers for runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLOURS = {
    "auto": "#f97316",
    "auto, subtrees": "#c2410c",
    "tree, dvts": "#7c3aed",
    "best_of_n, weighted": "#0b62c4",
    "best_of_n": "#0e7490",
    "majority": "#475569",
    "adaptive": "#15803d",
}
MARKERS = "s^DvPhX*<>pd8H"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the saved result to `path`; its ending picks the format."""
    figure = Figure(figsize=(8.6, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(1, 1, 1)
    spots = result["spots"]
    for name, colour in COLOURS.items():
        line = sorted((spot for spot in spots if spot["strategy"] == name), key=lambda spot: spot["tokens"])
        xs, ys = [spot["tokens"] for spot in line], [100 * spot["value"] for spot in line]
        wide = 2.6 if name.startswith("auto") else 1.4
        axes.plot(xs, ys, color=colour, marker="o", markersize=4, linewidth=wide, label=name)
        if name.startswith("auto"):
            low, high = ([100 * spot[side] for spot in line] for side in ("low", "high"))
            axes.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0)
    runs = sorted({spot["strategy"] for spot in spots if spot["kind"] == "run"})
    for marker, name in zip(MARKERS, runs, strict=False):
        line = sorted(
            (spot for spot in spots if spot["strategy"] == name and spot["kind"] == "run"),
            key=lambda spot: spot["tokens"],
        )
        axes.plot(
            [spot["tokens"] for spot in line],
            [100 * spot["value"] for spot in line],
            marker=marker, color="#7c3aed", linewidth=0.8, alpha=0.8, markersize=6, label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("tokens per problem, generated and scored (log scale); auto pays for its calibration")
    axes.set_ylabel("accuracy")
    axes.set_title(f"arithmetic level 4, {result['problems']} problems, packaged models", fontsize=9, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=160)
