"""Run `auto` itself: calibrated on a few problems, evaluated on others, against a search with about as many tokens.

    python -m benchmarks.auto_fresh --runs runs/fresh --json benchmarks/results/auto_fresh.json     20 minutes, resumes

`benchmarks.frontier` replays plans on recorded pools; here `ttc eval` runs one plan of 50 problems, once with a mean
budget per problem and once with one total for the run, on problems of other seeds. The search is a particle filter of
8, the best of that size on the frontier. Differences are paired by problem; the cost of the calibration is charged to a
run of `RUN` problems. Tokens are those generated and scored.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.frontier_points import CALIBRATED, RUN
from benchmarks.machine import stamp
from evals.numbers.statistics import mean_interval, paired_interval
from evals.numbers.summary import is_correct
from evals.run_folder import read_run
from ttc.allocation.plan import load_plan

SEED, TOKENS = 2026, 1587
"""Seed of the calibration's problems; tokens of 16 plain samples."""
SEARCH = "particle8"


def ttc(*words: object) -> None:
    """Run a command of the toolkit; raises SystemExit if it fails."""
    code = subprocess.run([sys.executable, "-m", "ttc", *map(str, words)], check=False).returncode
    if code != 0:
        raise SystemExit(f"ttc {words[0]} ended with exit code {code}")


def draw(out: Path, seed: int, limit: int, strategy: str, concurrency: int, temperature: float, *more: object) -> None:
    """Evaluate one strategy; an existing run is only read."""
    fixed = ("--baseline", "none", "--scorer", "prm", "--limit", limit, "--temperature", temperature)
    picked = ("--seed", seed, "--problems-seed", seed, "--concurrency", concurrency)
    ttc("eval", *fixed, *picked, "--strategy", strategy, "--out", out, *more)


def record(runs: Path, seeds: Sequence[int], problems: int) -> Path:
    """Calibrate, and run everything on the problems of every seed; returns the plan."""
    plan = runs / "plan.json"
    draw(runs / "greedy", SEED, CALIBRATED, "best_of_n:n=1", CALIBRATED, 0.0)
    draw(runs / "islands", SEED, CALIBRATED, "tree:n=16,policy=particle,islands=4", 8, 0.8)
    ttc("calibrate", runs / "greedy", runs / "islands", "--out", plan)
    for seed in seeds:
        here = runs / str(seed)
        draw(here / "mean", seed, problems, f"auto:plan={plan},tokens={TOKENS}", 16, 0.8)
        total = ("--budget", f"tokens={TOKENS * problems}")
        draw(here / "total", seed, problems, f"auto:plan={plan}", 16, 0.8, *total)
        draw(here / SEARCH, seed, problems, "tree:n=8,policy=particle", 16, 0.8)
    return plan


def outcome(folder: Path) -> tuple[list[float], float]:
    """Correct answers (1 or 0) by problem, and mean tokens."""
    records = sorted(read_run(folder).records, key=lambda record: record.problem.id)
    answers = [record.answer for record in records if record.answer is not None]
    return [float(is_correct(record)) for record in records], sum(a.usage.tokens for a in answers) / len(answers)


def compare(runs: Path, seeds: Sequence[int], charge: float) -> list[dict[str, Any]]:
    """Accuracy of each way, and what auto gains on the search, by seed and over all."""
    rows = []
    for group in (*([seed] for seed in seeds), list(seeds)):
        found = {name: [outcome(runs / str(seed) / name) for seed in group] for name in ("mean", "total", SEARCH)}
        right = {name: [value for values, _ in parts for value in values] for name, parts in found.items()}
        names = range(len(right[SEARCH]))
        for name, parts in found.items():
            paid = 0.0 if name == SEARCH else charge
            row = {"seeds": group, "run": name, "tokens": sum(tokens for _, tokens in parts) / len(parts) + paid}
            row["accuracy"] = asdict(mean_interval(right[name], names, seed=SEED))
            if name != SEARCH:
                row["gain"] = asdict(paired_interval(right[SEARCH], right[name], names, seed=SEED))
            rows.append(row)
    return rows


def main() -> None:
    """Record what is missing, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2027, 2028], help="seeds of the problems")
    parser.add_argument("--problems", type=int, default=600, help="problems of a seed")
    parser.add_argument("--json", type=Path, help="where to save the figures")
    args = parser.parse_args()
    plan = load_plan(str(record(args.runs, args.seeds, args.problems)))
    rows = compare(args.runs, args.seeds, plan.spent / RUN)
    for row in rows:
        gain = ", ".join(f"{100 * value:+.1f}" for value in row.get("gain", {}).values())
        print(f"{row['seeds']} {row['run']:10s} {row['tokens']:6.0f}  {100 * row['accuracy']['value']:.1f} %  {gain}")
    if args.json:
        known = {"calibrated": CALIBRATED, "run": RUN, "problems": args.problems, "calibration_tokens": plan.spent}
        args.json.write_text(json.dumps({**known, **stamp(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
