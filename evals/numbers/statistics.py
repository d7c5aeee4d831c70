"""Uncertainty: intervals of bounded means, exact McNemar (of clusters, too), Holm, minimum detectable effect.

The unit of chance is the cluster (usually the problem): extra samples per problem narrow nothing between problems.
Where each problem is a cluster of its own and right or wrong, the interval is that of Clopper and Pearson (1934), by
exact binomial tails: it covers every truth in at least 95 of 100 runs, and one right answer more raises both its ends.

Else an interval is Gaffke's (Learned-Miller and Thomas 2020, arXiv:1905.06208), which is the same for right and wrong:
clusters are weighed at random, as in the Bayesian bootstrap (Rubin 1981), beside one more that is as far off as a value
can be, since what was not seen may be. It asks of the values only that they are bounded, so it holds where a bootstrap
is too narrow: where hardly any problem differs, as of pass@k near 1, and where clusters are few. That it covers every
truth is a conjecture, proved for right and wrong. Where all clusters are alike its ends have a closed form, and for
paired right and wrong they solve a sum of binomial terms: there it leaves out 0 exactly where McNemar's test has
p < 5 %. Left out: a few clusters whose sizes differ much and hang on what they hold; where the large
ones may be those that were not seen, an interval is too narrow.

A comparison of runs (`paired_test`) has its interval and its p-value from one count, the effective pairs: so many
independent pairs of draws vary as much as the clusters do (Korn and Graubard 1998, "Confidence intervals for
proportions with small expected number of positive counts estimated from survey data"). It is McNemar's test of so many
pairs, so the two cannot contradict each other. `benchmarks/intervals.py` measures the coverage of both kinds, beside
that of other methods: 91 to 98 of 100 for comparisons in which at least 20 clusters may differ, and more where fewer
do. Left out: rare clusters that lose everything while the others vary a little. Where none of them was seen the
interval is too narrow: of 30 clusters, one in twenty of which does, it covers 73 of 100. Gaffke's would hold there, and
be twice as wide where a problem is drawn many times.

Of `smooth` values, such as likelihoods, none is far off where the others are near each other: nothing is put beside the
clusters there, and the ends are widened by sqrt(C / (C - 1)) for C of them.

Cost: 1,000 clusters of as many values take about 50 ms. Every function that draws is given its seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

DRAWS, MOST_DRAWS, LEVEL = 2000, 20_000, 0.95
"""Random weighings, at most where few values differ, and the share of them inside an interval."""
METHOD = "Gaffke"
"""The name of this interval in stored files; older ones are bootstraps and have no name."""
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_HALVINGS, _DEVIATIONS = 60, 12
"""Bisections, enough for the last bit; and how many square roots of the number of trials a binomial's tail reaches."""
_ROUNDING = 1e-12
"""A standard error, and a value out of bounds, that only the rounding of sums made."""
_DIGITS = 9
"""Decimals of an effective count; further ones are rounding."""
_CELLS = 2_000_000
"""How many numbers the weighings drawn at once may take together."""
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its confidence interval; all three are NaN without data."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The mean difference with its interval, its two-sided p-value, and the effective pairs that both are of."""

    interval: Interval
    p_value: float
    pairs: float


def mean_interval(
    values: Sequence[float], clusters: Sequence[Hashable], *, seed: int, smooth: bool = False
) -> Interval:
    """Return the mean of `values`, shares in [0, 1], with its interval: exact where no cluster holds several."""
    return mean_intervals(np.asarray(values, dtype=float)[:, None], clusters, seed=seed, smooth=smooth)[0]


def paired_interval(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable], *, seed: int, smooth: bool = False
) -> Interval:
    """Return the mean of second - first, problem by problem, with its paired, clustered interval."""
    differences = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    return mean_intervals(differences[:, None], clusters, seed=seed, signed=True, smooth=smooth)[0]


