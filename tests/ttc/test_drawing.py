"""Strategies draw as they declare, and a server reads it off a strategy that nobody here knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serve.requests.search import _offer
from tests.ttc.conformance import problems, small, talkative
from ttc.config.registry import STRATEGIES
from ttc.config.signatures import drawing, drawing_of
from ttc.core import Answer, Problem
from ttc.session.session import Session
from ttc.session.solve import solve
from ttc.strategies.adaptive import adaptive

WHOLE = [name for name in STRATEGIES.names() if drawing_of(STRATEGIES.load(name)).whole]


@pytest.mark.parametrize("name", WHOLE)
def test_a_strategy_of_whole_draws_asks_for_each_of_them_once(name: str) -> None:
    answer = asyncio.run(solve(problems(1)[0], engine=talkative(), strategy=small(STRATEGIES.load(name)), seed=3))
    paths = [event.path for event in answer.trace if event.kind == "generate"]
    assert sorted(paths) == sorted(candidate.path for candidate in answer.candidates)


@pytest.mark.parametrize(
    ("options", "width"), [({}, 1), ({"wave": 3}, 3), ({"rule": "window"}, 5), ({"rule": "window", "window": 2}, 2)]
)
def test_a_vote_in_waves_runs_so_many_draws_at_once(options: dict[str, Any], width: int) -> None:
    assert _offer("adaptive", adaptive, 64).at_once(options) == width


def test_a_strategy_of_a_users_own_says_itself_how_wide_its_waves_are() -> None:
    @drawing(wave=lambda step: 2 * step)
    async def mine(problem: Problem, session: Session, *, n: int = 16, step: int = 3) -> Answer:
        raise NotImplementedError

    async def plain(problem: Problem, session: Session, *, n: int = 16) -> Answer:
        raise NotImplementedError

    offer = _offer("mine", mine, 64)
    assert (offer.at_once({}), offer.at_once({"step": 4}), offer.at_once({"n": 2}), offer.width({})) == (6, 8, 2, 16)
    assert _offer("plain", plain, 64).at_once({}) == 16, "without a declaration all draws run at once"
