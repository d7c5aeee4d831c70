"""Accuracy against tokens of every strategy on the packaged model, and what `auto` makes of it.

    python -m benchmarks.frontier --runs runs/frontier --record --problems 400       draws; resumes; hours on one core
    python -m benchmarks.frontier --runs runs/frontier --save benchmarks/results/frontier.json \
        --figure benchmarks/results/frontier.png                                     a minute, without a model

Two pools a problem are recorded once, 64 scored samples and a search of 64 in 16 independent subtrees (DVTS); what
votes, selects or searches less is computed from them exactly (`benchmarks.frontier_points`). The rest is run for real.
The envelope at a number of tokens is the best mixture of any two points. `auto` is spent on each half of the problems
by the plan of the other half, and what that calibration cost is charged to a run of `RUN` problems. Regret is envelope
less auto at equal tokens, paired by problem, with 95 % intervals over problems. A pool that is not complete is used as
far as it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frontier_figure import draw
from benchmarks.frontier_points import Spot, adaptive_half, auto_spots, real_spots, replayed, searched, spread
from evals.calibrate import read_pools
from evals.run import read_run
from evals.statistics import mean_interval, paired_interval
from ttc.cli import main as run_command

N = 64
POOL, TREES, ARMS = "pool", "trees", "arms"
POLICIES = ("particle", "beam", "rebase", "entropic", "puct")
REAL = (
    *(f"tree:n=16,policy={policy}" for policy in POLICIES),
    "direct:temperature=0",
    "confidence:n=16,warmup=4,group=16",
    "first_finished:n=8,m=3",
    "early_exit",
    "budget_forcing:num_waits=1",
    "refine:feedback=scorer",
    "knockout:n=8",
    "aggregate:n=4,k=2,rounds=1",
)
SEED = 2026


def record(runs: Path, problems: int, real: int) -> None:
    """Draw the pool, and run what cannot be replayed on the first `real` problems."""
    common = ["eval", "--baseline", "none", "--temperature", "0.8", "--seed", str(SEED), "--concurrency", "8"]
    arms = [word for arm in REAL for word in ("--strategy", arm)]
    pool, trees = ["--strategy", "best_of_n", "--n", str(N)], ["--strategy", f"tree:n={N},policy=dvts"]
    for name, limit, what in ((POOL, problems, pool), (TREES, real, trees), (ARMS, real, arms)):
        code = run_command([*common, *what, "--limit", str(limit), "--out", str(runs / name)])
        if code != 0:
            raise SystemExit(f"{name}: ttc eval ended with exit code {code}")


def envelope(spots: Sequence[Spot], tokens: float, rows: Sequence[int]) -> list[float]:
    """Right answers of each problem of `rows` under the best mixture of two spots at so many tokens."""
    known = [(spot, float(np.mean(spot.take(rows)))) for spot in spots]
    cheap = [(spot, right) for spot, right in known if spot.tokens <= tokens]
    dear = [(spot, right) for spot, right in known if spot.tokens > tokens]
    best = max(cheap, key=lambda pair: pair[1])
    value, found = best[1], best[0].take(rows)
    for low, right_low in cheap:
        for high, right_high in dear:
            share = (tokens - low.tokens) / (high.tokens - low.tokens)
            if (mixed := (1 - share) * right_low + share * right_high) > value:
                value = mixed
                found = [
                    (1 - share) * a + share * b for a, b in zip(low.take(rows), high.take(rows), strict=True)
                ]
    return list(found)


def regrets(
    spots: Sequence[Spot], auto: Sequence[Spot], rows: Sequence[int], budgets: Sequence[float] = ()
) -> dict[str, Any]:
    """Envelope less auto at the tokens that auto took, or at those of `budgets`, one by one and on the whole."""
    table, sums = [], np.zeros((2, len(rows)))
    for spot, tokens in zip(auto, budgets or [spot.tokens for spot in auto], strict=True):
        best, own = envelope(spots, tokens, rows), spot.take(rows)
        found = paired_interval(own, best, rows, seed=SEED)
        table.append({"budget": spot.label, "tokens": tokens, "auto": float(np.mean(own)), **asdict(found)})
        sums += np.array([best, own]) / len(auto)
    return {
        "problems": len(rows),
        "budgets": table,
        "mean": asdict(paired_interval(list(sums[1]), list(sums[0]), rows, seed=SEED)),
    }


def analyse(runs: Path) -> dict[str, Any]:
    """Everything that the recorded runs show."""
    pools, _ = read_pools(runs / POOL)
    trees, width = read_pools(runs / TREES)
    names, grown = _names(runs / POOL), _names(runs / TREES)
    votes, search = replayed(pools), [spread(spot, grown, names) for spot in searched(trees, width)]
    real = real_spots(runs / ARMS, names)
    samples, subtrees = auto_spots(pools, 1), [spread(spot, grown, names) for spot in auto_spots(trees, width)]
    # A budget of one sample leaves nothing to score nor to decide; one that pays for subtrees is spent on them.
    one = replace(next(spot for spot in votes if spot.strategy == "majority"), strategy="auto, subtrees", kind="auto")
    auto = [one, *subtrees]
    everywhere = list(range(len(names)))
    shared = [at for at in everywhere if all(spot.has(at) for spot in (*search, *real))]
    return {
        "problems": len(names),
        "problems_searched": len(shared),
        "samples": N,
        "spots": [spot.row(_present(spot, everywhere)) for spot in (*votes, *search, *real, *samples, *auto)],
        "regret": regrets([*votes, *search, *real], auto, shared),
        # Where a plan sees nothing more to gain it leaves tokens unspent; here they count as if they were spent.
        "regret_at_budget": regrets([*votes, *search, *real], auto, shared, _granted(auto, search)),
        "regret_of_samples_to_votes": regrets(votes, samples, everywhere),
        "adaptive": adaptive_half(pools),
    }


def _granted(auto: Sequence[Spot], search: Sequence[Spot]) -> list[float]:
    """The tokens of auto's budgets, and what it took where its calibration made that more."""
    known = {spot.label: spot.tokens for spot in search}
    return [max(known.get(spot.label, spot.tokens), spot.tokens) for spot in auto]


