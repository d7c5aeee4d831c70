"""Every metric against brute force over all subsets and against its closed form."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.numbers.metrics import Vote, best_at_k, majority_at_k, pass_at_k, powers_of_two, weighted_at_k

SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5, 1.0]))
VOTES = st.builds(Vote, st.sampled_from(["a", "b", "c", "d", None]), st.booleans(), SCORES)
POOLS = st.lists(VOTES, min_size=1, max_size=8)


def class_share(votes: list[Vote], key: str, scored: bool = False) -> Fraction:
    members = [vote.correct for vote in votes if vote.key == key and not (scored and vote.score is None)]
    return Fraction(sum(members), len(members))


def brute_majority(votes: list[Vote], k: int) -> float:
    values = []
    for subset in itertools.combinations(votes, k):
        counts = Counter(vote.key for vote in subset if vote.key is not None)
        top = [key for key, count in counts.items() if count == max(counts.values())]
        values.append(sum(class_share(votes, key) for key in top) / len(top) if top else Fraction(0))
    return float(sum(values) / len(values))


def brute_weighted(votes: list[Vote], k: int) -> float:
    values = []
    for subset in itertools.combinations(votes, k):
        sums: dict[str, float] = defaultdict(float)
        for vote in subset:
            if vote.key is not None and vote.score is not None:
                sums[vote.key] += vote.score
        best = max(sums.values(), default=0.0)
        top = [key for key, total in sums.items() if math.isclose(total, best, rel_tol=1e-12)]
        values.append(sum(class_share(votes, key, scored=True) for key in top) / len(top) if top else Fraction(0))
    return float(sum(values) / len(values))


def brute_best(votes: list[Vote], k: int) -> float:
    values = []
    for subset in itertools.combinations(votes, k):
        scores = [vote.score for vote in subset if vote.score is not None]
        tied = [vote.correct for vote in subset if scores and vote.score == max(scores)]
        values.append(Fraction(sum(tied), len(tied)) if tied else Fraction(0))
    return float(sum(values) / len(values))


@given(POOLS, st.data())
@settings(max_examples=150, deadline=None)
def test_every_metric_equals_the_mean_over_all_subsets(votes: list[Vote], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(votes)))
    num_correct = sum(vote.correct for vote in votes)
    any_right = [any(vote.correct for vote in subset) for subset in itertools.combinations(votes, k)]
    assert pass_at_k(len(votes), num_correct, k) == pytest.approx(sum(any_right) / len(any_right))
    assert majority_at_k(votes, k) == pytest.approx(brute_majority(votes, k))
    assert best_at_k(votes, k) == pytest.approx(brute_best(votes, k))
    value, error = weighted_at_k(votes, k, np.random.default_rng(0))
    assert value == pytest.approx(brute_weighted(votes, k)) and error == 0.0


def test_a_large_weighted_vote_is_sampled_and_states_its_error() -> None:
    votes = [Vote("a", True, 0.6)] * 12 + [Vote("b", False, 0.5)] * 12
    value, error = weighted_at_k(votes, 12, np.random.default_rng(3), draws=2000)
    assert 0 < error < 0.02
    assert value == pytest.approx(weighted_at_k(votes, 12, np.random.default_rng(4), draws=20000)[0], abs=5 * error)


def test_large_pools_are_fast_and_stay_probabilities() -> None:
    rng = random.Random(5)
    votes = [Vote(key := str(int(rng.expovariate(0.5))), key == "0") for _ in range(128)]
    values = [majority_at_k(votes, k) for k in powers_of_two(128)]
    assert all(0 <= value <= 1 + 1e-9 for value in values)
    assert values[0] == pytest.approx(sum(vote.correct for vote in votes) / 128)


@pytest.mark.parametrize(("num", "num_right", "k"), [(40, 21, 7), (1030, 500, 515), (2000, 1010, 501), (6000, 1, 3)])
def test_a_vote_of_two_classes_in_a_pool_of_any_size_is_the_tail_of_the_hypergeometric(
    num: int, num_right: int, k: int
) -> None:
    votes = [Vote("right" if i < num_right else "wrong", i < num_right) for i in range(num)]
    ways = [math.comb(num_right, m) * math.comb(num - num_right, k - m) for m in range(k + 1)]
    won = 2 * sum(ways[k // 2 + 1 :]) + (ways[k // 2] if k % 2 == 0 else 0)
    assert majority_at_k(votes, k) == pytest.approx(float(Fraction(won, 2 * math.comb(num, k))), abs=1e-12)


def test_among_thousands_of_unlike_answers_a_vote_is_right_as_often_as_a_draw() -> None:
    votes = [Vote(str(i), i % 4 == 0) for i in range(5000)]
    assert [majority_at_k(votes, k) for k in (1, 64, 2500, 5000)] == pytest.approx([0.25] * 4, abs=1e-12)


def test_the_best_of_a_pool_of_thousands_is_that_of_all_subsets() -> None:
    votes = [Vote("a", i % 3 == 0, float(i)) for i in range(3000)]
    k = 20
    exact = Fraction(sum(math.comb(i, k - 1) for i in range(0, 3000, 3)), math.comb(3000, k))
    assert best_at_k(votes, k) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "ladder"), [(0, ()), (1, (1,)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16, 17))]
)
def test_the_ladder_of_k_ends_at_n(n: int, ladder: tuple[int, ...]) -> None:
    assert powers_of_two(n) == ladder


def test_a_k_beyond_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="between 1 and the number of candidates 3"):
        pass_at_k(3, 1, 4)
    with pytest.raises(ValueError, match=">= 0"):
        weighted_at_k([Vote("a", True, -1.0)], 1, np.random.default_rng(0))
