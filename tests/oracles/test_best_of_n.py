"""Oracles 6 to 10: best-of-n with imperfect verifiers, its divergence from the base, soft and pessimistic selection."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.oracles.tools import accuracy, ballots, near
from ttc import seeds
from ttc.answers import kind_of
from ttc.choosing.selection import choose, pessimistic_weights, pick, soft_weights
from ttc.core import Score, Scorer, Usage
from ttc.engines.simulated import GOOD, last_state
from ttc.strategies.best_of_n import best_of_n

KEY = kind_of("math").key

SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=30)


class Judge(Scorer):
    """Scores a finished path by whether it is right, with given rates; hacked ones beat all."""

    def __init__(self, tpr: float, fpr: float, hacked: float = 0.0) -> None:
        self.tpr, self.fpr, self.hacked = tpr, fpr, hacked

    async def score(self, prompts, on_usage):
        return [self.one(prompt, on_usage) for prompt in prompts]

    def one(self, prompt, on_usage) -> Score:
        on_usage(Usage(scored=len(prompt.generated_ids)))
        right = last_state(prompt.generated_text) == GOOD
        u = seeds.uniform(seeds.derive(9, prompt.problem_id, prompt.path), 0)
        if not right and seeds.uniform(seeds.derive(8, prompt.problem_id, prompt.path), 0) < self.hacked:
            return Score(2.0)
        return Score(float(u < (self.tpr if right else self.fpr)))


def law_of_best(p: float, tpr: float, fpr: float, n: int) -> float:
    a = p * tpr + (1 - p) * fpr
    missed = (1 - a) ** n
    return (1 - missed) * p * tpr / a + missed * p * (1 - tpr) / (1 - a)


def test_the_published_values_of_the_binary_verifier_law() -> None:
    for n, expected in {1: 0.2, 4: 0.46181, 16: 0.65906}.items():
        assert math.isclose(law_of_best(0.2, 0.8, 0.1, n), expected, abs_tol=6e-6)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_best_of_n_with_a_binary_verifier_follows_its_law(n: int) -> None:
    runs = 1000 // n + 200
    got = accuracy(partial(best_of_n, scorer=Judge(0.8, 0.1), n=n), runs, p=0.2, steps=1)
    assert near(got, law_of_best(0.2, 0.8, 0.1, n), runs)


@pytest.mark.parametrize("n", [4, 32])
def test_a_hackable_scorer_is_over_optimised_as_its_law_says(n: int) -> None:
    p, h, runs = 0.6, 0.15, 250
    got = accuracy(partial(best_of_n, scorer=Judge(1.0, 0.0, h), n=n), runs, p=p, steps=1)
    clean = 1 - (1 - p) * h  # no hacked sample, and one right among the rest
    assert near(got, clean**n - (clean - p) ** n, runs)


def test_the_divergence_of_best_of_n_from_its_base_stays_below_its_bound() -> None:
    def kl(m: int, n: int) -> float:
        top = [((i + 1) / m) ** n - (i / m) ** n for i in range(m)]
        return sum(q * math.log(q * m) for q in top if q)

    bound = math.log(4) - 3 / 4
    assert math.isclose(bound, 0.63629, abs_tol=6e-6)
    assert math.isclose(kl(10, 4), 0.62883, abs_tol=6e-6) and kl(10, 4) <= bound
    assert kl(10_000, 4) <= bound and math.isclose(kl(10_000, 4), bound, abs_tol=1e-3)


def test_the_best_of_n_uniform_scores_is_n_over_n_plus_one() -> None:
    n, runs = 4, 4000
    best = 0.0
    for run in range(runs):
        scores = [seeds.uniform(seeds.derive(1, run), i) for i in range(n)]
        chosen = choose(ballots(["1"] * n, scores), KEY, "argmax")
        best += chosen.score / runs  # type: ignore[union-attr, operator]
    assert abs(best - n / (n + 1)) < 4 * math.sqrt(n / ((n + 1) ** 2 * (n + 2)) / runs)


@given(SCORES, st.floats(0.01, 10))
def test_soft_weights_are_the_softmax_and_pick_is_their_inverse(scores, beta) -> None:
    weights = soft_weights(scores, beta)
    assert math.isclose(math.fsum(weights), 1, rel_tol=1e-9)
    for a, wa in zip(scores, weights, strict=True):
        for b, wb in zip(scores, weights, strict=True):
            if wa > 1e-200 and wb > 1e-200:
                assert math.isclose(math.log(wa / wb), (a - b) / beta, rel_tol=1e-6, abs_tol=1e-6)
    counts = Counter(pick(weights, (i + 0.5) / 2000) for i in range(2000))
    assert all(abs(counts[i] / 2000 - weight) <= 1e-3 for i, weight in enumerate(weights))


def test_soft_selection_has_the_frequencies_of_the_softmax() -> None:
    scores, beta, runs = [0.1, 0.5, 0.9], 0.4, 3000
    law = soft_weights(scores, beta)
    drawn = Counter(
        choose(ballots(["1"] * 3, scores), KEY, "soft", beta=beta, u=seeds.uniform(7, i)).path[0]  # type: ignore[union-attr]
        for i in range(runs)
    )
    chi2 = sum((drawn[i] - runs * q) ** 2 / (runs * q) for i, q in enumerate(law))
    assert chi2 < 18.4  # the 99.99 % quantile at 2 degrees of freedom


@given(SCORES, st.floats(0.01, 10))
def test_pessimistic_weights_average_one_and_solve_their_equation(scores, beta) -> None:
    weights = pessimistic_weights(scores, beta)
    assert math.isclose(math.fsum(weights) / len(weights), 1, rel_tol=1e-9)
    assert min(weights) >= 0
    level = max(scores) - beta * max(weights)
    for score, weight in zip(scores, weights, strict=True):
        assert math.isclose(weight, max((score - level) / beta, 0), rel_tol=1e-6, abs_tol=1e-6)
    second_moment = math.fsum(w * w for w in weights) / len(weights)
    chi2 = math.fsum((w - 1) ** 2 for w in weights) / len(weights)
    assert math.isclose(second_moment, 1 + chi2, rel_tol=1e-9)
    assert max(weights) <= (max(scores) - level) / beta + 1e-9


def test_pessimistic_selection_has_the_frequencies_of_its_weights() -> None:
    scores, beta, runs = [0.1, 0.5, 0.9, 0.7], 0.5, 4000
    law = [weight / len(scores) for weight in pessimistic_weights(scores, beta)]
    drawn = Counter(
        choose(ballots(["1"] * 4, scores), KEY, "pessimistic", beta=beta, u=(i + 0.5) / runs).path[0]  # type: ignore[union-attr]
        for i in range(runs)
    )
    assert all(abs(drawn[i] / runs - share) < 1e-3 for i, share in enumerate(law))


@pytest.mark.parametrize("scores", [[0.3, 0.9, 0.5, 0.9], [1e300, 0.0], [-512.25, -512.0, -700.0]])
@pytest.mark.parametrize("beta", [1e-300, 1e-20, 1e-9])
def test_a_beta_below_the_rounding_of_the_scores_takes_the_best(scores: list[float], beta: float) -> None:
    weights, best = pessimistic_weights(scores, beta), max(scores)
    assert weights == [len(scores) / scores.count(best) if score == best else 0.0 for score in scores]
    assert scores[pick(weights, 0.999)] == best


@given(SCORES, st.floats(0.05, 5))
def test_more_pessimism_is_nearer_to_the_base(scores, beta) -> None:
    assume(max(scores) - min(scores) > 0.01)
    sharp, flat = pessimistic_weights(scores, beta), pessimistic_weights(scores, 2 * beta)
    assert max(flat) <= max(sharp) + 1e-9
    assert max(pessimistic_weights(scores, 1e6)) < 1.001


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20, unique=True))
def test_small_beta_is_argmax_for_both_rules(scores) -> None:
    candidates = ballots(["1"] * len(scores), [float(s) for s in scores])
    best = choose(candidates, KEY, "argmax")
    for rule in ("soft", "pessimistic"):
        for u in (0.0, 0.3, 0.999):
            assert choose(candidates, KEY, rule, beta=1e-3, u=u) == best  # type: ignore[arg-type]


def test_pessimism_keeps_what_argmax_loses_to_a_hacked_scorer() -> None:
    runs, scorer = 150, Judge(1.0, 0.0, 0.1)  # they differ by a third, and chance gives 0.1 at four sigmas
    kept = {
        select: accuracy(partial(best_of_n, scorer=scorer, n=32, select=select, beta=4.0), runs, p=0.7, steps=1)
        for select in ("argmax", "pessimistic")
    }
    assert kept["pessimistic"] > kept["argmax"] + 0.1


def test_a_draw_beyond_the_rounded_sum_of_the_weights_falls_on_the_last_that_has_any() -> None:
    u = math.nextafter(1.0, 0.0)
    assert [*itertools.accumulate([0.1] * 10)][-1] <= u * math.fsum([0.1] * 10)  # so no running sum reaches it
    assert pick([0.1] * 10, u) == pick([*[0.1] * 10, 0.0], u) == 9
    assert pick([0.0, *[0.1] * 10, 0.0, 0.0], u) == 10


def test_a_score_of_zero_is_a_score() -> None:
    for scores in itertools.permutations((-2.0, -0.5, 0.0)):
        chosen = choose(ballots(["1", "2", "3"], scores), KEY, "argmax")
        assert chosen is not None and chosen.path == (scores.index(0.0),)
