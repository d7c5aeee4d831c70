"""Print the Markdown tables of `train/README.md` from what `benchmarks.recipes` saved.

python -m benchmarks.recipe_tables benchmarks/results/recipes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TITLES: Mapping[str, str] = {
    "likelihood": "probability of held-out tokens",
    "likelihood_teacher": "the teacher's",
    "likelihood_prm": "the reward model's",
    "likelihood_student": "the student's",
    "held_out": "held-out accuracy, greedy",
    "held_out_sampled": "held-out accuracy, sampled",
    "ranked": "held-out pairs ranked right",
    "ranked_mean": "held-out pairs ranked right",
    "good": "answers without fault, first and revised",
    "agreement": "judgements the rules agree with",
}


def stages(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per metric of every stage that was measured."""
    yield "| recipe | stage | metric, % | before | after | gain (95 %) | CPU s |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        for stage in row["stages"]:
            name, spent = stage["stage"], row["cpu_seconds"].get(stage["stage"], 0.0)
            for metric, found in stage.get("metrics", {}).items():
                gain = f"{_points(found['gain'])} ({_points(found['gain_low'])} to {_points(found['gain_high'])})"
                values = f"{100 * found['before']:.1f} | {100 * found['after']:.1f} | {gain}"
                yield f"| {row['recipe']} | {name} | {TITLES.get(metric, metric)} | {values} | {spent:.0f} |"


def kept(row: Mapping[str, Any]) -> Iterator[str]:
    """Every model of one recipe on every task: sampled accuracy, and the win rate over the model before."""
    found = {(one["stage"], one["task"]): one for one in row["retention"]}
    tasks = list(dict.fromkeys(task for _, task in found))
    yield f"| {row['recipe']}, after | {' | '.join(tasks)} |"
    yield f"|---|{'---|' * len(tasks)}"
    for stage in dict.fromkeys(stage for stage, _ in found):
        yield f"| {stage} | {' | '.join(_cell(found[stage, task]) for task in tasks)} |"


def _cell(one: Mapping[str, Any]) -> str:
    value = f"{100 * one['sampled']['value']:.1f}"
    return value if one["wins"] is None else f"{value}, wins {100 * one['wins']['value']:.0f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    rows = json.loads(parser.parse_args().file.read_text())["rows"]
    print("\n".join(stages(rows)))
    for row in rows:
        if row["retention"]:
            print()
            print("\n".join(kept(row)))


if __name__ == "__main__":
    main()
