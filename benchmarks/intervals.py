"""How often the interval of `ttc compare` covers the truth, and whether it ever contradicts its p-value.

    python -m benchmarks.intervals [--rounds 400] [--seed 4] [--save FILE]

Two runs are simulated on problems whose chances of a right answer are known: `coins` (some problems are coins for
both), `swaps` (some are surely won, as many surely lost), `gains` (some surely won), `moved` (some solved by 3 draws of
10, then by 7), and `rare`, the case that the method leaves out: coins, and one cluster in twenty that loses everything.
`differ` is the share of problems on which two draws differ. About 20 minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evals.numbers.statistics import paired_test

Chances: TypeAlias = npt.NDArray[np.float64]
Case: TypeAlias = Callable[[np.random.Generator, int, float], tuple[Chances, Chances, float]]
"""(random numbers, clusters, share that differs) -> chances of a right answer of each run, and the true difference."""

PROBLEMS, DIFFER = (30, 100, 400), (0.02, 0.1, 0.4)
SHAPES = ((1, 1), (3, 1), (8, 1), (1, 5), (3, 5))
"""Seeds, and problems of a cluster."""
RARE = 0.05


def _sure(rng: np.random.Generator, num: int) -> Chances:
    return np.where(rng.random(num) < 0.5, 1.0, 0.0)


def _coins(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    chances = np.where(rng.random(num) < 2 * differ, 0.5, _sure(rng, num))
    return chances, chances, 0.0


def _swaps(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    first = _sure(rng, num)
    return first, np.where(rng.random(num) < differ, 1 - first, first), 0.0


def _gains(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    won, sure = rng.random(num) < differ, _sure(rng, num)
    return np.where(won, 0.0, sure), np.where(won, 1.0, sure), differ


def _moved(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    share = differ / 0.58
    moved, sure = rng.random(num) < share, _sure(rng, num)
    return np.where(moved, 0.3, sure), np.where(moved, 0.7, sure), 0.4 * share


def _rare(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    lost, (chances, _, _) = rng.random(num) < RARE, _coins(rng, num, differ)
    return np.where(lost, 1.0, chances), np.where(lost, 0.0, chances), -RARE


CASES: Mapping[str, Case] = MappingProxyType(
    {"coins": _coins, "swaps": _swaps, "gains": _gains, "moved": _moved, "rare": _rare}
)


def measure(case: str, num: int, seeds: int, per: int, differ: float, rounds: int, seed: int) -> dict[str, Any]:
    """Coverage, power and contradictions of one cell."""
    rng = np.random.default_rng([seed, num, seeds, per, round(100 * differ)])
    clusters = np.arange(num // per).repeat(per)
    covered = rejected = contradictions = 0
    for _ in range(rounds):
        first, second, truth = CASES[case](rng, num // per, differ)
        shares = [rng.binomial(seeds, chances.repeat(per)) / seeds for chances in (first, second)]
        tested = paired_test(shares[0].tolist(), shares[1].tolist(), clusters.tolist(), pairs=num * seeds)
        low, high = tested.interval.low, tested.interval.high
        covered += low <= truth <= high
        rejected += tested.p_value < 0.05
        contradictions += (tested.p_value < 0.05) == (low <= 0 <= high)
    cell = {"case": case, "problems": num, "seeds": seeds, "cluster": per, "differ": differ}
    return {**cell, "covered": covered / rounds, "p below 0.05": rejected / rounds, "contradictions": contradictions}


def main() -> None:
    """Print every cell, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="simulated comparisons of each cell")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--save", type=Path, help="where the numbers go")
    args = parser.parse_args()
    cells = []
    for case, num, (seeds, per), differ in itertools.product(CASES, PROBLEMS, SHAPES, DIFFER):
        cells.append(measure(case, num, seeds, per, differ, args.rounds, args.seed))
        print(*cells[-1].values(), flush=True)
    if args.save:
        rows = ",\n".join(map(json.dumps, cells))
        args.save.write_text(
            f'{{"rounds": {args.rounds}, "seed": {args.seed}, "cells": [\n{rows}\n]}}\n', encoding="utf-8"
        )


if __name__ == "__main__":
    main()
