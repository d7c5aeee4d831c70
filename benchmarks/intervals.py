"""How often the intervals of `ttc eval` and `ttc compare` cover the truth, beside those of other methods.

    python -m benchmarks.intervals [--rounds 400] [--seed 4] [--save FILE]

Compared: two runs on problems whose chances of a right answer are known: `coins` (some problems are coins for both),
`swaps` (some are surely won, as many surely lost), `gains` (some surely won), `moved` (some solved by 3 draws of 10,
then by 7), `contest` (chances of all sizes, most of them near 0 or 1, some of which rise or fall), and `rare`, the case
that the method leaves out: coins, and one cluster in twenty that loses everything. `differ` is the share of problems on
which two draws differ (of `contest`, how far the chances move). The p-value never contradicts the interval.

One run alone: problems of a mean chance, which are `alike`, `mixed` (most are near 0 or 1) or `sure`; its accuracy
where there is a single draw of each, else the mean over its draws.

Other methods: `t` is the clustered standard error with Student's t (Miller 2024, arXiv:2411.00640), `wilson` Wilson's
score interval of as many draws as vary as much, `bca` the bootstrap of clusters, bias-corrected and accelerated (Efron
1987), `gaffke` for comparisons what `ours` is for one run alone. About 30 minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evals.numbers.statistics import mean_interval, paired_interval, paired_test, standard_error

Chances: TypeAlias = npt.NDArray[np.float64]
Case: TypeAlias = Callable[[np.random.Generator, int, float], tuple[Chances, Chances, float]]
"""(random numbers, clusters, share that differs) -> chances of a right answer of each run, and the true difference."""

PROBLEMS, DIFFER = (30, 100, 400), (0.02, 0.1, 0.4)
SHAPES = ((1, 1), (3, 1), (8, 1), (64, 1), (1, 5), (3, 5))
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


def _contest(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    first, upwards = rng.beta(0.3, 0.3, num), rng.random(num) < 0.5
    return first, first + differ * np.where(upwards, 1 - first, -first), 0.0


def _rare(rng: np.random.Generator, num: int, differ: float) -> tuple[Chances, Chances, float]:
    lost, (chances, _, _) = rng.random(num) < RARE, _coins(rng, num, differ)
    return np.where(lost, 1.0, chances), np.where(lost, 0.0, chances), -RARE


CASES: Mapping[str, Case] = MappingProxyType(
    {"coins": _coins, "swaps": _swaps, "gains": _gains, "moved": _moved, "contest": _contest, "rare": _rare}
)


ALONE = {"alike": 1e9, "mixed": 1.0, "sure": 1e-9}
"""How alike the chances of a right answer are: the sum of the two parameters of their beta distribution."""
MEANS = (0.02, 0.5, 0.95, 0.995)
DESIGNS = ((30, 1, 1), (30, 8, 1), (30, 64, 1), (200, 1, 1), (200, 4, 1), (1319, 1, 1), (100, 1, 5), (100, 4, 5))
"""Problems, draws of each, and problems of a cluster."""
RESAMPLES = 500
Ends: TypeAlias = tuple[float, float]


def measure(case: str, num: int, seeds: int, per: int, differ: float, rounds: int, seed: int) -> dict[str, Any]:
    """Coverage and width of each method in one cell of comparisons; power and contradictions of ours."""
    rng = np.random.default_rng([seed, num, seeds, per, round(100 * differ)])
    clusters = np.arange(num // per).repeat(per).tolist()
    score = _Score()
    rejected = contradictions = 0
    for number in range(rounds):
        first, second, truth = CASES[case](rng, num // per, differ)
        before, after = (rng.binomial(seeds, chances.repeat(per)) / seeds for chances in (first, second))
        tested = paired_test(before.tolist(), after.tolist(), clusters, pairs=num * seeds)
        low, high = tested.interval.low, tested.interval.high
        bounded = paired_interval(before.tolist(), after.tolist(), clusters, seed=number)
        score.add("ours", (low, high), truth)
        score.add("t", _student(after - before, clusters), truth)
        score.add("gaffke", (bounded.low, bounded.high), truth)
        rejected += tested.p_value < 0.05
        contradictions += (tested.p_value < 0.05) == (low <= 0 <= high)
    cell = {"case": case, "problems": num, "seeds": seeds, "cluster": per, "differ": differ}
    return {**cell, **score.means(rounds), "p below 0.05": rejected / rounds, "contradictions": contradictions}


def measure_alone(kind: str, mean: float, num: int, draws: int, per: int, rounds: int, seed: int) -> dict[str, Any]:
    """Coverage and width of each method in one cell of single runs."""
    rng = np.random.default_rng([seed, num, draws, per, round(1000 * mean)])
    clusters = np.arange(num // per).repeat(per).tolist()
    score = _Score()
    for number in range(rounds):
        chances = rng.beta(mean * ALONE[kind], (1 - mean) * ALONE[kind], num // per)
        shares = rng.binomial(draws, chances.repeat(per)) / draws
        ours = mean_interval(shares.tolist(), clusters, seed=number)
        score.add("ours", (ours.low, ours.high), mean)
        score.add("t", _student(shares, clusters), mean)
        score.add("wilson", _wilson(shares, clusters, num * draws), mean)
        score.add("bca", _bca(shares.reshape(-1, per).mean(axis=1), rng), mean)
    cell = {"case": kind, "mean": mean, "problems": num, "draws": draws, "cluster": per}
    return {**cell, **score.means(rounds)}


class _Score:
    """How often each method covers, and how wide it is."""

    def __init__(self) -> None:
        self._covered: dict[str, int] = {}
        self._width: dict[str, float] = {}

    def add(self, method: str, ends: Ends, truth: float) -> None:
        low, high = ends
        self._covered[method] = self._covered.get(method, 0) + (low - 1e-9 <= truth <= high + 1e-9)
        self._width[method] = self._width.get(method, 0.0) + high - low

    def means(self, rounds: int) -> dict[str, float]:
        covered = {f"{name} covered": count / rounds for name, count in self._covered.items()}
        return {**covered, **{f"{name} width": round(width / rounds, 4) for name, width in self._width.items()}}


def _quantile(freedom: int) -> float:
    """Of Student's t, from the normal one (Cornish and Fisher): to 0.001 from seven degrees of freedom on."""
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _student(values: Chances, clusters: list[int]) -> Ends:
    reach = _quantile(clusters[-1]) * standard_error(values.tolist(), clusters)
    return float(values.mean() - reach), float(values.mean() + reach)


