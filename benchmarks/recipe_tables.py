"""Print the Markdown tables of `train/README.md` from what `benchmarks.recipes` saved.

python -m benchmarks.recipe_tables benchmarks/results/recipes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.over_seeds import T95, TUNED_ON, nested, t_interval

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
"""What a stage is shown by: the first of these that it measured, or all of the family's."""


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


def kept(row: Mapping[str, Any]) -> Iterator[str]:
    """Every model of one recipe on every task: sampled accuracy, its change and the win rate over the model before."""
    found = {(one["stage"], one["task"]): one for one in row["retention"]}
    tasks = list(dict.fromkeys(task for _, task in found))
    yield f"| {row['recipe']}, seed {row['seed']}, after | {' | '.join(tasks)} |"
    yield f"|---|{'---|' * len(tasks)}"
    for stage in dict.fromkeys(stage for stage, _ in found):
        yield f"| {stage} | {' | '.join(_cell(found[stage, task]) for task in tasks)} |"


def _cell(one: Mapping[str, Any]) -> str:
    value = f"{100 * one['sampled']['value']:.1f}"
    if one["wins"] is None:
        return value
    change = f"{_points(one['change']['low'])} to {_points(one['change']['high'])}"
    return f"{value} ({change}), wins {100 * one['wins']['value']:.0f}"


def _span(value: float, low: float, high: float) -> str:
    return f"{_points(value)} ({_bounds(low, high)})"


def _bounds(low: float, high: float) -> str:
    return f"{_points(low)} to {_points(high)}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    rows = json.loads(parser.parse_args().file.read_text())["rows"]
    print("\n".join([*stages(rows), "", *over_seeds(rows)]))
    for row in rows:
        if row["retention"]:
            print()
            print("\n".join(kept(row)))


if __name__ == "__main__":
    main()
