"""How sure are we: exact and bootstrap intervals, exact McNemar (of clusters, too), Holm, minimum detectable effect.

The unit of chance is the cluster (usually the problem): extra samples per problem narrow nothing between problems.
Where each problem is a cluster of its own and right or wrong, the interval is that of Clopper and Pearson (1934), by
exact binomial tails: it covers every truth in at least 95 of 100 runs, and one right answer more raises both its ends.

Else intervals are percentile bootstrap over clusters (Efron 1979), widened by sqrt(C / (C - 1)) for C clusters, as the
percentile interval is too narrow by this factor (Hesterberg 2015, arXiv:1411.5279). Where all clusters are alike
resampling sees no chance at all: the ends are then the exact binomial bound on the share of others that stayed unseen.
Where a single cluster differs the bootstrap goes by it alone, and is the narrower: read such an interval with its size.

Cost: 2,000 resamples of 1,000 clusters take about 50 ms. Every function that draws is given its seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

DRAWS, LEVEL = 2000, 0.95
"""Resamples, and the share of them inside an interval."""
_HALVINGS, _DEVIATIONS = 60, 12
"""Bisections, to the last bit; roots of the number of trials behind which the tail of a binomial is nothing."""
_ROUNDING = 1e-12
"""A standard error that only the rounding of sums made."""
_CHUNK, _CELLS = 200, 2_000_000
"""Resamples that are drawn at once, and how many numbers these may take together."""
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its confidence interval; all three are NaN without data."""

    value: float
    low: float
    high: float


def mean_interval(values: Sequence[float], clusters: Sequence[Hashable], *, seed: int, draws: int = DRAWS) -> Interval:
    """Return the mean of `values`, shares in [0, 1], with its interval: exact where no cluster holds several."""
    return mean_intervals(np.asarray(values, dtype=float)[:, None], clusters, seed=seed, draws=draws)[0]


def paired_interval(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable], *, seed: int, draws: int = DRAWS
) -> Interval:
    """Return the mean of second - first, problem by problem, with its paired, clustered bootstrap interval."""
    differences = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    return mean_intervals(differences[:, None], clusters, seed=seed, draws=draws, signed=True)[0]


def mean_intervals(
    values: Array, clusters: Sequence[Hashable], *, seed: int, draws: int = DRAWS, signed: bool = False
) -> list[Interval]:
    """Return one interval per column of `values` (P, M); columns that are resampled share the resamples.

    Values are shares in [0, 1], or differences of shares in [-1, 1] where `signed`.
    """
    if len(values) == 0:
        return [Interval(math.nan, math.nan, math.nan)] * values.shape[1]
    sums, sizes = _by_cluster(values, clusters)
    means = np.asarray(values.mean(axis=0), dtype=float)
    counted = np.isin(sums, (0.0, 1.0)).all(axis=0) & (sizes == 1).all() & (not signed)
    floor = -1.0 if signed else 0.0
    low, high = means, means
    if not counted.all():
        resampled = _resample(sums, sizes, draws, np.random.default_rng(seed))
        stretch = math.sqrt(len(sizes) / (len(sizes) - 1)) if len(sizes) > 1 else 1.0
        tails = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        low, high = means + (tails - means) * stretch
    intervals = []
    for column, is_counted, mean, lower, upper in zip(sums.T, counted, means, low, high, strict=True):
        if is_counted:
            ends = _exact(int(column.sum()), len(column))
        elif (shares := column / sizes).min() == shares.max():
            ends = _unseen(float(mean), len(sizes), floor)
        else:
            ends = max(float(lower), floor), min(float(upper), 1.0)
        intervals.append(Interval(float(mean), *ends))
    return intervals


