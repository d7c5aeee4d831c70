"""Allocation policies: pure, exact, and monotone in the scores."""

from __future__ import annotations

import asyncio
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ttc.questions import ask
from ttc.config.registry import POLICIES
from ttc.core import Scorer
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.scorers.constant import ConstantScorer
from ttc.scorers.ensemble import EnsembleScorer
from ttc.search.policies.beam import beam
from ttc.search.policies.dvts import dvts
from ttc.search.tree import make_policy
from ttc.session.solve import solve
from ttc.strategies.tree import tree

PLAIN = [name for name in POLICIES.names() if hasattr(make_policy(name, 4), "allocate")]
SPLITTING = [name for name in POLICIES.names() if hasattr(make_policy(name, 4), "subtrees")]
SCORES = st.lists(st.one_of(st.floats(0, 1), st.just(float("-inf"))), min_size=1, max_size=40)


@pytest.mark.parametrize("name", PLAIN)
@given(scores=SCORES, width=st.integers(1, 64), m=st.integers(1, 9))
def test_the_width_is_used_exactly_and_better_nodes_get_no_fewer_children(
    name: str, scores: list[float], width: int, m: int
) -> None:
    counts = make_policy(name, m).allocate(scores, width)
    assert sum(counts) == width and min(counts) >= 0 and len(counts) == len(scores)
    for i, a in enumerate(scores):
        for j, b in enumerate(scores):
            if a > b or (a == b and i < j):
                assert counts[i] >= counts[j]


@pytest.mark.parametrize("name", SPLITTING)
@given(n=st.integers(1, 300), m=st.integers(1, 40))
def test_subtrees_share_n_exactly(name: str, n: int, m: int) -> None:
    widths = make_policy(name, m).subtrees(n)
    assert sum(widths) == n and min(widths) >= 1


@given(SCORES, st.integers(1, 9), st.integers(1, 9))
def test_beam_keeps_width_over_m_nodes_and_dvts_one(scores: list[float], keep: int, m: int) -> None:
    counts = beam(beam_width=m).allocate(scores, keep * m)
    assert sum(count > 0 for count in counts) == min(keep, len(scores))
    assert sum(count > 0 for count in dvts(beam_width=m).allocate(scores, keep * m)) == 1


class Outcome(Scorer):
    """A scorer of whole answers, which must not be asked."""

    whole_answers = True

    async def score(self, prompts, on_usage):
        raise AssertionError("a scorer of whole answers was asked about steps")


@pytest.mark.parametrize("scorer", [Outcome(), EnsembleScorer([Outcome(), ConstantScorer()])])
def test_a_search_refuses_a_scorer_without_step_scores_before_any_token(scorer) -> None:
    engine = simulated()
    with pytest.raises(ConfigError, match="needs a scorer of steps"):
        asyncio.run(solve(ask("q"), engine=engine, strategy=functools.partial(tree, scorer=scorer), seed=1))
    assert engine.counters().calls == 0