def mean_intervals(
    values: Array, clusters: Sequence[Hashable], *, seed: int, signed: bool = False, smooth: bool = False
) -> list[Interval]:
    """Return one interval per column of `values` (P, M); columns that are weighed at random share the weights.

    Values are shares in [0, 1], or differences of shares in [-1, 1] where `signed`; others raise ValueError.
    """
    if len(values) == 0:
        return [Interval(math.nan, math.nan, math.nan)] * values.shape[1]
    floor = -1.0 if signed else 0.0
    if not (values.min() >= floor - _ROUNDING and values.max() <= 1.0 + _ROUNDING):
        raise ValueError(f"values must be in [{floor:g}, 1], got {values.min():g} to {values.max():g}")
    sums, sizes = _by_cluster(values, clusters)
    means = np.asarray(values.mean(axis=0), dtype=float)
    outcomes = (-1.0, 0.0, 1.0) if signed else (0.0, 1.0)
    counted = np.isin(sums, outcomes).all(axis=0) & (sizes == 1).all() & (not signed or not smooth)
    low, high = means, means
    if not counted.all():
        further = 0.0 if smooth else 1.0
        low, high = _weighed(sums, sizes, floor, further, np.random.default_rng(seed))
        if smooth and len(sizes) > 1:
            stretch = math.sqrt(len(sizes) / (len(sizes) - 1))
            low, high = means + (low - means) * stretch, means + (high - means) * stretch
    intervals = []
    for column, is_counted, mean, lower, upper in zip(sums.T, counted, means, low, high, strict=True):
        if is_counted and signed:
            ends = _paired(int((column > 0).sum()), int((column < 0).sum()), len(column))
        elif is_counted:
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


def minimum_detectable(error: float, pairs: float | None = None) -> float:
    """Return the smallest true difference that a two-sided test at 5 % finds with a power of 80 %.

    `error` is the standard error of the difference; for two unpaired runs that is sqrt(2) times that of one. A larger
    difference of right and wrong in so many `pairs` has a larger error itself: where all that differ go one way, it is
    the root of their share over their number.
    """
    normal = NormalDist()
    errors = normal.inv_cdf(0.975) + normal.inv_cdf(0.8)
    return errors * error if pairs is None else min(max(errors * error, errors**2 / pairs), 1.0)


def paired_test(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable], *, pairs: float
) -> PairedTest:
    """Compare shares of right draws, problem by problem, of which there are so many independent `pairs` in all.

    The interval leaves out 0 exactly where p < 5 %.
    """
    before, after = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    outcomes = np.column_stack((after * (1 - before), before * (1 - after)))
    num = effective_pairs(outcomes, clusters, pairs)
    gained, lost = (round(num * float(share), _DIGITS) for share in outcomes.mean(axis=0))
    tail = min(_share_below(0.0, gained, lost, num), _share_below(0.0, lost, gained, num))
    interval = Interval(float((after - before).mean()), *_paired(gained, lost, num))
    return PairedTest(interval, min(1.0, 2 * tail), num)


def effective_pairs(outcomes: Array, clusters: Sequence[Hashable], pairs: float) -> float:
    """Return how many independent pairs of draws would tell as much (Korn and Graubard 1998).

    So many would have the variance that the clusters show, widened by Student's t for their number: at least as many as
    if all problems of a cluster always went one way (Kish 1965), at most all pairs of draws. `outcomes` (P, 2) are the
    chances to gain and to lose.
    """
    sums, sizes = _by_cluster(outcomes, clusters)
    (gained, lost), count = outcomes.mean(axis=0), len(sizes)
    mean, least = gained - lost, float(sizes.sum() ** 2 / (sizes**2).sum())
    variance = float(((sums[:, 0] - sums[:, 1] - sizes * mean) ** 2).sum()) / len(outcomes) ** 2
    if variance <= _ROUNDING**2:
        return least
    few = (NormalDist().inv_cdf((1 + LEVEL) / 2) / _student(count - 1)) ** 2 * (count - 1) / count
    return min(max(float(gained + lost - mean**2) / variance * few, least), pairs)


