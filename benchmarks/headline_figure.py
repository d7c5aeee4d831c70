"""The figure of the README: accuracy against tokens for one run of `benchmarks.strategies`.

    python -m benchmarks.headline_figure benchmarks/results/strategies.json --out benchmarks/results

One experiment, one number of problems, four series, each point with its 95 % interval; written as SVG, PNG and PDF.
Cost: a second. Left out: everything else that was measured, which is `benchmarks.frontier_figure`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

FORMATS = "svg", "png", "pdf"
POINTS = (
    ("greedy", "one greedy answer", "#111827", "s"),
    ("tree", "tree search of 16, guided by the reward model", "#c2410c", "D"),
    ("reward model", "the reward model itself, one greedy answer", "#64748b", "^"),
)
"""A lone run: what it is here, what it is called, colour and marker."""
VOTE = "majority vote of 1 to 32 samples", "#0b62c4"


def _runs(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The runs of the search experiment by what they are here."""
    greedy, _, vote, tree, judge = result["search"]["runs"]
    runs = {"greedy": greedy, "vote": vote, "tree": tree, "reward model": judge}
    names = [run["strategy"] for run in runs.values()]
    if names != ["direct", "majority", "tree", "direct"]:
        raise SystemExit(f"these are not the runs of benchmarks.strategies: {names}")
    return runs


def votes(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The points of the vote, from few samples to many."""
    return sorted((point for point in run["curve"] if point["kind"] == "majority"), key=lambda point: int(point["k"]))


def draw(result: Mapping[str, Any]) -> Figure:
    """The figure."""
    runs = _runs(result)
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    curve = votes(runs["vote"])
    tokens = [point["tokens"] for point in curve]
    label, colour = VOTE
    axes.plot(tokens, _percent(curve, "accuracy"), "o-", color=colour, markersize=4, linewidth=1.8, label=label)
    axes.fill_between(tokens, _percent(curve, "low"), _percent(curve, "high"), color=colour, alpha=0.14, linewidth=0)
    for name, text, shade, marker in POINTS:
        run = runs[name]
        (value,), (low,), (high,) = (_percent([run], key) for key in ("accuracy", "low", "high"))
        spread = [[value - low], [high - value]]
        axes.errorbar(
            run["tokens_per_problem"], value, yerr=spread, fmt=marker, color=shade, markersize=8, capsize=4, label=text
        )
    axes.set_xscale("log")
    axes.set_xticks([50, 100, 200, 500, 1000, 2000, 4000])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("tokens a problem, generated and scored")
    axes.set_ylabel("right answers")
    problems = curve_problems(runs)
    axes.set_title(f"arithmetic, {problems:,} held-out problems, 95 % intervals", fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(30, 85)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def curve_problems(runs: Mapping[str, Mapping[str, Any]]) -> int:
    """The one number of problems of all series."""
    counts = {int(run["problems"]) for run in runs.values()}
    if len(counts) != 1:
        raise SystemExit(f"series of different problems do not belong in one figure: {sorted(counts)}")
    return counts.pop()


def _percent(points: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [100 * point[key] for point in points]


def main() -> None:
    """Draw the saved result in every format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    args = parser.parse_args()
    result = json.loads(args.result.read_text(encoding="utf-8"))
    with mpl.rc_context({"svg.hashsalt": "ttc", "svg.fonttype": "path"}):
        figure = draw(result)
        for form in FORMATS:
            metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
            figure.savefig(args.out / f"headline.{form}", dpi=160, metadata=metadata)


if __name__ == "__main__":
    main()
