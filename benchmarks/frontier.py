"""Accuracy against tokens of every strategy on the packaged model, and of `auto`.

    python -m benchmarks.frontier --runs runs/frontier --record                      draws; resumes; hours on one core
    python -m benchmarks.frontier --runs runs/frontier --save benchmarks/results/frontier.json \
        --figure benchmarks/results/frontier.png                                     minutes, without a model

Pools are recorded once, the greedy answer, 64 scored samples, and searches of 64 in independent parts (DVTS; particle
filters in islands of 4 and of 16); smaller votes, selections and searches are computed from them exactly
(`benchmarks.frontier_points`). The rest is actually run (`benchmarks.frontier_arms`). The envelope at a number of
tokens is the best mixture of any two points measured on all problems. Points measured on fewer problems are not part of
it; their distance below it, on their own problems, is reported (`below`).

`auto` runs on each half of the problems with a plan from the other half, and the cost of that calibration is charged to
a run of `RUN` problems. Regret is the envelope minus `auto` at equal tokens, paired by problem, with 95 % intervals
over problems. Choosing the best of many points on the same problems favours the envelope;
`regret_to_the_other_halfs_envelope` chooses it on one half and judges it on the other. How `auto` is calibrated
(`DEPTH`, and which runs) was chosen on the first `CHOSEN_ON` problems; `regret_of_the_others` leaves them out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frontier_arms import GROUPS, SCREENED, Group, real_spots
from benchmarks.frontier_figure import draw
from benchmarks.frontier_points import SIZES, Spot, adaptive_half, auto_spots, replayed, searched, spread
from benchmarks.machine import stamp
from evals.allocation.calibrate import Pools, read_pools
from evals.numbers.statistics import mean_interval, paired_interval

N = 64
SEED, GRID = 2026, 60
CHOSEN_ON = 160
POOLS = (
    Group("greedy", 0.0, 1, ("best_of_n:n=1",)),
    Group("samples", 0.8, N, (f"best_of_n:n={N}",)),
    Group("dvts", 0.8, N, (f"tree:n={N},policy=dvts",)),
    Group("particles", 0.8, N, (f"tree:n={N},policy=particle,islands={N // 4}",)),
    Group("wide", 0.8, N, (f"tree:n={N},policy=particle,islands={N // 16}",)),
)
AUTO = {"auto": ("greedy", "particles"), "auto of samples": ("greedy", "samples")}
"""The runs that `auto` is calibrated on."""


def record(runs: Path, problems: int, screened: int) -> None:
    """Draw what is missing of the pools, and of what is run for real, for the first problems of the task."""
    places = [
        *((runs / "pools" / group.name, screened if group.name == "samples" else problems, group) for group in POOLS),
        *((runs / "arms" / group.name, problems, group) for group in GROUPS),
        *((runs / "screened" / group.name, screened, group) for group in SCREENED),
    ]
    for out, limit, group in places:
        strategies = [word for strategy in group.strategies for word in ("--strategy", strategy)]
        options = {
            "--baseline": "none",
            "--scorer": "prm",
            "--temperature": group.temperature,
            "--seed": SEED,
            "--problems-seed": SEED,
            "--concurrency": group.concurrency,
            "--limit": limit,
            "--out": out,
        }
        # A process each, so that the memory of one group is given back before the next.
        words = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "ttc", "eval", *strategies, *words]
        if (code := subprocess.run(command, check=False).returncode) != 0:
            raise SystemExit(f"{out}: ttc eval ended with exit code {code}")


def envelope(
    spots: Sequence[Spot], tokens: float, rows: Sequence[int], seen: Sequence[int] | None = None
) -> list[float]:
    """Right answers of each problem of `rows` under the mixture of two spots that is best at so many tokens.

    Which is the best is told by the problems `seen`, or by `rows` themselves.
    """
    known = [(spot, float(np.mean(spot.take(rows if seen is None else seen)))) for spot in spots]
    cheap = [(spot, right) for spot, right in known if spot.tokens <= tokens]
    dear = [(spot, right) for spot, right in known if spot.tokens > tokens]
    best = max(cheap, key=lambda pair: pair[1])
    value, found = best[1], best[0].take(rows)
    for low, right_low in cheap:
        for high, right_high in dear:
            share = (tokens - low.tokens) / (high.tokens - low.tokens)
            if (mixed := (1 - share) * right_low + share * right_high) > value:
                value = mixed
                found = [(1 - share) * a + share * b for a, b in zip(low.take(rows), high.take(rows), strict=True)]
    return list(found)


def of_other_half(spots: Sequence[Spot], tokens: float, rows: Sequence[int]) -> list[float]:
    """The envelope chosen on one half of `rows`, evaluated on the other half."""
    halves, right = (rows[::2], rows[1::2]), dict[int, float]()
    for here, seen in (halves, halves[::-1]):
        right.update(zip(here, envelope(spots, tokens, here, seen), strict=True))
    return [right[at] for at in rows]


def regrets(
    spots: Sequence[Spot],
    auto: Sequence[Spot],
    rows: Sequence[int],
    budgets: Sequence[float] = (),
    bound: Callable[[Sequence[Spot], float, Sequence[int]], list[float]] = envelope,
) -> dict[str, Any]:
    """Envelope less auto at the tokens that auto took, or at those of `budgets`, one by one and on the whole."""
    table, sums = [], np.zeros((2, len(rows)))
    for spot, tokens in zip(auto, budgets or [spot.tokens for spot in auto], strict=True):
        best, own = bound(spots, tokens, rows), spot.take(rows)
        found = paired_interval(own, best, rows, seed=SEED)
        table.append({"budget": spot.label, "tokens": tokens, "auto": float(np.mean(own)), **asdict(found)})
        sums += np.array([best, own]) / len(auto)
    return {
        "problems": len(rows),
        "budgets": table,
        "mean": asdict(paired_interval(list(sums[1]), list(sums[0]), rows, seed=SEED)),
    }


def analyse(runs: Path) -> dict[str, Any]:
    """All results of the recorded runs."""
    pools = {group.name: read_pools(runs / "pools" / group.name) for group in POOLS}
    names = list(pools["greedy"].by_id)
    sampled = pools["samples"]
    votes = _over(replayed(list(sampled.by_id.values())), list(sampled.by_id), names)
    searches = [
        spot
        for name, label in (("dvts", "dvts"), ("particles", "particle, islands of 4"), ("wide", "particle, of 16"))
        for spot in _over(searched(pools[name], f"tree, {label}"), list(pools[name].by_id), names)
    ]
    real = [*real_spots(runs / "arms", names), *real_spots(runs / "screened", names)]
    sample = min(spot.tokens for spot in votes)
    auto, samples = (_auto(pools, name, names, sample) for name in AUTO)
    others = [*votes, *searches, *real]
    rows = [at for at in range(len(names)) if all(spot.has(at) for spot in (*searches, *auto))]
    part = [spot for spot in others if all(spot.has(at) for at in rows)]
    fewer = [spot for spot in others if spot not in part]
    budgets = [max(spot.tokens, size * sample) for spot, size in zip(auto, SIZES, strict=True)]
    drawn = [*votes, *(spot for spot in real if spot.strategy == "direct")]
    voted = [at for at in rows if all(spot.has(at) for spot in (*drawn, *samples))]
    return {
        "problems": len(rows),
        "problems_sampled": len(voted),
        "samples": N,
        "spots": [spot.row(_present(spot)) for spot in (*others, *samples, *auto)],
        "envelope": [
            [tokens, float(np.mean(envelope(part, tokens, rows)))]
            for tokens in np.geomspace(*_reach(part), GRID).tolist()
        ],
        "below": [_below(spot, part) for spot in fewer],
        "regret": regrets(part, auto, rows),
        "regret_to_the_other_halfs_envelope": regrets(part, auto, rows, bound=of_other_half),
        "regret_of_the_others": regrets(part, auto, rows[CHOSEN_ON:]),
        # Where a plan sees nothing more to gain it leaves tokens unspent; here they count as if they were spent.
        "regret_at_budget": regrets(part, auto, rows, budgets),
        "regret_of_samples_to_votes": regrets(drawn, samples, voted),
        "adaptive": adaptive_half(list(sampled.by_id.values())),
    }


def _auto(pools: Mapping[str, Pools], name: str, names: Sequence[str], sample: float) -> list[Spot]:
    """Auto on the problems that all runs of its calibration have."""
    here = [problem for problem in names if all(problem in pools[run].by_id for run in AUTO[name])]
    return _over(auto_spots(name, [pools[run].only(here) for run in AUTO[name]], sample), here, names)


def _over(spots: Sequence[Spot], known: Sequence[str], names: Sequence[str]) -> list[Spot]:
    return [spread(spot, known, names) for spot in spots]


def _below(spot: Spot, part: Sequence[Spot]) -> dict[str, Any]:
    """How far a point that fewer problems have lies below the best mixture of the others, on its problems."""
    rows = [at for at in range(len(spot.right)) if spot.has(at)]
    found = paired_interval(spot.take(rows), envelope(part, spot.tokens, rows), rows, seed=SEED)
    return {"strategy": spot.strategy, "label": spot.label, "problems": len(rows), **asdict(found)}


def _reach(spots: Sequence[Spot]) -> tuple[float, float]:
    return min(spot.tokens for spot in spots), max(spot.tokens for spot in spots)


def _present(spot: Spot) -> dict[str, float]:
    """Accuracy of a spot on the problems that it was run on."""
    known = [at for at in range(len(spot.right)) if spot.has(at)]
    return asdict(mean_interval(spot.take(known), known, seed=SEED)) | {"problems": len(known)}


def main() -> None:
    """Record, or analyse and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the recorded runs")
    parser.add_argument("--record", action="store_true", help="draw what is missing first")
    parser.add_argument("--problems", type=int, default=600, help="problems of the pools and of what may be best")
    parser.add_argument("--screened", type=int, default=300, help="problems of the samples and of what fell behind")
    parser.add_argument("--save", type=Path, help="where to save the figures")
    parser.add_argument("--figure", type=Path, help="where to draw them")
    args = parser.parse_args()
    if args.record:
        record(args.runs, args.problems, args.screened)
    result = {
        "model": "ttc/nano/teacher, scored by ttc/nano/prm, arithmetic level 4, temperature 0.8",
        "seed": SEED,
        **analyse(args.runs),
    }
    result |= {f"{name}_of_the_analysis" if name == "cpu_seconds" else name: at for name, at in stamp().items()}
    for spot in result["spots"]:
        print(f"{spot['strategy']:32s} {spot['label']:>8s} {spot['tokens']:8.0f} tokens  {100 * spot['value']:5.1f} %")
    for name in (name for name in result if name.startswith("regret")):
        for row in (*result[name]["budgets"], {"budget": "mean", **result[name]["mean"]}):
            points = " to ".join(f"{100 * row[side]:+.1f}" for side in ("low", "high"))
            print(f"{name}, {row['budget']}: {100 * row['value']:+.1f} points ({points})")
    for row in result["below"]:
        points = " to ".join(f"{100 * row[side]:+.1f}" for side in ("low", "high"))
        print(f"below: {row['strategy']} {row['label']}, {row['problems']}: {100 * row['value']:+.1f} ({points})")
    print(f"adaptive on the easy half: {json.dumps(result['adaptive'])}")
    if args.save:
        args.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.figure:
        draw(result, args.figure)


if __name__ == "__main__":
    main()
