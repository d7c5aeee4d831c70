"""The draw contract: a number is drawn once, and what has finished comes back when a budget ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.ttc.questions import ask
from tests.ttc.test_budgets import Clock, Jumping
from ttc.answers import kind_of
from ttc.core import Answer, Budget, Sampling, Score, Scorer, Usage
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.errors import BudgetExceeded, ConfigError
from ttc.scorers.constant import constant
from ttc.session.session import Session
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.knockout import knockout
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree

REPLIES = [r"\boxed{1}", r"\boxed{2}", r"\boxed{2}", r"\boxed{3}"]


def in_session(work: Callable[[Session], Awaitable[Any]], budget: Budget | None = None) -> Any:
    engine = ScriptedEngine(replies({"q": REPLIES}), jitter=3)

    async def go() -> Any:
        return await work(
            Session(ask("q"), engine, answers=kind_of("math"), seed=1, sampling=Sampling(max_tokens=40), budget=budget)
        )

    return asyncio.run(go())


def test_a_count_takes_the_next_free_numbers() -> None:
    async def work(session: Session) -> list[int]:
        root = session.render()
        drawn = [*await session.generate(root, 2), *await session.generate(root, range(5, 6))]
        drawn += await session.generate(root, 2)
        below = await session.generate(root.then(drawn[0]), 1)
        return [completion.path[-1] for completion in [*drawn, *below]]

    assert in_session(work) == [0, 1, 5, 6, 7, 0]


def test_a_number_that_is_asked_for_twice_is_refused_by_name_and_costs_nothing() -> None:
    async def work(session: Session) -> None:
        root = session.render()
        await session.generate(root, range(3))
        spent = session.usage
        with pytest.raises(ConfigError, match=r"draw 1 at the root was asked for twice.*range\(3, 5\)"):
            await session.generate(root, range(1, 3))
        with pytest.raises(ConfigError, match=r"draw 0 at path \[2\]"):
            child = root.then((await session.generate(root, range(3, 4)))[0])
            child = type(child)(**{**{f: getattr(child, f) for f in child.__slots__}, "path": (2,)})
            await session.generate(child, range(1))
            await session.generate(child, range(1))
        assert spent.calls == 3

    in_session(work)


def test_calls_that_overlap_name_their_numbers() -> None:
    async def work(session: Session) -> list[int]:
        root = session.render()
        first = asyncio.ensure_future(session.generate(root, range(0, 2)))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match=r"draws 0 to 1 are in flight.*range\(2, 4\)"):
            await session.generate(root, 2)
        with pytest.raises(ConfigError, match="draw 1 at the root was asked for twice"):
            await session.generate(root, range(1, 3))
        second = await session.generate(root, range(2, 4))
        return [completion.path[-1] for completion in [*await first, *second]]

    assert in_session(work) == [0, 1, 2, 3]


def test_numbers_that_the_budget_did_not_pay_for_are_still_free() -> None:
    async def work(session: Session) -> list[int]:
        root = session.render()
        first = await session.generate(root, range(0, 8))
        return [len(first), session._draws._places[()].next_number]

    assert in_session(work, Budget(calls=3)) == [3, 3]


def test_a_draw_goes_on_under_its_number_only_from_a_prompt_that_begins_with_its_own() -> None:
    async def work(session: Session) -> None:
        root = session.render()
        (part,) = await session.generate(root, range(1), sampling=Sampling(max_tokens=3, seed=1))
        longer = root.extend(part.token_ids, part.text)
        assert (await session.generate(longer, range(1)))[0].finished
        other = root.extend((65, *part.token_ids), "A" + part.text)
        with pytest.raises(ConfigError, match="asked for twice"):
            await session.generate(other, range(1))

    in_session(work)


def test_fewer_draws_than_are_needed_is_the_budgets_end_and_none_at_all_may_be_asked_for() -> None:
    async def work(session: Session) -> None:
        root = session.render()
        assert len(await session.generate(root, 3)) == 2
        assert await session.generate(root, 1, least=0) == []
        assert session.spent and session.exhausted
        with pytest.raises(BudgetExceeded):
            await session.generate(root, 1)

    in_session(work, Budget(calls=2))


def test_a_draw_that_a_stop_string_ended_is_in_hand_when_the_budget_ends() -> None:
    async def one_by_one(problem: Any, session: Session) -> Answer:
        while True:
            await session.generate(session.render(), 1)

    engine = ScriptedEngine(replies({"q": [r"\boxed{5} END of it all"]}))
    sampling, budget = Sampling(max_tokens=40, stop=("END",)), Budget(calls=2)
    answer = asyncio.run(solve(ask("q"), engine=engine, strategy=one_by_one, seed=0, sampling=sampling, budget=budget))
    assert (answer.final, answer.stop_cause, len(answer.candidates)) == ("5", "budget", 2)


@pytest.mark.parametrize("stops", [{"stop": ("END",)}, {"stop_token_ids": (65,)}])
def test_a_search_refuses_stops_that_would_end_an_answer_before_it_draws(stops: dict[str, Any]) -> None:
    engine = ScriptedEngine(replies({"q": REPLIES}))
    work = solve(ask("q"), engine=engine, strategy=partial(tree, scorer=constant()), seed=0, sampling=Sampling(**stops))
    with pytest.raises(ConfigError, match=r"leave out sampling\.stop"):
        asyncio.run(work)
    assert engine.counters() == Usage()


class Paced(ScriptedEngine):
    """Draw i takes i + 1 seconds."""

    async def _wait(self, path: tuple[int, ...]) -> None:
        await asyncio.sleep(1.0 + path[-1])


class SlowScorer(Scorer):
    """Takes ten seconds to score."""

    async def score(self, prompts: Any, on_usage: Any) -> list[Score]:
        await asyncio.sleep(10.0)
        return [Score(0.5) for _ in prompts]


def timed(strategy: Any, seconds: float) -> Answer:
    clock = Clock()
    work = solve(
        ask("q"),
        engine=Paced(replies({"q": REPLIES})),
        strategy=strategy,
        seed=0,
        budget=Budget(seconds=seconds),
        clock=lambda: clock.now,
    )
    with asyncio.Runner(loop_factory=lambda: Jumping(clock)) as runner:
        return runner.run(work)


def test_draws_that_were_finished_when_time_ran_out_vote() -> None:
    answer = timed(partial(majority, n=400), 3.5)
    assert (answer.final, len(answer.candidates), answer.stop_cause) == ("2", 3, "budget")
    assert answer.usage.generated == 3 * (len(REPLIES[0]) + 1) and answer.usage.overrun > 0


def test_draws_whose_scoring_ran_out_of_time_vote_without_scores() -> None:
    answer = timed(partial(best_of_n, scorer=SlowScorer(), n=4), 6.0)
    assert (answer.final, len(answer.candidates), answer.stop_cause) == ("2", 4, "budget")
    assert {candidate.score for candidate in answer.candidates} == {None}
    assert timed(partial(tree, scorer=SlowScorer(), n=4), 6.0).final is not None


async def in_two_rounds(problem: Any, session: Session) -> Answer:
    """A strategy that has never heard of budgets."""
    root = session.render()
    first = [session.candidate(root, completion) for completion in await session.generate(root, 2)]
    second = [session.candidate(root, completion) for completion in await session.generate(root, 2)]
    return session.answer(second[-1], [*first, *second])


async def closes_nothing(problem: Any, session: Session) -> Answer:
    """A strategy that is cut before it has closed anything."""
    root = session.render()
    drawn = await session.generate(root, 3)
    scores = await session.score(Longest(), [root.then(completion) for completion in drawn])
    assert len(scores) == len(drawn)
    await session.generate(root, 50)
    await session.generate(root, 1)
    raise AssertionError("the budget has ended before")


class Longest(type(constant())):  # type: ignore[misc]
    """Prefers the answer 3, then 1."""

    async def score(self, prompts: Any, on_usage: Any) -> list[Score]:
        return [Score({"1": 0.5, "2": 0.1}.get(prompt.generated_text[-2], 0.9)) for prompt in prompts]


def test_a_strategy_that_the_budget_cuts_leaves_the_answer_it_has_closed() -> None:
    engine = ScriptedEngine(replies({"q": REPLIES}))
    for calls in (2, 3):
        answer = asyncio.run(solve(ask("q"), engine=engine, strategy=in_two_rounds, seed=0, budget=Budget(calls=calls)))
        assert answer.stop_cause == "budget" and answer.final is not None and len(answer.candidates) == calls
        assert answer.usage.calls == calls


def test_what_was_drawn_and_never_closed_is_judged_by_its_score() -> None:
    engine = ScriptedEngine(replies({"q": REPLIES}))
    answer = asyncio.run(solve(ask("q"), engine=engine, strategy=closes_nothing, seed=0, budget=Budget(calls=3)))
    assert (answer.final, len(answer.candidates)) == ("1", 3)


def test_questions_of_the_strategys_own_are_no_answers() -> None:
    engine = ScriptedEngine(lambda prompt, path, key: "A" if "compare" in prompt.text.lower() else r"\boxed{1}")
    answer = asyncio.run(
        solve(ask("q"), engine=engine, strategy=partial(knockout, n=4), seed=0, budget=Budget(calls=3))
    )
    assert answer.final == "1" and all(candidate.final == "1" for candidate in answer.candidates)


def test_a_budget_that_no_answer_fits_into_is_refused_before_it_is_spent() -> None:
    from ttc.session.thinking import Thinking

    engine = ScriptedEngine(replies({"q": REPLIES}), thinking=True)
    for budget, thinking, field in (
        (Budget(calls=1), Thinking(max_tokens=5), "budget.calls=1"),
        (Budget(tokens=8), Thinking(min_tokens=8), "thinking.min_tokens=8"),
    ):
        with pytest.raises(ConfigError, match=field):
            asyncio.run(solve(ask("q"), engine=engine, strategy=majority, seed=0, budget=budget, thinking=thinking))
    assert engine.counters() == Usage()


def test_a_least_thought_that_leaves_no_token_of_a_draw_for_an_answer_is_refused_with_both_fields() -> None:
    from ttc.session.thinking import Thinking
    from ttc.strategies.budget_forcing import budget_forcing

    engine = ScriptedEngine(replies({"q": REPLIES}), thinking=True)
    forced = partial(budget_forcing, min_thinking=8)
    for strategy, thinking in ((majority, Thinking(min_tokens=8)), (forced, Thinking())):
        with pytest.raises(
            ConfigError, match=r"thinking.min_tokens = 8 .* sampling.max_tokens = 8 .* raise max_tokens"
        ):
            asyncio.run(
                solve(
                    ask("q"),
                    engine=engine,
                    strategy=strategy,
                    seed=0,
                    thinking=thinking,
                    sampling=Sampling(max_tokens=8),
                )
            )
    assert engine.counters() == Usage()


def test_a_thought_that_the_budget_would_cut_is_handed_over_while_nothing_is_in_hand() -> None:
    thought = "a long thought " * 20

    def script(prompt: Any, path: Any, key: int) -> str:
        said = prompt.generated_text
        whole = f"{thought}</think>" + r"\boxed{8}"
        return whole[len(said) :] if whole.startswith(said) else r"\boxed{7}"

    engine = ScriptedEngine(script, thinking=True)
    answer = asyncio.run(
        solve(ask("q"), engine=engine, strategy=partial(majority, n=4), seed=0, budget=Budget(tokens=90))
    )
    assert (answer.final, answer.stop_cause) == ("7", "budget")
    assert answer.usage.tokens <= 90
    whole = asyncio.run(
        solve(ask("q"), engine=engine, strategy=partial(majority, n=4), seed=0, budget=Budget(tokens=700))
    )
    assert whole.final == "8" and not any(c.final == "7" for c in whole.candidates)
