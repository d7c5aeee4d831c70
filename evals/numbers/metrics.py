"""Metrics of one problem's pool of candidates, each an exact expectation over random sub-samples of size k.

A pool is the n candidates that were drawn for one problem. "At k" always means: the expected value over all subsets of
k of the n, never "the first k". So one run with n = 64 gives every smaller budget, paired.

    pass@k       1 - C(n-c, k) / C(n, k)                     (Chen et al. 2021, arXiv:2107.03374)
    best@k       the best-scored of k is right: sum over ranks, by sorting
    maj@k        the largest answer class of k is right: multivariate hypergeometric expectation
    weighted@k   the class with the largest sum of scores is right: all subsets when few, else Monte Carlo

Ties are broken uniformly. A candidate without an answer belongs to no class and can win nothing; one without a score
wins neither best@k nor weighted@k. Where nothing wins, nothing is right.

Cost: pass@k and best@k are immediate; maj@k at all powers of two takes about 1 ms for n = 16, 0.1 s for n = 1,000 and
0.7 s for n = 10,000, remembered by the sizes of the classes.
Left out: pools that are not exchangeable (beams of one tree): sub-sampling them is not the smaller search.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_SUBSETS = 500
"""Up to this many subsets the weighted vote is enumerated; beyond, it is sampled."""

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
    """Return the chance that k of `num` candidates, drawn without replacement, include a correct one."""
    _check_k(num, k)
    return 1.0 - math.comb(num - num_correct, k) / math.comb(num, k)


def best_at_k(votes: Sequence[Vote], k: int) -> float:
    """Return the chance that the best-scored of k candidates is right; equal scores share it evenly."""
    _check_k(len(votes), k)
    ranks: dict[float, list[bool]] = defaultdict(list)
    for vote in votes:
        if vote.score is not None:
            ranks[vote.score].append(vote.correct)
    below, left, chance = _chances_below(len(votes), k), len(votes), 0.0
    for score in sorted(ranks, reverse=True):
        tied = ranks[score]
        chance += float(below[left] - below[left - len(tied)]) * sum(tied) / len(tied)
        left -= len(tied)
    return chance


def majority_at_k(votes: Sequence[Vote], k: int) -> float:
    """Return the chance that the largest class among k candidates is right; equal classes share it evenly.

    A class whose members got different verdicts counts with its share of correct ones.
    """
    _check_k(len(votes), k)
    classes = _classes(votes)
    counts = Counter(len(members) for members in classes)
    wins = _win_chances(tuple(sorted(counts.items())), len(votes), k)
    return sum(wins[len(members)] * sum(members) / len(members) for members in classes)


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


def _chances_below(num: int, k: int) -> Array:
    """Return for l from 0 to num the chance C(l, k) / C(num, k) that k of num candidates are all among l of them."""
    chances = np.zeros(num + 1)
    sizes = np.arange(num, k, -1)
    chances[k:] = np.cumprod(np.concatenate(([1.0], (sizes - k) / sizes)))[::-1]
    return chances


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


NEGLIGIBLE = 1e-25
"""Outcomes less likely than this are left out of a vote: far below the rounding of its sum."""


@functools.lru_cache(maxsize=8192)
def _win_chances(counts: tuple[tuple[int, int], ...], num: int, k: int) -> Mapping[int, float]:
    """Return for each class size the chance that one given class of that size wins the vote among k of `num`.

    `counts` are pairs (size, how many classes have it), by size; the other candidates abstain. The class wins with m
    votes when no other has more; with t - 1 others level it wins 1/t of the time, and 1/t is the integral of y^(t-1)
    over [0, 1], which Gauss-Legendre nodes give. What is left is the coefficient of x^k in a product of polynomials in
    x: one factor per class, the power of x counts the candidates taken. Each candidate is taken with chance k / num on
    its own, so every number is a chance, however large the pool. The coefficient is read off values on the unit circle,
    as many as the number taken spreads over, and all are scaled so that some class wins.
    """
    if k == num or not counts:
        return {size: float(size == counts[-1][0]) / counts[-1][1] for size, _ in counts}
    sizes, numbers = np.array(counts).T
    laws = [_binomial(size, k / num) for size, _ in counts]
    most = np.array([min(_most_votes(law), k) for law in laws])
    lowest = _fewest_to_win(laws, numbers, most[-1])
    turns, weights, one = _unit_circle(num, k)
    wins = np.zeros(len(laws))
    fewer = np.zeros((len(laws), len(one)), dtype=complex)  # of each class the sum over u < m of its chances, times x^u
    for m in range(_first_votes(laws, most, lowest), most[-1] + 1):
        rivals = slice(np.searchsorted(most, m), None)  # the others never have m votes: theirs are as good as idle
        chances = np.array([law[m] for law in laws[rivals]])
        level = chances[:, None] * turns[m * np.arange(len(one)) % len(turns)]
        if m >= lowest:
            idle = np.exp(one * (num - sizes[rivals] @ numbers[rivals]))
            rest = weights * idle * turns[(m - k) * np.arange(len(one)) % len(turns)]
            for y, share in zip(*_nodes(min(int(numbers[rivals].sum()), k // m)), strict=True):
                wins[rivals] += share * chances * (_others(fewer[rivals] + y * level, numbers[rivals]) @ rest).real
        fewer[rivals] += level
    won = 1.0 - _chances_below(num, k)[num - int(sizes @ numbers)]  # unless all k abstain, one class wins
    return dict(zip(sizes.tolist(), (wins / (wins @ numbers) * won).tolist(), strict=True))


def _binomial(n: int, chance: float) -> Array:
    """Return the chances of 0 to n successes, by the ratios of neighbours, outwards from the likeliest."""
    ratios = (n - np.arange(n)) / (np.arange(n) + 1) * (chance / (1 - chance))
    mode = min(int((n + 1) * chance), n)
    law = np.concatenate((np.cumprod(1 / ratios[:mode][::-1])[::-1], [1.0], np.cumprod(ratios[mode:])))
    return np.asarray(law / law.sum())


def _most_votes(law: Array) -> int:
    """Return how many votes a class may have."""
    return int((law[::-1].cumsum()[::-1] >= NEGLIGIBLE).sum()) - 1


def _fewest_to_win(laws: Sequence[Array], numbers: npt.NDArray[np.int64], most: int) -> int:
    """Return the fewest votes that no class may have more of."""
    surprise = np.zeros(most + 1)
    for law, number in zip(laws, numbers, strict=True):
        below = law.cumsum()[: most + 1]
        surprise[: len(below)] -= number * np.log(np.maximum(below, NEGLIGIBLE))
    return max(int((surprise > -math.log(NEGLIGIBLE)).sum()), 1)


def _first_votes(laws: Sequence[Array], most: npt.NDArray[np.int64], lowest: int) -> int:
    """Return the fewest votes of a class that may have `lowest`."""
    return min(int((law.cumsum() < NEGLIGIBLE).sum()) for law in laws[int(np.searchsorted(most, lowest)) :])


def _unit_circle(num: int, k: int) -> tuple[npt.NDArray[np.complex128], Array, npt.NDArray[np.complex128]]:
    """Return the roots of unity, the weights of the upper half of them, and there the logarithm of one candidate.

    The values in the lower half are the conjugates of those in the upper one. The number of roots is odd and such that
    by Bernstein's inequality the number of candidates taken is nearer to k than that, but for a chance of e^-42.
    """
    chance = k / num
    spread = num * chance * (1 - chance)
    count = min(num + 1, math.ceil(14 + math.sqrt(14**2 + 84 * spread))) | 1
    angles = 2 * np.pi * np.arange(count) / count
    half = angles[: count // 2 + 1]
    chord = 2 * np.sin(half / 2) ** 2
    size = np.log1p(-2 * chance * (1 - chance) * chord) / 2
    one = size + 1j * np.arctan2(chance * np.sin(half), 1 - chance * chord)
    return np.exp(1j * angles), np.where(half > 0, 2.0, 1.0) / count, one


@functools.lru_cache(maxsize=1024)
def _nodes(ties: int) -> tuple[Array, Array]:
    """Return nodes and weights on [0, 1] that integrate y^t for t < `ties`.

    Exact where they are few; y^t is a polynomial of degree sqrt(40 t) but for e^-40, so many ties take no more nodes.
    """
    nodes, weights = np.polynomial.legendre.leggauss(min((ties + 1) // 2, math.ceil(4 * math.sqrt(ties)) + 8))
    return (nodes + 1) / 2, weights / 2


def _others(factors: npt.NDArray[np.complex128], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.complex128]:
    """Return for each kind of class the product of the factors of all classes but one of its kind."""
    fewer = factors ** (numbers - 1)[:, None]
    whole = fewer * factors
    ones = np.ones_like(whole[:1])
    before = np.cumprod(np.concatenate((ones, whole[:-1])), axis=0)
    after = np.cumprod(np.concatenate((ones, whole[:0:-1])), axis=0)[::-1]
    return np.asarray(before * after * fewer)
