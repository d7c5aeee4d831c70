"""The Markdown tables of `docs/measured/recipes.md` from the results of `benchmarks.recipes`.

    python -m benchmarks.recipe_tables benchmarks/results/recipes.json [--into docs/measured/recipes.md]

The page has the means over training seeds; the output also has every seed's stages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.over_seeds import T95, TUNED_ON, nested, t_interval
from benchmarks.pages import placed

TITLES: Mapping[str, str] = {
    "held_out_sampled": "held-out accuracy, sampled",
    "ranked": "held-out pairs ranked right",
    "ranked_mean": "held-out pairs ranked right",
    "steps_right": "steps judged right",
    "good": "answers without fault, first and revised",
    "agreement": "judgements the rules agree with",
    "likelihood": "probability of held-out tokens",
    "likelihood_teacher": "probability of held-out tokens, teacher",
    "likelihood_prm": "probability of held-out tokens, reward model",
    "likelihood_student": "probability of held-out tokens, student",
}
"""The metric shown for a stage: the first of these that it measured, or all of the family's."""


def stages(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per stage that was measured; a base that recipes share has one line in all."""
    yield "| recipe | seed | stage | metric, % | before | after | gain (95 %) | CPU s |"
    yield "|---|---|---|---|---|---|---|---|"
    shown: set[str] = set()
    for row in rows:
        for stage in row["stages"]:
            name, metrics = stage["stage"], stage.get("metrics", {})
            bases = [other for other in rows if name == "1-pretrain" and other["seed"] == row["seed"]]
            sharing = [other for other in bases if other["stages"][0].get("metrics", metrics) == metrics]
            spent = max(other["cpu_seconds"].get(name, 0.0) for other in [row, *sharing])
            told = [metric for metric in TITLES if metric in metrics]
            for metric in told if name.endswith("nano") else told[:1]:
                line = f"{row['seed']} | {name} | {_line(metric, metrics[metric])} | {spent:.0f} |"
                if line not in shown:
                    yield f"| {'all, the base' if len(sharing) > 1 else row['recipe']} | {line}"
                if sharing:
                    shown.add(line)


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per stage that several training seeds measured: its gain over them in two intervals, and each gain.

    A t interval over the seeds' gains, and a nested bootstrap: seeds drawn again, and in each its questions. A gain
    whose t interval holds 0, or that a seed lacks, is said to fail.
    """
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    kept = [row for row in rows if row["seed"] != TUNED_ON]
    for row in kept:
        for stage in row["stages"]:
            metric = next((name for name in TITLES if name in stage.get("metrics", {})), None)
            if metric is not None:
                found.setdefault((row["recipe"], stage["stage"], TITLES[metric]), []).append(stage["metrics"][metric])
    yield "| recipe | stage | metric, % | before, after | mean gain: t over seeds | nested bootstrap | gains | holds |"
    yield "|---|---|---|---|---|---|---|---|"
    shown: set[tuple[float, ...]] = set()
    for (recipe, stage, title), metrics in found.items():
        gains = tuple(metric["gain"] for metric in metrics)
        if len(gains) not in T95 or (stage == "1-pretrain" and gains in shown):
            continue
        shared = stage == "1-pretrain" and sum(other[1:] == (stage, title) for other in found) > 1
        shown.add(gains)
        ends = ", ".join(f"{100 * fmean(metric[part] for metric in metrics):.1f}" for part in ("before", "after"))
        low, high = t_interval(gains)
        name = "the base of most" if shared else recipe
        cells = (name, stage, title, ends, _span(fmean(gains), low, high), _bounds(*nested(metrics)))
        yield f"| {' | '.join(cells)} | {', '.join(map(_points, gains))} | {'yes' if low > 0 else '**no**'} |"


def _line(metric: str, found: Mapping[str, Any]) -> str:
    gain = _span(*(found[part] for part in ("gain", "gain_low", "gain_high")))
    return f"{TITLES[metric]} | {100 * found['before']:.1f} | {100 * found['after']:.1f} | {gain}"


def kept(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every model of one recipe on every task: means over its seeds of sampled accuracy, its change and its wins.

    The interval is that of the mean change over seeds (t); wins are over the model before, ties counting one half.
    """
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        for one in row["retention"]:
            cells.setdefault((one["stage"], one["task"]), []).append(one)
    tasks = list(dict.fromkeys(task for _, task in cells))
    yield f"| {rows[0]['recipe']}, after | {' | '.join(tasks)} |"
    yield f"|---|{'---|' * len(tasks)}"
    for stage in dict.fromkeys(stage for stage, _ in cells):
        yield f"| {stage} | {' | '.join(_cell(cells[stage, task]) for task in tasks)} |"


def _cell(seeds: Sequence[Mapping[str, Any]]) -> str:
    value = f"{100 * fmean(one['sampled']['value'] for one in seeds):.1f}"
    if seeds[0]["wins"] is None:
        return value
    changes = [one["change"]["value"] for one in seeds]
    low, high = t_interval(changes) if len(changes) in T95 else (changes[0], changes[0])
    return f"{value} ({_bounds(low, high)}), wins {100 * fmean(one['wins']['value'] for one in seeds):.0f}"


def _span(value: float, low: float, high: float) -> str:
    return f"{_points(value)} ({_bounds(low, high)})"


def _bounds(low: float, high: float) -> str:
    return f"{_points(low)} to {_points(high)}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def retained(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of `kept` for every recipe that measured it."""
    shown = [row for row in rows if row["retention"] and row["seed"] != TUNED_ON]
    names = dict.fromkeys(row["recipe"] for row in shown)
    return "\n\n".join("\n".join(kept([row for row in shown if row["recipe"] == name])) for name in names)


def main() -> None:
    """Print every table, or put those over seeds into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, metavar="PAGE", help="the page whose tables are replaced")
    options = parser.parse_args()
    rows = json.loads(options.file.read_text())["rows"]
    tables = {"recipes": "\n".join(over_seeds(rows)), "retention": retained(rows)}
    if options.into is None:
        print("\n\n".join(["\n".join(stages(rows)), *tables.values()]))
    else:
        options.into.write_text(placed(options.into.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