def _wilson(values: Chances, clusters: list[int], most: int) -> Ends:
    mean, error = float(values.mean()), standard_error(values.tolist(), clusters)
    least, z = clusters[-1] + 1, NormalDist().inv_cdf(0.975)
    num = min(max(mean * (1 - mean) / error**2, least), most) if error else least
    middle = (mean + z**2 / (2 * num)) / (1 + z**2 / num)
    reach = z / (1 + z**2 / num) * math.sqrt(mean * (1 - mean) / num + z**2 / (4 * num**2))
    return middle - reach, middle + reach


def _bca(values: Chances, rng: np.random.Generator) -> Ends:
    mean, normal = values.mean(), NormalDist()
    means = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    below = float((means < mean).mean() + (means == mean).mean() / 2)
    if not 0 < below < 1 or values.min() == values.max():
        return float(mean), float(mean)
    bias, gaps = normal.inv_cdf(below), values - mean
    skew = float((gaps**3).sum() / (6 * (gaps**2).sum() ** 1.5))
    moved = (bias + normal.inv_cdf(tail) for tail in (0.025, 0.975))
    low, high = np.quantile(means, [normal.cdf(bias + each / (1 - skew * each)) for each in moved])
    return float(low), float(high)


def main() -> None:
    """Print every cell, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="simulated comparisons of each cell")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--save", type=Path, help="where the numbers go")
    args = parser.parse_args()
    rest = args.rounds, args.seed
    compared, alone = [], []
    for case, num, (seeds, per), differ in itertools.product(CASES, PROBLEMS, SHAPES, DIFFER):
        compared.append(measure(case, num, seeds, per, differ, *rest))
        print(*compared[-1].values(), flush=True)
    for kind, mean, (num, draws, per) in itertools.product(ALONE, MEANS, DESIGNS):
        alone.append(measure_alone(kind, mean, num, draws, per, *rest))
        print(*alone[-1].values(), flush=True)
    if args.save:
        rows = {name: ",\n".join(map(json.dumps, cells)) for name, cells in (("compared", compared), ("alone", alone))}
        parts = [f'"{name}": [\n{text}\n]' for name, text in rows.items()]
        head = f'"rounds": {args.rounds}, "seed": {args.seed}'
        args.save.write_text(f"{{{head}, {', '.join(parts)}}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
