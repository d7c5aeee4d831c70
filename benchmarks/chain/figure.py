"""The figure of the chain: right answers against tokens per problem, from the saved results of the stages.

    python -m benchmarks.chain.figure --part test --out benchmarks/results/chain

One task, one set of problems, each point with its 95 % interval over them; written as SVG, PNG and PDF. A stage without
saved numbers is left out. Left out: the other prompt form of the public model, and tokens that a scorer reads, which
are in the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.chain.__main__ import KEPT
from benchmarks.chain.claims import Arm, Kept, majority, values
from benchmarks.chain.stages import CAPS
from benchmarks.headline_figure import FORMATS
from evals.numbers.statistics import Interval, mean_interval

CAPPED = ("handover", "thinking capped at 16 to 256 tokens, handed over to the answer", "#0b62c4", "o")
CUT = ("stop", "the same, only cut", "#64748b", "o")
VOTE = ("majority vote of 1 to 32 draws", "#15803d", ".")
STOPPED = ("a vote of at most 32, stopped once it is decided", "#0891b2", "P")
MODELS: Mapping[str, tuple[str, str, str]] = {
    "public": ("SmolLM2-135M-Instruct as published", "#111827", "s"),
    "sft": ("its start on worked searches, greedy", "#c2410c", "D"),
    "grpo": ("after GRPO, greedy", "#7c3aed", "^"),
    "distil-search": ("student of the search, greedy", "#be185d", "v"),
    "distil-teacher": ("student of the GRPO policy, greedy", "#0f766e", "v"),
}
"""An arm of the probe, what it is called, colour and marker."""
SEARCH = ("live search of 16 (the one that was best on dev)", "#b45309", "*")


def draw(kept: Kept, part: str) -> Figure:
    """The figure."""
    models = kept.arms("probe", part)
    names = models["sft"]["problems"]
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for kind, label, colour, marker in (CAPPED, CUT):
        known = kept.arms("curve", part)
        arms = [known[f"{kind} {cap}"] for cap in CAPS if f"{kind} {cap}" in known]
        _line(axes, [_tokens(arm) for arm in arms], [_level(values(arm, names), names) for arm in arms],
              label, colour, marker)  # fmt: skip
    if _is_kept(kept, "pools", part):
        pool, (label, colour, marker) = kept.arms("pools", part)["pool"], VOTE
        most = min(map(len, pool["pool"]))
        sizes = [2**power for power in range(most.bit_length()) if 2**power <= most]
        levels = [_level(majority(pool, size, names), names) for size in sizes]
        _line(axes, [_tokens(pool) * size / most for size in sizes], levels, label, colour, marker)
    if _is_kept(kept, "search-second", part):
        arms = list(kept.arms("search-second", part).values())
        _line(axes, [_tokens(arm) for arm in arms], [_level(values(arm, names), names) for arm in arms], *STOPPED)
    points = [(models[name], *look) for name, look in MODELS.items() if name in models]
    if _is_kept(kept, "search", part) and _is_kept(kept, "search", "dev"):
        points.append((kept.arms("search", part)[kept.chosen()], *SEARCH))
    for arm, label, colour, marker in points:
        level = _level(values(arm, names), names)
        axes.errorbar(
            _tokens(arm), 100 * level.value, yerr=_spread(level), fmt=marker, color=colour, markersize=8, capsize=4,
            label=label,
        )  # fmt: skip
    _dress(axes, len(names))
    return figure


def _line(
    axes: Axes, tokens: Sequence[float], levels: Sequence[Interval], label: str, colour: str, marker: str
) -> None:
    heights, lows, highs = ([100 * getattr(level, end) for level in levels] for end in ("value", "low", "high"))
    axes.plot(tokens, heights, f"{marker}-", color=colour, markersize=4, linewidth=1.8, label=label)
    axes.fill_between(tokens, lows, highs, color=colour, alpha=0.14, linewidth=0)


def _dress(axes: Axes, problems: int) -> None:
    axes.set_xscale("log")
    farthest = axes.get_xlim()[1]
    axes.set_xticks([2**power for power in range(4, 13) if 2**power <= farthest])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("tokens a problem, generated")
    axes.set_ylabel("right answers")
    axes.set_title(f"Countdown, {problems:,} test problems, 95 % intervals", fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(-3, 100)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _tokens(arm: Arm) -> float:
    return fmean(arm["generated"])


def _level(right: Sequence[float], names: Sequence[str]) -> Interval:
    return mean_interval(list(right), list(names), seed=0)


def _spread(level: Interval) -> list[list[float]]:
    return [[100 * (level.value - level.low)], [100 * (level.high - level.value)]]


def _is_kept(kept: Kept, stage: str, part: str) -> bool:
    return (kept.folder / f"{stage}-{part}-{kept.seed}.json").is_file()


def main() -> None:
    """Draw what is kept in every format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["dev", "test"], default="test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    options = parser.parse_args()
    with mpl.rc_context({"svg.hashsalt": "ttc", "svg.fonttype": "path"}):
        figure = draw(Kept(options.kept, options.seed), options.part)
        for form in FORMATS:
            metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
            figure.savefig(options.out / f"chain.{form}", dpi=160, metadata=metadata)


if __name__ == "__main__":
    main()