def standard_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Return the cluster-robust standard error of the mean; NaN with fewer than two clusters, 0 where all are alike."""
    sums, sizes = _by_cluster(np.asarray(values, dtype=float)[:, None], clusters)
    count = len(sizes)
    if count < 2:
        return math.nan
    residuals = sums[:, 0] - sizes * np.mean(values)
    error = math.sqrt(count / (count - 1) * float((residuals**2).sum())) / len(values)
    return error if error > _ROUNDING else 0.0


def minimum_detectable(error: float) -> float:
    """Return the smallest true difference that a two-sided test at 5 % finds with a power of 80 %.

    `error` is the standard error of the difference; for two unpaired runs that is sqrt(2) times that of one.
    """
    normal = NormalDist()
    return (normal.inv_cdf(0.975) + normal.inv_cdf(0.8)) * error


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p-value when so many problems were solved by one run and not by the other."""
    num = only_first + only_second
    tail = sum(math.comb(num, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << num))  # whole numbers of any size are divided exactly


def paired_p_value(differences: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Return the exact two-sided p-value of whole-numbered differences, problem by problem, being chance.

    Were the two runs alike, each cluster's sum would be as likely with the other sign. Where every problem is a cluster
    of its own, this is McNemar's test.
    """
    sums = _by_cluster(np.asarray(differences, dtype=float)[:, None], clusters)[0][:, 0]
    sizes = np.abs(sums[sums != 0]).astype(int)
    if (sizes == 1).all():
        return mcnemar(int((sums < 0).sum()), int((sums > 0).sum()))
    reach = int(sizes.sum())
    chances = np.zeros(2 * reach + 1)  # of each sum from -reach to reach
    chances[reach] = 1.0
    for size in sizes:  # what is shifted around the end is 0
        chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
    extreme = np.abs(np.arange(-reach, reach + 1)) >= abs(int(sums.sum()))
    return min(1.0, float(chances[extreme].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for testing all of them (Holm 1979), in the order given."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def _by_cluster(values: Array, clusters: Sequence[Hashable]) -> tuple[Array, Array]:
    """Return the column sums of each cluster (C, M) and its size (C,), clusters in order of appearance."""
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values but {len(clusters)} cluster labels")
    order: dict[Hashable, int] = {}
    index = np.array([order.setdefault(cluster, len(order)) for cluster in clusters], dtype=np.int64)
    sums = np.zeros((len(order), values.shape[1]))
    np.add.at(sums, index, values)
    return sums, np.bincount(index, minlength=len(order)).astype(float)


def _resample(sums: Array, sizes: Array, draws: int, rng: np.random.Generator) -> Array:
    """Return the mean of each resample (draws, M), computed in chunks to bound the memory."""
    count = len(sizes)
    chunk = max(1, min(_CHUNK, _CELLS // count))
    parts = []
    for start in range(0, draws, chunk):
        shape = min(chunk, draws - start)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=shape).astype(float)  # (draws, C)
        parts.append((weights @ sums) / (weights @ sizes)[:, None])
    return np.concatenate(parts)


def _exact(num_right: int, num: int) -> tuple[float, float]:
    """Clopper-Pearson: the shares of which so many right answers, or more, or fewer, are just likely enough."""
    return _lower(num_right, num), 1.0 - _lower(num - num_right, num)


def _lower(count: int, num: int) -> float:
    """The share of which `count` or more of `num` has the probability of one tail, by bisection; 0 for none."""
    low, high = 0.0, count / num
    for _ in range(_HALVINGS if count else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if _tail(count, num, middle) > (1 - LEVEL) / 2 else (middle, high)
    return low


def _tail(count: int, num: int, share: float) -> float:
    """The chance of `count` or more of `num`, for a share of at most count / num: from there on the terms fall."""
    ways = math.lgamma(num + 1) - math.lgamma(count + 1) - math.lgamma(num - count + 1)
    first = math.exp(ways + count * math.log(share) + (num - count) * math.log1p(-share))
    more = np.arange(count, min(num, count + int(_DEVIATIONS * math.sqrt(num)) + _DEVIATIONS), dtype=float)
    ratios = (num - more) / (more + 1) * (share / (1 - share))
    return first * (1.0 + float(np.cumprod(ratios).sum()))


def _unseen(mean: float, num_clusters: int, floor: float) -> tuple[float, float]:
    """Clopper-Pearson of clusters unlike all that are there: they may be as low as `floor`, or 1."""
    rare = 1.0 - ((1 - LEVEL) / 2) ** (1 / num_clusters)  # largest share of others that may have stayed unseen
    return mean - rare * (mean - floor), mean + rare * (1.0 - mean)
