"""Oracles 3, 4, 5, 31: votes against the exact multinomial, invariances, and answers as equivalence classes."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evals.numbers.metrics import Vote, majority_at_k
from tests.oracles.tools import ballots
from ttc import answers
from ttc.answers import kind_of
from ttc.choosing.selection import choose, tally, vote

KEY, TEXT_KEY = kind_of("math").key, kind_of("exact").key

NAMES = "abc"


def law_of_majority(p: tuple[float, ...], k: int) -> float:
    """P(class 0 wins a vote of k), ties shared evenly, by summing over all multinomial counts."""
    total = 0.0
    for counts in itertools.product(range(k + 1), repeat=len(p)):
        if sum(counts) == k and counts[0] == max(counts):
            ways = math.factorial(k)
            for count, share in zip(counts, p, strict=True):
                ways = ways / math.factorial(count) * share**count
            total += ways / counts.count(max(counts))
    return total


PUBLISHED = [
    ((0.4, 0.35, 0.25), {1: 0.4, 2: 0.4, 3: 0.422, 4: 0.436, 8: 0.47129, 16: 0.52352}),
    ((0.3, 0.4, 0.3), {1: 0.3, 2: 0.3, 3: 0.288, 4: 0.2808, 8: 0.26076, 16: 0.22945}),
    ((0.5, 0.5), {1: 0.5, 2: 0.5, 5: 0.5, 8: 0.5}),
]


@pytest.mark.parametrize(("p", "values"), PUBLISHED)
def test_majority_follows_the_multinomial_with_shared_ties(p, values) -> None:
    for k, expected in values.items():
        assert math.isclose(law_of_majority(p, k), expected, abs_tol=6e-6)


@pytest.mark.parametrize(("p", "values"), PUBLISHED)
def test_the_vote_of_a_strategy_has_that_law(p, values) -> None:
    rng, runs = random.Random(3), 4000
    for k in (2, 3, 8):
        wins = 0
        for _ in range(runs):
            drawn = rng.choices(range(len(p)), p, k=k)
            chosen = vote(ballots([NAMES[d] for d in drawn], lengths=rng.sample(range(1, 999), k)), TEXT_KEY)
            wins += chosen is not None and chosen.final == "a"
        expected = law_of_majority(p, k)
        assert abs(wins / runs - expected) < 4 * math.sqrt(expected * (1 - expected) / runs)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9), st.data())
def test_sub_sampled_majority_is_the_mean_over_all_subsets_and_ignores_order(keys, data) -> None:
    k = data.draw(st.integers(1, len(keys)))
    votes = [Vote(key, key == "a") for key in keys]
    shuffled = data.draw(st.permutations(votes))
    total = 0.0
    for subset in itertools.combinations(keys, k):
        counts = [subset.count(name) for name in NAMES]
        if counts[0] == max(counts) > 0:
            total += 1 / counts.count(max(counts))
    expected = total / math.comb(len(keys), k)
    assert math.isclose(majority_at_k(votes, k), expected, abs_tol=1e-9)
    assert math.isclose(majority_at_k(shuffled, k), expected, abs_tol=1e-9)


BALLOTS = st.lists(
    st.tuples(st.sampled_from(["1", "2", "1/2", "0.5", None]), st.integers(0, 64), st.integers(1, 50)),
    min_size=1,
    max_size=9,
)


@given(BALLOTS, st.randoms(use_true_random=False), st.integers(-5, 5))
def test_a_weighted_vote_ignores_scale_order_and_spelling(rows, rng, power) -> None:
    finals, scores, lengths = ([row[i] for row in rows] for i in range(3))
    base = choose(ballots(finals, [s / 64 for s in scores], lengths), KEY, "weighted")
    scaled = choose(ballots(finals, [s / 64 * 2.0**power for s in scores], lengths), KEY, "weighted")
    assert (base and base.path) == (scaled and scaled.path)
    candidates = ballots(finals, [s / 64 for s in scores], lengths)
    rng.shuffle(candidates)
    assert choose(candidates, KEY, "weighted") == base
    respelled = [{"1/2": "\\frac{1}{2}", "1": "1.0"}.get(f, f) if f else None for f in finals]
    other = choose(ballots(respelled, [s / 64 for s in scores], lengths), KEY, "weighted")
    assert (base and base.path) == (other and other.path)


@given(BALLOTS)
def test_constant_weights_give_the_majority_and_one_heavy_weight_gives_its_own_answer(rows) -> None:
    finals, lengths = [row[0] for row in rows], [row[2] for row in rows]
    equal = choose(ballots(finals, [0.5] * len(rows), lengths), KEY, "weighted")
    assert equal is None or equal.path == vote(ballots(finals, lengths=lengths), KEY).path  # type: ignore[union-attr]
    heavy = [1000.0 if i == 0 else 1.0 for i in range(len(rows))]
    if finals[0] is not None:
        for select in ("weighted", "argmax"):
            chosen = choose(ballots(finals, heavy, lengths), KEY, select)  # type: ignore[arg-type]
            assert chosen is not None and chosen.path == (0,)


@given(BALLOTS)
def test_the_tally_counts_what_the_vote_counts(rows) -> None:
    candidates = ballots([row[0] for row in rows])
    counts = tally(candidates, KEY)
    assert sum(counts) == sum(row[0] is not None for row in rows)
    assert counts == sorted(counts, reverse=True)
    winner = vote(candidates, KEY)
    if winner is not None:
        same = [c for c in candidates if c.final and answers.key(c.final, "math") == answers.key(winner.final, "math")]
        assert len(same) == counts[0]


@example("a+\\")
@given(st.text(alphabet="0123456789./\\{}frac-+^_xab,() $%", max_size=40))
def test_keys_are_total_and_stable_so_that_equality_of_keys_is_an_equivalence(text: str) -> None:
    for kind in ("math", "number", "choice", "exact"):
        key = answers.key(text, kind)
        assert isinstance(key, str) and key == answers.key(text, kind)
        assert answers.key(f" {text} ", kind) == answers.key(text.strip(), kind)


def test_a_tie_goes_to_the_class_with_the_shortest_path_then_to_the_first() -> None:
    assert vote(ballots(["1", "2"], lengths=[9, 3]), TEXT_KEY).final == "2"  # type: ignore[union-attr]
    assert vote(ballots(["1", "2"], lengths=[3, 9]), TEXT_KEY).final == "1"  # type: ignore[union-attr]
    assert vote(ballots(["1", "2"], lengths=[3, 3]), TEXT_KEY).final == "1"  # type: ignore[union-attr]
    assert vote(ballots([None, "2"], lengths=[1, 9]), TEXT_KEY).final == "2"  # type: ignore[union-attr]


def test_spellings_of_one_answer_are_one_class() -> None:
    finals = ["7", "1/2", "\\frac{1}{2}", "7", "0.5"]
    assert vote(ballots(finals), KEY).final == "1/2"  # type: ignore[union-attr]
    assert tally(ballots(finals), KEY) == [3, 2]
