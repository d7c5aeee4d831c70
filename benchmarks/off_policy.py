"""Off-policy training beside on-policy, at equal updates and at equal processor time.

    python -m benchmarks.off_policy --save benchmarks/results/off_policy.json

The recipe cipher-grpo on five training seeds, the same base per seed, the same rate, four ways to spend rollouts:

    on-policy      a new round of rollouts for every update
    minibatches    eight updates a round, as the recipe has it
    epochs         sixteen updates a round (four passes of four minibatches) on rollouts up to two rounds old, whose
                   ratio between the policy that drew them and the one that learns is corrected (truncated at its cap)
    uncorrected    the same without the correction

Curves: 128 held-out problems, one sampled answer each, against updates and against the CPU seconds of a round
(`benchmarks.beside_trl`: everything that a step does, without held-out measurements). Left out: wall time, which
overlapping rounds shorten and a shared machine lengthens (`benchmarks.async_training`). Twenty minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.beside_trl import cipher_base, facts, staged, step_cost
from benchmarks.over_seeds import SEEDS, t_interval
from train.recipe.recipe import read_recipe

STALE = {"asynchronous": "true", "max_staleness": "2", "minibatches": "4", "epochs": "4"}
WAYS: Mapping[str, Mapping[str, str]] = {
    "on-policy": {"minibatches": "1"},
    "minibatches": {"minibatches": "8"},
    "epochs": {**STALE, "correction": "token"},
    "uncorrected": {**STALE, "correction": "none"},
}
PER_ROUND: Mapping[str, int] = {"on-policy": 1, "minibatches": 8, "epochs": 16, "uncorrected": 16}
"""Updates of a round."""
UPDATES, POINTS = 640, 16
"""Of every curve: its length in updates, and how often it is measured."""
NEVER = 10**6


def curve(way: str, base: Path, out: Path, seed: int, rounds: int, every: int = NEVER) -> list[dict[str, float]]:
    """Run one variant for so many rounds; held-out accuracy, sampled, after every `every` of them."""
    fields = {**WAYS[way], "steps": str(rounds), "eval_every": str(every), "save_every": str(NEVER), "record": "false"}
    fields["held_out_limit"] = "128" if every < NEVER else "1"
    recipe = read_recipe("cipher-grpo", overrides={f"grpo.{name}": value for name, value in fields.items()})
    return [
        {"round": row["step"], "sampled": round(row["held_out_sampled"], 4), "staleness": row.get("staleness", 0.0)}
        for row in staged(recipe.steps[1].stage, base, out, seed)
        if "held_out_sampled" in row and row["step"] % every == 0
    ]


def measured(seed: int, folder: Path, costs: Mapping[str, float]) -> dict[str, Any]:
    """Every way's curve on one seed's base; costs are measured on the first seed."""
    base, found = cipher_base(folder, seed), dict[str, Any]()
    for way, updates in PER_ROUND.items():
        rounds = UPDATES // updates
        points = curve(way, base, folder / way, seed, rounds, max(1, rounds // POINTS))
        cost = costs.get(way) or step_cost(partial(curve, way, base, folder / way, seed), 20)["cpu_s"]
        found[way] = {"cpu_s_a_round": cost, "curve": points}
    return {"seed": seed, "ways": found}


def at_updates(way: str, told: Mapping[str, Any], updates: int) -> float:
    """Accuracy of a curve after so many updates."""
    return float(next(point["sampled"] for point in told["curve"] if point["round"] * PER_ROUND[way] == updates))


def at_seconds(told: Mapping[str, Any], seconds: float) -> float:
    """Accuracy at the last measurement within so many processor seconds."""
    within = [point for point in told["curve"] if point["round"] * told["cpu_s_a_round"] <= seconds]
    return float(within[-1]["sampled"]) if within else float(told["curve"][0]["sampled"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over seeds with t intervals: at half and all of the updates, and in the time of the shortest curve."""
    seconds = min(UPDATES / PER_ROUND[way] * rows[0]["ways"][way]["cpu_s_a_round"] for way in WAYS)
    lines = [
        f"| way | updates a round | CPU s a round | after {UPDATES // 2} updates, % | after {UPDATES} | "
        f"after {seconds:.0f} CPU s, % | CPU s of all updates |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        told = [row["ways"][way] for row in rows]
        values = [[at_updates(way, one, updates) for one in told] for updates in (UPDATES // 2, UPDATES)]
        values.append([at_seconds(one, seconds) for one in told])
        cost = told[0]["cpu_s_a_round"]
        half, whole, timed = (_formatted(value) for value in values)
        spent = f"{cost * UPDATES / PER_ROUND[way]:.0f}"
        lines.append(f"| {way} | {PER_ROUND[way]} | {cost:.3f} | {half} | {whole} | {timed} | {spent} |")
    return "\n".join(lines)


def _formatted(values: Sequence[float]) -> str:
    mean = f"{100 * fmean(values):.1f}"
    if len(values) < 2:
        return mean
    low, high = t_interval(values)
    return f"{mean} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    """Measure every seed, saving after each; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        costs = {way: one["cpu_s_a_round"] for way, one in rows[0]["ways"].items()} if rows else {}
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(measured(seed, Path(scratch), costs))
        print(json.dumps(rows[-1]), flush=True)
        if options.save is not None:
            options.save.write_text(json.dumps({**facts(), "updates": UPDATES, "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
