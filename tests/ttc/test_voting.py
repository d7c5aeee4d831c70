"""Votes: invariant to order and relabelling, exact on ties, deaf to abstentions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.tools import ballots
from tests.ttc.questions import ask
from ttc.answers import kind_of
from ttc.choosing.selection import Select, choose, fallback, vote
from ttc.config.functions import as_scorer
from ttc.config.plugins import without_scores
from ttc.core import Answer
from ttc.engines.simulated import simulated
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.tree import tree

KEY = kind_of("math").key

BALLOTS = st.lists(
    st.tuples(st.sampled_from(["1", "2", "1/2", "0.5", "7", None]), st.integers(1, 50), st.floats(0, 1)),
    min_size=1,
    max_size=9,
)


@given(BALLOTS, st.randoms())
def test_the_winner_does_not_depend_on_the_order_of_the_candidates(rows, random) -> None:
    candidates = ballots([f for f, _, _ in rows], [s for _, _, s in rows], [n for _, n, _ in rows])
    shuffled = candidates[:]
    random.shuffle(shuffled)
    for weight in (lambda c: 1.0, lambda c: c.score):
        assert vote(candidates, KEY, weight) == vote(shuffled, KEY, weight)


def test_adding_abstentions_never_changes_the_winner() -> None:
    for finals in itertools.product(["1", "2"], repeat=3):
        plain = vote(ballots(list(finals)), KEY)
        padded = vote(ballots([*finals, None, None, None, None]), KEY)
        assert plain == padded


def test_the_fallback_prefers_a_finished_path_and_has_no_final_answer() -> None:
    cut = ballots([None])[0]
    shown = fallback([cut])
    assert shown is cut and shown.final is None
    assert fallback([]) is None


@pytest.mark.parametrize("select", ["weighted", "argmax", "majority", "pessimistic", "soft"])
def test_scores_below_zero_weigh_nothing_in_a_vote_and_other_rules_take_them(select: Select) -> None:
    """Three answers of -1 would lose to one of -2: each vote more would lower the sum."""
    candidates = ballots(["1", "1", "1", "2"], [-1.0, -1.0, -1.0, -2.0])
    choice = choose(candidates, KEY, select, beta=0.01)
    if select == "weighted":
        assert choice is None
        mixed = choose(ballots(["1", "1", "2"], [-9.0, -9.0, 0.1]), KEY, select)
        assert mixed is not None and mixed.final == "2"
    else:
        assert choice is not None and choice.final == "1"


@pytest.mark.parametrize("strategy", [partial(tree, policy="beam"), partial(best_of_n, select="weighted")])
def test_what_was_drawn_for_scores_below_zero_comes_back_with_what_to_set(strategy: Callable[..., Any]) -> None:
    def run(**params: object) -> Answer:
        scorer = as_scorer(lambda prompt: -float(len(prompt.generated_text)))
        bound = partial(strategy, scorer=scorer, n=4, **params)
        return asyncio.run(solve(ask("q"), engine=simulated(p=0.9, steps=2), strategy=bound, seed=1))

    voted = run()
    assert voted.final is not None and len(voted.candidates) == 4
    assert without_scores([voted]).startswith("scores below 0 weigh nothing in a vote (4 here): set select=argmax")
    best = run(select="argmax")
    assert best.final is not None and not without_scores([best])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.randoms())
def test_sums_of_scores_do_not_depend_on_the_order_of_the_candidates(scores: list[float], random: Random) -> None:
    candidates = ballots(["1", "2"] * len(scores), [s for score in scores for s in (score, score)])
    shuffled = candidates[:]
    random.shuffle(shuffled)
    winner = choose(candidates, KEY, "weighted")
    assert winner is not None and winner.final == "1" and winner == choose(shuffled, KEY, "weighted")
