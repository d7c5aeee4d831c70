"""Strategies that compare or combine their samples keep the price of that in reserve while they draw."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.oracles.tools import SIGMAS
from tests.ttc.questions import ask
from tests.ttc.test_budgets import Clock, Jumping
from ttc.config.registry import STRATEGIES
from ttc.core import Answer, Budget, Path, Prompt, Sampling
from ttc.engines.scripted import ScriptedEngine
from ttc.session.solve import solve
from ttc.strategies.majority import majority

RIGHT = "0"
BOXES = re.compile(r"\\boxed\{(\d+)\}")
NAMES = ("aggregate", "genselect", "knockout")
ASKING = {"genselect": {"trust": 1e9}, "knockout": {"trust": 1e9}}
"""At which they ask wherever answers differ."""


def reasoner(jitter: int | None = None, longer: int = 1) -> ScriptedEngine:
    """Right in three of ten samples, of forty tokens or so; it knows a right answer when it sees one.

    It says so in an answer that is so many times as long.
    """

    def script(prompt: Prompt, path: Path, key: int) -> str:
        rng = random.Random(key)
        words, question = "a" * rng.randint(20, 60), prompt.messages[-1].content
        if question.startswith("You are"):
            words *= longer
        if "<answer_1>" in question:
            answers = [(BOXES.findall(part) or [""])[-1] for part in re.split(r"<answer_\d+>\n", question)[1:]]
            return f"{words}\nBest: {answers.index(RIGHT) + 1 if RIGHT in answers else 1}"
        if "<answer_a>" in question:
            first, second = BOXES.findall(question)
            return f"{words}\nVerdict: {'A' if first == RIGHT else 'B' if second == RIGHT else 'tie'}"
        is_right = RIGHT in BOXES.findall(question) or rng.random() < 0.3
        return f"{words}\n\\boxed{{{RIGHT if is_right else rng.randint(1, 5)}}}"

    return ScriptedEngine(script, jitter=jitter)


def strategy_of(name: str) -> Callable[..., Any]:
    """The strategy, which asks wherever answers differ."""
    return partial(STRATEGIES.load(name), **ASKING.get(name, {}))


def answer_of(name: str, number: int, budget: Budget | None, jitter: int | None = None, longer: int = 1) -> Answer:
    """Solve one problem."""
    strategy = partial(majority, n=64) if name == "majority" else strategy_of(name)
    engine = reasoner(jitter, longer)
    sampling = Sampling(max_tokens=1000)
    problem = ask(f"question {number}", "number")
    return asyncio.run(solve(problem, engine=engine, strategy=strategy, seed=3, sampling=sampling, budget=budget))


def num_asked(answer: Answer) -> int:
    """Draws that are no samples: they lie below one."""
    return sum(event.kind == "generate" and len(event.path) > 1 for event in answer.trace)


def price(name: str, problems: int) -> float:
    """The tokens that a problem takes without a budget, on average."""
    return sum(answer_of(name, number, None).usage.tokens for number in range(problems)) / problems


@pytest.mark.parametrize("name", NAMES)
def test_of_a_budget_for_more_than_the_whole_every_question_is_asked(name: str) -> None:
    """Each may take 1,000 tokens, which the budget has only once, and takes 50."""
    for number in range(10):
        free = answer_of(name, number, None)
        paid = answer_of(name, number, Budget(tokens=2 * free.usage.tokens))
        assert num_asked(paid) >= 0.8 * num_asked(free), number  # in stages, other answers meet
        assert len(paid.candidates) == len(free.candidates)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["tokens", "calls", "flops"])
def test_half_the_price_is_not_spent_on_samples_alone(name: str, unit: str) -> None:
    for number in range(10):
        free = answer_of(name, number, None)
        half = getattr(free.usage, unit) / 2
        paid = answer_of(name, number, Budget(**{unit: half if unit == "flops" else int(half)}))
        assert getattr(paid.usage, unit) <= half
        assert num_asked(paid) > 0 or not num_asked(free), number
        assert paid.stop_cause == "budget"


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_that_covers_all_at_full_length_changes_nothing(name: str) -> None:
    free, paid = answer_of(name, 1, None), answer_of(name, 1, Budget(tokens=100_000))
    assert (free.text, free.trace, free.usage, paid.stop_cause) == (paid.text, paid.trace, paid.usage, "done")


def test_a_knockout_with_long_questions_keeps_enough_for_its_last_round() -> None:
    """Nothing is known of their length when the first ones are asked."""
    answers = []
    for number in range(40):
        free = answer_of("knockout", number, None, longer=4)
        answers.append(answer_of("knockout", number, Budget(tokens=int(0.8 * free.usage.tokens)), longer=4))
    known = [answer for answer in answers if any(candidate.final == RIGHT for candidate in answer.candidates)]
    assert len(known) > 20 and sum(answer.final == RIGHT for answer in known) >= 0.85 * len(known)


@pytest.mark.parametrize("name", NAMES)
def test_stages_do_not_depend_on_the_schedule(name: str) -> None:
    for tokens in (200, 400, 800):
        first, *others = (answer_of(name, 2, Budget(tokens=tokens), jitter) for jitter in (None, 1, 2))
        assert all((other.text, other.trace, other.usage) == (first.text, first.trace, first.usage) for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_of_a_budget_in_seconds_slow_samples_leave_half_for_the_questions(name: str) -> None:
    """Two samples of five take a minute, all else a second; the right answers are among the others."""
    num_right = num_votes = 0
    for number in range(20):
        engine, clock = reasoner(), Clock()

        async def wait(path: Path) -> None:
            await asyncio.sleep(60.0 if len(path) == 1 and path[0] % 5 in (1, 3) else 1.0)

        engine._wait = wait  # type: ignore[method-assign]
        work = solve(
            ask(f"question {number}", "number"),
            engine=engine,
            strategy=strategy_of(name),
            seed=3,
            sampling=Sampling(max_tokens=1000),
            budget=Budget(seconds=12.0),
            clock=lambda clock=clock: clock.now,
        )
        with asyncio.Runner(loop_factory=lambda clock=clock: Jumping(clock)) as runner:
            answer = runner.run(work)
        assert clock.now < 12.1 and len({candidate.path for candidate in answer.candidates}) >= 5
        finals = {candidate.final for candidate in answer.candidates}
        assert num_asked(answer) > 0 or len(finals) == 1
        num_right, num_votes = num_right + (answer.final == RIGHT), num_votes + (RIGHT in finals)
    assert num_votes > 10 and num_right >= 0.9 * num_votes


@pytest.mark.long
@pytest.mark.parametrize("share", [0.5, 1.2])
@pytest.mark.parametrize("name", NAMES)
def test_who_knows_a_right_answer_beats_the_vote_of_an_equal_budget(name: str, share: float) -> None:
    problems = 400
    budget = Budget(tokens=int(share * price(name, 40)))
    pairs = [
        (answer_of(name, number, budget).final == RIGHT, answer_of("majority", number, budget).final == RIGHT)
        for number in range(problems)
    ]
    won, lost = (sum(pair == outcome for pair in pairs) for outcome in ((True, False), (False, True)))
    assert won - lost > SIGMAS * (won + lost) ** 0.5
