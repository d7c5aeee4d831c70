"""Metrics of one problem's pool of candidates, each an exact expectation over random sub-samples of size k.

A pool is the n candidates that were drawn for one problem. "At k" always means: the expected value over all subsets of
k of the n, never "the first k". So one run with n = 64 gives every smaller budget, paired.

    pass@k       1 - C(n-c, k) / C(n, k)                     (Chen et al. 2021, arXiv:2107.03374)
    best@k       the best-scored of k is right: sum over ranks, by sorting
    maj@k        the largest answer class of k is right: multivariate hypergeometric expectation
    weighted@k   the class with the largest sum of scores is right: all subsets when few, else Monte Carlo

Ties are broken uniformly. A candidate without an answer belongs to no class and can win nothing; one without a score
wins neither best@k nor weighted@k. Where nothing wins, nothing is right.

Cost: pass@k and best@k are immediate; maj@k about 2 ms for n = 16, remembered by the sizes of the classes.
Left out: pools that are not exchangeable (beams of one tree): sub-sampling them is not the smaller search.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_SUBSETS = 500
"""Up to so many subsets the weighted vote is enumerated; beyond it is sampled."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Vote:
    """One candidate as voting sees it: `key` None abstains, `score` None has no say where scores count."""

    key: str | None
    correct: bool
    score: float | None = None