def _student(freedom: int) -> float:
    """The two-sided quantile of Student's t, by the angle whose tangent it is."""
    angles = np.linspace(0.0, math.pi / 2, 20_001)
    chances = np.cumsum(np.cos(angles) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(float(np.interp(LEVEL, chances / chances[-1], angles)))


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


def _weighed(sums: Array, sizes: Array, floor: float, further: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the lower and the upper ends (M,) of the means, beside `further` clusters as far off as can be.

    Weights of clusters that are alike are drawn as one.
    """
    rows, counts = np.unique(np.column_stack((sums, sizes)), axis=0, return_counts=True)
    draws = min(max(_CELLS // len(rows), DRAWS), MOST_DRAWS)
    chunk = max(1, min(_CELLS // len(rows), draws))
    weighed, more = [], further * rng.standard_exponential((draws, 1)) * sizes.mean()  # it is of usual size
    for start in range(0, draws, chunk):
        weights = rng.standard_gamma(counts, (min(chunk, draws - start), len(rows)))
        weighed.append(weights @ rows)
    totals = np.concatenate(weighed)  # (draws, M + 1), the sizes last
    tails = ((totals[:, :-1] + bound * more) / (totals[:, -1:] + more) for bound in (floor, 1.0))
    low, high = (np.quantile(tail, level, axis=0) for tail, level in zip(tails, _TAILS, strict=True))
    return low, high


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


def _paired(gained: float, lost: float, num: float) -> tuple[float, float]:
    """The ends of the mean of so many differences of 1 and of -1, and of 0 else."""
    return _lowest(gained, lost, num), -_lowest(lost, gained, num)


def _lowest(gained: float, lost: float, num: float) -> float:
    """The mean below which the weighed one, beside one more loss, is with the probability of one tail, by bisection.

    Its sign is that of McNemar's test, as the first end of the bisection is 0.
    """
    is_above = _share_below(0.0, gained, lost, num) < (1 - LEVEL) / 2
    inner, outer = 0.0, 1.0 if is_above else -1.0
    for _ in range(_HALVINGS):
        middle = (inner + outer) / 2
        is_low = _share_below(middle, gained, lost, num) < (1 - LEVEL) / 2
        inner, outer = (middle, outer) if is_low == is_above else (inner, middle)
    return outer


def _share_below(mean: float, gained: float, lost: float, num: float) -> float:
    """The chance that exponential weights of the differences and of one more loss give a mean of at most `mean`.

    A part of a gain or of a loss counts as a whole one with that chance.
    """
    ties = num - gained - lost
    return sum(
        gain_share * loss_share * _whole_below(mean, gain, loss, ties)
        for gain, gain_share in _whole(gained)
        for loss, loss_share in _whole(lost)
    )


def _whole(count: float) -> list[tuple[int, float]]:
    """The whole numbers beside a count, with their shares in it."""
    below = math.floor(count)
    return [(number, share) for number, share in ((below, 1 - count + below), (below + 1, count - below)) if share]


def _whole_below(mean: float, gained: int, lost: int, ties: float) -> float:
    """`_share_below` of whole gains and losses.

    With gamma weights of the gains G, of the losses L (one more) and of the ties T, the mean is at most x where
    (1 - x) G <= (1 + x) L + x T: where at least `gained` events of a Poisson process fall into the right side. How many
    fall into either of its parts is negative binomial. Up to 0 the sides change.
    """
    x = abs(mean)
    if mean <= 0:
        return _at_most(lost, (gained, (1 + x) / 2), (ties, x))
    return 1.0 - _at_most(gained - 1, (lost + 1, (1 + x) / 2), (ties, x))


def _at_most(most: int, first: tuple[float, float], second: tuple[float, float]) -> float:
    """The chance that two negative binomial counts, (size, probability) each, are at most `most` together."""
    if most < 0:
        return 0.0
    one, other = (_negative_binomial(most, *each) for each in (first, second))
    return float(one @ np.cumsum(other)[::-1])


def _negative_binomial(most: int, size: float, chance: float) -> Array:
    """The probabilities of 0 to `most` events of this chance before `size` others."""
    if not size or not chance:
        return np.array([1.0] + [0.0] * most)
    if chance == 1.0:
        return np.zeros(most + 1)
    counts = np.arange(most, dtype=float)
    steps = np.log((size + counts) / (counts + 1) * chance)
    logs: Array = size * math.log1p(-chance) + np.concatenate(([0.0], np.cumsum(steps)))
    return np.exp(logs)


def _unseen(mean: float, num_clusters: int, floor: float) -> tuple[float, float]:
    """Clopper-Pearson of clusters unlike all that are there: they may be as low as `floor`, or 1."""
    rare = 1.0 - ((1 - LEVEL) / 2) ** (1 / num_clusters)  # largest share of others that may have stayed unseen
    return mean - rare * (mean - floor), mean + rare * (1.0 - mean)
