"""Accuracy against tokens of every strategy on the packaged model, and what `auto` makes of it.

    python -m benchmarks.frontier --runs runs/frontier --record                      draws; resumes; an hour on one core
    python -m benchmarks.frontier --runs runs/frontier --save benchmarks/results/frontier.json \
        --figure benchmarks/results/frontier.png                                     minutes, without a model

Two pools a problem are recorded once, 64 scored samples and a search of 64 in 16 independent subtrees (DVTS); what
votes, selects or searches less is computed from them exactly (`benchmarks.frontier_points`). The rest is run for real
(`benchmarks.frontier_arms`). The envelope at a number of tokens is the best mixture of any two points. `auto` is spent
on each half of the problems by a plan of the other half, and what that calibration cost is charged to a run of `RUN`
problems; at one sample it is asked at temperature 0, where a plan of one sample is the greedy answer. Regret is
envelope less auto at equal tokens, paired by problem, with 95 % intervals over problems. The best of many points on the
problems that it is judged on flatters the envelope; `regret_to_the_other_halfs_envelope` chooses it on one half and
judges it on the other. A pool that is not complete is used as far as it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.effects.common import stamp
from benchmarks.frontier_arms import GROUPS, Group, real_spots
from benchmarks.frontier_figure import draw
from benchmarks.frontier_points import CALIBRATED, RUN, Spot, adaptive_half, auto_spots, replayed, searched, spread
from evals.calibrate import read_pools
from evals.run import read_run
from evals.statistics import mean_interval, paired_interval

N = 64
POOL, TREES, ARMS = "pool", "trees", "arms"
SEED, GRID = 2026, 60


def record(runs: Path, limits: Mapping[str, int]) -> None:
    """Draw what is missing of the pools, and of what is run for real, for the first problems of the task."""
    pools = (Group(POOL, 0.8, N, (f"best_of_n:n={N}",)), Group(TREES, 0.8, N, (f"tree:n={N},policy=dvts",)))
    places = [(runs / group.name, limits[group.name], group) for group in pools]
    for out, limit, group in (*places, *((runs / ARMS / group.name, limits[ARMS], group) for group in GROUPS)):
        strategies = [word for strategy in group.strategies for word in ("--strategy", strategy)]
        options = {
            "--baseline": "none",
            "--scorer": "prm",
            "--temperature": group.temperature,
            "--seed": SEED,
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
                found = [
                    (1 - share) * a + share * b for a, b in zip(low.take(rows), high.take(rows), strict=True)
                ]
    return list(found)


def of_other_half(spots: Sequence[Spot], tokens: float, rows: Sequence[int]) -> list[float]:
    """The envelope that one half of `rows` tells of, on the other half."""
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
    """Everything that the recorded runs show."""
    pools, _ = read_pools(runs / POOL)
    trees, width = read_pools(runs / TREES)
    names, grown = _names(runs / POOL), _names(runs / TREES)
    votes, search = replayed(pools), [spread(spot, grown, names) for spot in searched(trees, width)]
    real = real_spots(runs / ARMS, names)
    samples, subtrees = auto_spots(pools, 1), [spread(spot, grown, names) for spot in auto_spots(trees, width)]
    auto = [_greedy(real, len(grown)), *subtrees]
    everywhere = list(range(len(names)))
    others = [*votes, *search, *real]
    shared = [at for at in everywhere if all(spot.has(at) for spot in (*search, *real))]
    return {
        "problems": len(names),
        "problems_searched": len(grown),
        "problems_shared": len(shared),
        "samples": N,
        "spots": [spot.row(_present(spot, everywhere)) for spot in (*others, *samples, *auto)],
        "envelope": [
            [tokens, float(np.mean(envelope(others, tokens, shared)))]
            for tokens in np.geomspace(*_reach(others), GRID).tolist()
        ],
        "regret": regrets(others, auto, shared),
        "regret_to_the_other_halfs_envelope": regrets(others, auto, shared, bound=of_other_half),
        # Where a plan sees nothing more to gain it leaves tokens unspent; here they count as if they were spent.
        "regret_at_budget": regrets(others, auto, shared, _granted(auto, search)),
        "regret_of_samples_to_votes": regrets(votes, samples, everywhere),
        "adaptive": adaptive_half(pools),
    }


def _greedy(real: Sequence[Spot], calibrated: int) -> Spot:
    """Auto at one sample: the greedy answer, charged with a plan of one greedy sample of each calibration problem."""
    direct = next(spot for spot in real if spot.strategy == "direct")
    charged = direct.tokens * min(CALIBRATED, calibrated // 2) / RUN
    return replace(direct, strategy="auto, subtrees", label="n=1", kind="auto", tokens=direct.tokens + charged)


def _reach(spots: Sequence[Spot]) -> tuple[float, float]:
    return min(spot.tokens for spot in spots), max(spot.tokens for spot in spots)


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
    parser.add_argument("--problems", type=int, default=300, help="problems of the pool of samples")
    parser.add_argument("--searched", type=int, default=150, help="problems of the pool of searches")
    parser.add_argument("--real", type=int, default=100, help="problems of what cannot be replayed")
    parser.add_argument("--save", type=Path, help="where to save the figures")
    parser.add_argument("--figure", type=Path, help="where to draw them")
    args = parser.parse_args()
    if args.record:
        record(args.runs, {POOL: args.problems, TREES: args.searched, ARMS: args.real})
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
    print(f"adaptive on the easy half: {json.dumps(result['adaptive'])}")
    if args.save:
        args.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.figure:
        draw(result, args.figure)


if __name__ == "__main__":
    main()