def powers_of_two(n: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to n, and n itself; empty for n = 0."""
    ladder = tuple(1 << i for i in range(n.bit_length()))
    return ladder if not n or ladder[-1] == n else (*ladder, n)


def pass_at_k(num: int, num_correct: int, k: int) -> float:
    """Return the chance that k of `num` candidates, drawn without replacement, hold one of the correct ones."""
    _check_k(num, k)
    return 1.0 - math.comb(num - num_correct, k) / math.comb(num, k)


def best_at_k(votes: Sequence[Vote], k: int) -> float:
    """Return the chance that the best-scored of k candidates is right; equal scores share it evenly."""
    _check_k(len(votes), k)
    ranks: dict[float, list[bool]] = defaultdict(list)
    for vote in votes:
        if vote.score is not None:
            ranks[vote.score].append(vote.correct)
    total, left, chance = math.comb(len(votes), k), len(votes), 0.0
    for score in sorted(ranks, reverse=True):
        tied = ranks[score]
        lead = math.comb(left, k) - math.comb(left - len(tied), k)
        chance += lead / total * sum(tied) / len(tied)
        left -= len(tied)
    return chance


def majority_at_k(votes: Sequence[Vote], k: int) -> float:
    """Return the chance that the largest class among k candidates is right; equal classes share it evenly.

    A class whose members got different verdicts counts with its share of correct ones.
    """
    _check_k(len(votes), k)
    classes = _classes(votes)
    sizes = tuple(sorted(len(members) for members in classes))
    wins = _win_chances(sizes, len(votes))
    return sum(float(wins[len(members)][k]) * sum(members) / len(members) for members in classes)


def weighted_at_k(votes: Sequence[Vote], k: int, rng: np.random.Generator, draws: int = 400) -> tuple[float, float]:
    """Return (chance that the class with the largest sum of scores among k is right, standard error of this figure).

    The error is 0 where all subsets were enumerated. Scores are used as they are and must not be negative.

    Raises:
        ValueError: a score is negative, where a sum of scores is no vote.
    """
    _check_k(len(votes), k)
    if any(vote.score is not None and vote.score < 0 for vote in votes):
        raise ValueError("a weighted vote needs scores >= 0")
    num = len(votes)
    exact = math.comb(num, k) <= MAX_SUBSETS
    subsets: npt.NDArray[np.int64] = (
        np.array(list(itertools.combinations(range(num), k)), dtype=np.int64)
        if exact
        else np.argsort(rng.random((draws, num)), axis=1)[:, :k]
    )
    values = _weighted_wins(votes, subsets)
    error = 0.0 if exact else float(values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()), error


def _check_k(num: int, k: int) -> None:
    if not 1 <= k <= num:
        raise ValueError(f"k must be between 1 and the number of candidates {num}, got {k}")


def _classes(votes: Sequence[Vote]) -> list[list[bool]]:
    """Return the verdicts of each answer class."""
    classes: dict[str, list[bool]] = defaultdict(list)
    for vote in votes:
        if vote.key is not None:
            classes[vote.key].append(vote.correct)
    return list(classes.values())


def _weighted_wins(votes: Sequence[Vote], subsets: npt.NDArray[np.int64]) -> Array:
    """Return for each subset (R, k) the share of its leading classes that is right."""
    keys = sorted({vote.key for vote in votes if vote.key is not None and vote.score is not None})
    if not keys:
        return np.zeros(len(subsets))
    weight = np.zeros((len(votes), len(keys)))
    member = np.zeros((len(votes), len(keys)))
    right = np.zeros(len(keys))
    for column, key in enumerate(keys):
        members = [i for i, vote in enumerate(votes) if vote.key == key and vote.score is not None]
        weight[members, column] = [votes[i].score or 0.0 for i in members]
        member[members, column] = 1.0
        right[column] = sum(votes[i].correct for i in members) / len(members)
    sums = np.where(member[subsets].any(axis=1), weight[subsets].sum(axis=1), -1.0)  # (R, classes)
    top = sums.max(axis=1, keepdims=True)
    leads = np.isclose(sums, top, rtol=1e-12, atol=0.0) & (sums >= 0)
    return np.asarray((leads * right).sum(axis=1) / np.maximum(leads.sum(axis=1), 1))


@functools.lru_cache(maxsize=8192)
def _win_chances(sizes: tuple[int, ...], num: int) -> Mapping[int, Array]:
    """Return for each class size the chance, by k, that one given class of that size wins the vote among k.

    `sizes` are those of all classes; the other `num` - sum(sizes) candidates abstain. The class wins with m votes when
    no other has more; with t - 1 others level it wins 1/t of the time, and 1/t is the integral of y^(t-1) over [0, 1],
    which Gauss-Legendre nodes give exactly. What is left is a product of polynomials in x (one factor per class, the
    power of x counts the candidates taken), whose coefficients are the subset counts for all k at once.
    """
    counts = {size: sizes.count(size) for size in set(sizes)}
    idle = _binomials(num - sum(sizes))
    totals = np.array([float(math.comb(num, k)) for k in range(num + 1)])
    wins = {size: np.zeros(num + 1) for size in counts}
    for m in range(1, max(sizes, default=0) + 1):
        level = sum(count for size, count in counts.items() if size >= m)
        nodes, weights = np.polynomial.legendre.leggauss(level // 2 + 1)
        for y, share in zip((nodes + 1) / 2, weights / 2, strict=True):
            factors = {size: _class_polynomial(size, m, y) for size in counts}
            for size in counts:
                if size >= m:
                    others = _product(idle, factors, {**counts, size: counts[size] - 1}, num)
                    ways = share * math.comb(size, m) * others[: num + 1 - m]
                    wins[size][m : m + len(ways)] += ways
    return {size: chance / totals for size, chance in wins.items()}


def _binomials(n: int) -> Array:
    return np.array([float(math.comb(n, u)) for u in range(n + 1)])


def _class_polynomial(size: int, m: int, y: float) -> Array:
    """Return sum over u < m of C(size, u) x^u, plus y C(size, m) x^m: a rival with fewer votes, or level."""
    terms = _binomials(size)[: m + 1]
    if size >= m:
        terms[m] *= y
    return terms


def _product(start: Array, factors: Mapping[int, Array], counts: Mapping[int, int], degree: int) -> Array:
    result = start
    for size, count in counts.items():
        for _ in range(count):
            result = np.asarray(np.convolve(result, factors[size])[: degree + 1], dtype=np.float64)
    return result
