"""An engine's own cap on thinking: asked for only where it can be honoured, counted again, cut where it is not held."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.ttc.capping import ANSWER, BARE, THOUGHT, Capping, think
from ttc.answers import kind_of
from ttc.core import Budget, Completion, Enforced, Message, Problem, Sampling, Strategy
from ttc.engines.scripted import ScriptedEngine
from ttc.session.session import Session
from ttc.session.thinking import Thinking, controlled, split
from ttc.strategies.budget_forcing import budget_forcing
from ttc.strategies.direct import direct


def drawn(engine: ScriptedEngine, **fields: object) -> tuple[Completion, list[Enforced]]:
    thinking = Thinking(**{"handover": BARE, **fields})  # type: ignore[arg-type]
    prompt, held = engine.render([Message("user", "x")], True), []
    sampling = Sampling(temperature=0, max_tokens=100, logprobs=True)
    completion = asyncio.run(controlled(engine, prompt, sampling, 0, thinking, lambda usage: None, None, held.append))
    return completion, held


@pytest.mark.parametrize("cap", [1, 4, 9, 50])
def test_an_engine_that_holds_its_cap_gives_what_counting_ids_gives(cap: int) -> None:
    engine = Capping()
    native, held = drawn(engine, max_tokens=cap)
    counted, by_ids = drawn(ScriptedEngine(think, thinking=True), max_tokens=cap)
    assert (held, by_ids) == (["native"], ["ids"])
    assert engine.caps == [cap]
    assert (native.token_ids, native.injected) == (counted.token_ids, counted.injected)
    assert native.logprobs == counted.logprobs


@pytest.mark.parametrize("late", [1, 3])
def test_an_engine_that_is_late_is_cut_at_the_token(late: int) -> None:
    engine = Capping(late)
    completion, held = drawn(engine, max_tokens=4)
    assert held == ["ids"]
    assert completion.token_ids[:-1] == engine.encode(THOUGHT[:4] + BARE + ANSWER)
    assert completion.injected == ((4, 5),)


def test_a_thought_that_is_opened_again_goes_on_under_count() -> None:
    engine = Capping(again=True)
    completion, held = drawn(engine, max_tokens=4)
    parts = split(completion.token_ids, True, engine.capabilities)
    assert held == ["ids"] and len(parts.thinking) <= 4 and not parts.inside
    assert engine.caps == [4, None]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 4, "handover": f" Enough.{BARE}"},
        {"max_tokens": 4, "min_tokens": 2},
        {"max_tokens": 4, "at_cap": "stop"},
    ],
)
def test_what_an_engine_cannot_do_it_is_not_asked(fields: dict[str, object]) -> None:
    engine = Capping()
    _, held = drawn(engine, **fields)
    assert set(held) == {"ids"} and set(engine.caps) == {None}


def test_an_answer_says_how_its_budget_was_held() -> None:
    def solved(engine: ScriptedEngine, thinking: Thinking, strategy: Strategy = direct) -> str:
        session = Session(
            Problem("p", (Message("user", "x"),)),
            engine,
            answers=kind_of("math"),
            seed=1,
            sampling=Sampling(temperature=0, max_tokens=100),
            thinking=thinking,
            budget=Budget(tokens=500),
        )
        return asyncio.run(strategy(session.problem, session)).enforced

    assert solved(Capping(), Thinking(max_tokens=4, handover=BARE)) == "native"
    assert solved(Capping(late=1), Thinking(max_tokens=4, handover=BARE)) == "ids"
    assert solved(Capping(), Thinking(max_tokens=4)) == "ids"
    assert solved(Capping(), Thinking()) == "none"
    for late, held in ((0, "native"), (1, "ids")):
        assert solved(Capping(late=late), Thinking(handover=BARE), partial(budget_forcing, max_thinking=4)) == held
    assert solved(Capping(), Thinking(handover=BARE), budget_forcing) == "none"
