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


_T95: Mapping[int, float] = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for a two-sided 95 % interval, by the number of seeds."""


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per stage that several training seeds measured: its gain as a t interval over them, and each gain."""
    gains: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        for stage in row["stages"]:
            metric = next((name for name in TITLES if name in stage.get("metrics", {})), None)
            if metric is not None:
                gain = stage["metrics"][metric]["gain"]
                gains.setdefault((row["recipe"], stage["stage"], TITLES[metric]), []).append(gain)
    yield "| recipe | stage | metric, % | seeds | mean gain (95 % t interval over seeds) | gains |"
    yield "|---|---|---|---|---|---|"
    for names, values in gains.items():
        if len(values) in _T95:
            half = _T95[len(values)] * stdev(values) / len(values) ** 0.5
            mean = fmean(values)
            told = f"{_points(mean)} ({_points(mean - half)} to {_points(mean + half)})"
            yield f"| {' | '.join(names)} | {len(values)} | {told} | {', '.join(map(_points, values))} |"


def _line(metric: str, found: Mapping[str, float]) -> str:
    gain = f"{_points(found['gain'])} ({_points(found['gain_low'])} to {_points(found['gain_high'])})"
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
