"""Print the Markdown tables of `train/README.md` from what `benchmarks.recipes` saved.

python -m benchmarks.recipe_tables benchmarks/results/recipes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

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


TUNED_ON = 1
"""The seed whose runs decided steps and rates: named, and left out of what is said over seeds."""
_T95: Mapping[int, float] = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for a two-sided 95 % interval, by the number of seeds."""
_DRAWS = 4_000


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
        if len(gains) not in _T95 or (stage == "1-pretrain" and gains in shown):
            continue
        shared = stage == "1-pretrain" and sum(other[1:] == (stage, title) for other in found) > 1
        shown.add(gains)
        ends = ", ".join(f"{100 * fmean(metric[part] for metric in metrics):.1f}" for part in ("before", "after"))
        low, high = t_interval(gains)
        name = "the base of most" if shared else recipe
        cells = (name, stage, title, ends, _span(fmean(gains), low, high), _bounds(*nested(metrics)))
        yield f"| {' | '.join(cells)} | {', '.join(map(_points, gains))} | {'yes' if low > 0 else '**no**'} |"


def t_interval(gains: Sequence[float]) -> tuple[float, float]:
    """The 95 % t interval of the mean over training seeds."""
    half = _T95[len(gains)] * stdev(gains) / len(gains) ** 0.5
    return fmean(gains) - half, fmean(gains) + half


def nested(metrics: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The 95 % interval of the mean gain when seeds are drawn again, and in each of them its questions.

    Where a stage kept no gain per question, the width of its own interval over them stands for drawing them again.
    """
    rng = np.random.default_rng(0)
    total = np.zeros(_DRAWS)
    for _ in metrics:  # as many seeds as there are, each drawn again with its questions
        again = np.stack([_again(metric, rng) for metric in metrics])  # (seeds, draws)
        total += again[rng.integers(len(metrics), size=_DRAWS), np.arange(_DRAWS)]
    low, high = np.quantile(total / len(metrics), [0.025, 0.975])
    return float(low), float(high)


def _again(metric: Mapping[str, Any], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The gain of one seed, drawn again over its questions: (draws,)."""
    if "gains" not in metric:
        return rng.normal(metric["gain"], (metric["gain_high"] - metric["gain_low"]) / 3.92, _DRAWS)
    gains = np.array(metric["gains"])
    counts = rng.multinomial(len(gains), np.full(len(gains), 1 / len(gains)), _DRAWS)
    means: npt.NDArray[np.float64] = counts @ gains / len(gains)
    return means


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
