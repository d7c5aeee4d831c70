"""The table of the additional experiment, from its saved results: one model, two tasks of word problems.

    python -m benchmarks.chain.side_table --seed 1

Votes and choices of k draws are exact expectations over the recorded pool; differences are paired by problem, with 95 %
intervals over problems.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.chain.__main__ import KEPT
from benchmarks.chain.claims import percent, values, vote
from evals.numbers.statistics import mean_interval, paired_interval
from evals.numbers.summary import curve_values

TASKS = ("svamp", "gsm8k")
KINDS: Mapping[str, str] = {
    "majority": "vote of {k}",
    "best_of_n": "the best of {k} by the judge",
    "weighted": "vote of {k}, weighted by the judge",
    "pass": "a right one among {k}",
}


def _pooled(pool: Mapping[str, Any], kind: str, k: int, names: Sequence[str]) -> list[float]:
    drawn = [[vote(*candidate) for candidate in one] for one in pool["pool"]]
    known = dict(zip(pool["problems"], curve_values(drawn, kind, k, 0), strict=True))
    return [known.get(name, 0.0) for name in names]


def rows(arms: Mapping[str, Mapping[str, Any]], task: str) -> Iterator[tuple[str, list[float]]]:
    """Each way to answer a task, and 0 to 1 for every problem of it, in the order of the public model's."""
    names = arms[f"{task} public"]["problems"]
    yield "the public model, greedy", values(arms[f"{task} public"], names)
    yield "the start, greedy", values(arms[f"{task} start"], names)
    pool = arms[f"{task} pool"]
    k = min(map(len, pool["pool"]))
    yield "the start, one draw", _pooled(pool, "pass", 1, names)
    for kind, words in KINDS.items():
        yield f"the start, {words.format(k=k)}", _pooled(pool, kind, k, names)


def ranked(pool: Mapping[str, Any]) -> str:
    """What the judge makes of a pool: how sure it ever is, and how often a right answer stands above a wrong one."""
    votes = [vote(*candidate) for one in pool["pool"] for candidate in one]
    right, wrong = ([v.score for v in votes if v.score is not None and v.correct is kind] for kind in (True, False))
    above = fmean((high > low) + (high == low) / 2 for high in right for low in wrong)
    return f"{len(right)} of {len(votes)} right; highest score {max(*right, *wrong):.4f}; right above wrong {above:.2f}"


def main() -> None:
    """Print one table for both tasks, and a line on the judge for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=KEPT)
    options = parser.parse_args()
    arms = json.loads((options.kept / f"side-{options.seed}.json").read_text())["arms"]
    print(
        "| task | answered by | right, % (95 %) | above the start's greedy answer, points (95 %) |\n|---|---|---|---|"
    )
    for task in TASKS:
        names = arms[f"{task} public"]["problems"]
        levels = dict(rows(arms, task))
        start = levels["the start, greedy"]
        for name, level in levels.items():
            gap = paired_interval(start, level, names, seed=0)
            above = "" if level is start else percent(gap, "+")
            print(
                f"| {task}, {len(names)} problems | {name} | {percent(mean_interval(level, names, seed=0))} | {above} |"
            )
    for task in TASKS:
        print(f"{task}: {ranked(arms[f'{task} pool'])}")


if __name__ == "__main__":
    main()