def _names(folder: Path) -> list[str]:
    return [record.problem.id for record in read_run(folder).records if record.answer is not None]


def _present(spot: Spot, rows: Sequence[int]) -> dict[str, float]:
    """Accuracy of a spot on the problems that it was run on."""
    known = [at for at in rows if spot.has(at)]
    return asdict(mean_interval(spot.take(known), known, seed=SEED)) | {"problems": len(known)}


def main() -> None:
    """Record, or analyse and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the recorded runs")
    parser.add_argument("--record", action="store_true", help="draw what is missing first")
    parser.add_argument("--problems", type=int, default=400, help="problems of the pool")
    parser.add_argument("--real", type=int, default=100, help="problems of what cannot be replayed")
    parser.add_argument("--save", type=Path, help="where to save the figures")
    parser.add_argument("--figure", type=Path, help="where to draw them")
    args = parser.parse_args()
    if args.record:
        record(args.runs, args.problems, args.real)
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "model": "ttc/nano/teacher, scored by ttc/nano/prm, arithmetic level 4, temperature 0.8",
        "seed": SEED,
        **analyse(args.runs),
    }
    result["cpu_seconds_of_the_analysis"] = round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 1)
    for spot in result["spots"]:
        print(f"{spot['strategy']:32s} {spot['label']:>8s} {spot['tokens']:8.0f} tokens  {100 * spot['value']:5.1f} %")
    for name in ("regret", "regret_at_budget", "regret_of_samples_to_votes"):
        for row in (*result[name]["budgets"], {"budget": "mean", **result[name]["mean"]}):
            points = " to ".join(f"{100 * row[side]:+.1f}" for side in ("low", "high"))
            print(f"{name}, {row['budget']}: {100 * row['value']:+.1f} points ({points})")
    print(f"adaptive on the easy half: {json.dumps(result['adaptive'])}")
    if args.save:
        args.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.figure:
        draw(result, args.figure)


if __name__ == "__main__":
    main()
