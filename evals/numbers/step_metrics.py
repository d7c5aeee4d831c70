"""How well scores of single steps tell right from wrong: first-error F1, calibration, ranking.

First-error F1 is ProcessBench's (Zheng et al. 2024, arXiv:2412.06559): a solution's prediction is its first step with a
score below the threshold, or none; F1 is the harmonic mean of the accuracy on solutions with an error and on those
without. A threshold may be fitted: it is chosen on one half of the solutions (by a hash of their names) and everything
is reported on the other half. Calibration reads a score as the chance that the path is right so far: equally filled
bins, equal scores in one, each with the share of right steps and its interval, clustered by solution.

Cost: 2,000 weighings. Left out: solutions whose steps have no scores, which are counted (`num_unscored`).
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.numbers.statistics import DRAWS, Interval, mean_interval

MAX_THRESHOLDS, NUM_BINS = 200, 10


@dataclass(frozen=True, slots=True)
class Judged:
    """A solution with a label and a score for each step; `scores` None: the scorer gave none."""

    name: str
    cluster: str
    labels: tuple[float | None, ...]
    scores: tuple[float, ...] | None

    @property
    def error(self) -> int | None:
        """Index of the first wrong step; None when all are right."""
        return next((index for index, label in enumerate(self.labels) if label == 0.0), None)

    def predicted(self, threshold: float) -> int | None:
        """Index of the first step below `threshold`."""
        return next((index for index, score in enumerate(self.scores or ()) if score < threshold), None)


@dataclass(frozen=True, slots=True)
class FirstError:
    """Shares with 95 % intervals: exact hits among solutions with an error, none predicted among those without."""

    threshold: float
    num_with_error: int
    num_without: int
    num_unscored: int
    with_error: Interval
    without: Interval
    f1: Interval


@dataclass(frozen=True, slots=True)
class Bin:
    """Steps of neighbouring scores: their number, mean score, and the share that is right."""

    count: int
    score: float
    right: Interval


def first_error(rows: Sequence[Judged], threshold: float, *, seed: int) -> FirstError:
    """Return first-error F1 at `threshold`; NaN where one of the two kinds of solutions is missing."""
    scored = [row for row in rows if row.scores is not None]
    faulty = [row for row in scored if row.error is not None]
    sound = [row for row in scored if row.error is None]
    with_error, without = (
        mean_interval(_hits(kind, threshold), [row.cluster for row in kind], seed=seed) for kind in (faulty, sound)
    )
    f1 = Interval(_harmonic(with_error.value, without.value), *_f1_tails(faulty, sound, threshold, seed))
    return FirstError(threshold, len(faulty), len(sound), len(rows) - len(scored), with_error, without, f1)


def fit_threshold(rows: Sequence[Judged]) -> float:
    """Return the threshold with the best F1 on `rows`, the lowest of equals; 0.5 when there is nothing to go by."""
    scored = [row for row in rows if row.scores is not None]
    scores = np.array(sorted({score for row in scored for score in row.scores or ()}))
    if not len(scores):
        return 0.5
    places = np.unique(np.linspace(0, len(scores) - 1, MAX_THRESHOLDS).astype(int))
    options = [float(scores[place]) for place in places] + [math.nextafter(float(scores[-1]), math.inf)]
    return max(options, key=lambda threshold: (_f1(scored, threshold), -threshold))


def split(rows: Sequence[Judged]) -> tuple[list[Judged], list[Judged]]:
    """Return two halves, one to fit on and one to report on; whole clusters, by a hash, whatever the order."""
    odd = [bool(hashlib.sha256(row.cluster.encode()).digest()[0] % 2) for row in rows]
    first = [row for row, is_odd in zip(rows, odd, strict=True) if is_odd]
    return first, [row for row, is_odd in zip(rows, odd, strict=True) if not is_odd]


def calibration(rows: Sequence[Judged], *, seed: int) -> list[Bin]:
    """Return up to `NUM_BINS` equally filled bins over all labelled steps, by score; equal scores share one."""
    steps = sorted(_steps(rows), key=lambda step: step[0])
    size = max(1, math.ceil(len(steps) / NUM_BINS))
    scores = [score for score, _, _ in steps]
    bins, end = [], 0
    while end < len(steps):
        start, last = end, min(end + size, len(steps)) - 1
        end = bisect_right(scores, scores[last])
        part = steps[start:end]
        right = mean_interval([label for _, label, _ in part], [cluster for _, _, cluster in part], seed=seed)
        bins.append(Bin(len(part), sum(score for score, _, _ in part) / len(part), right))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error: the mean gap between score and share, by the bins' sizes."""
    total = sum(item.count for item in bins)
    return sum(item.count * abs(item.score - item.right.value) for item in bins) / total if total else math.nan


def ranking(rows: Sequence[Judged]) -> float:
    """Return the chance that a right step has a higher score than a wrong one (AUC; ties count half)."""
    steps = _steps(rows)
    right = np.sort([score for score, label, _ in steps if label > 0.5])
    wrong = np.array([score for score, label, _ in steps if label <= 0.5])
    if not len(right) or not len(wrong):
        return math.nan
    above = len(right) - np.searchsorted(right, wrong, side="right")
    level = np.searchsorted(right, wrong, side="right") - np.searchsorted(right, wrong, side="left")
    return float((above + level / 2).sum() / (len(right) * len(wrong)))


def _steps(rows: Sequence[Judged]) -> list[tuple[float, float, str]]:
    """(score, label, cluster) of every step that has both."""
    return [
        (score, label, row.cluster)
        for row in rows
        if row.scores is not None
        for score, label in zip(row.scores, row.labels, strict=True)
        if label is not None
    ]


def _hits(rows: Sequence[Judged], threshold: float) -> list[float]:
    return [float(row.predicted(threshold) == row.error) for row in rows]


def _f1(rows: Sequence[Judged], threshold: float) -> float:
    kinds = [[row for row in rows if (row.error is None) is sound] for sound in (False, True)]
    shares = [sum(_hits(kind, threshold)) / len(kind) if kind else math.nan for kind in kinds]
    value = _harmonic(shares[0], shares[1])
    return -1.0 if math.isnan(value) else value


def _f1_tails(faulty: Sequence[Judged], sound: Sequence[Judged], threshold: float, seed: int) -> tuple[float, float]:
    """Gaffke's 95 % ends of F1 over clusters, as of a mean: of each kind one more is missed throughout, or hit."""
    if not faulty or not sound:
        return math.nan, math.nan
    place = {cluster: at for at, cluster in enumerate(dict.fromkeys(row.cluster for row in (*faulty, *sound)))}
    sums = np.zeros((len(place), 2, 2))  # (C, kinds, hits and number)
    for kind, rows in enumerate((faulty, sound)):
        for row, hit in zip(rows, _hits(rows, threshold), strict=True):
            sums[place[row.cluster], kind] += (hit, 1.0)
    rng = np.random.default_rng(seed)
    weights = rng.standard_exponential((DRAWS, len(place)))
    hits, num = np.moveaxis(np.tensordot(weights, sums, 1), 2, 0)  # (draws, kinds) each
    more = rng.standard_exponential((DRAWS, 2)) * sums[..., 1].mean(axis=0)
    low, high = (
        np.quantile([_harmonic(*shares) for shares in (hits + bound * more) / (num + more)], level)
        for bound, level in ((0.0, 0.025), (1.0, 0.975))
    )
    return float(low), float(high)


def _harmonic(first: float, second: float) -> float:
    if math.isnan(first) or math.isnan(second):
        return math.nan
    return 2 * first * second / (first + second) if first + second else 0.0
