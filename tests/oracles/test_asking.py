"""What the strategies that ask again put before the model, and under which numbers: nothing of the problem is lost."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ttc.core import Answer, Message, Problem, Prompt, Score, Scorer
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import PromptTooLong
from ttc.session.session import MAX_SAMPLES
from ttc.session.solve import solve
from ttc.strategies.aggregate import aggregate
from ttc.strategies.genselect import genselect
from ttc.strategies.knockout import knockout
from ttc.strategies.no_think_then_think import no_think_then_think
from ttc.strategies.refine import refine
from ttc.strategies.tools import tools

TALK = (
    Message("system", "Answer in a box."),
    Message("user", "What is 1+1?"),
    Message("assistant", "Two."),
    Message("user", "And twice that?"),
)


def asked_for(strategy) -> list[tuple[Message, ...]]:
    """What the model was shown, in the order of the calls."""
    shown: list[tuple[Message, ...]] = []

    def script(prompt: Prompt, path, key) -> str:
        shown.append(prompt.messages)
        return rf"1+1=3 so \boxed{{{path[-1]}}}"

    problem = Problem(id="talk", messages=TALK, kind="math")
    asyncio.run(solve(problem, engine=ScriptedEngine(script), strategy=strategy, seed=2))
    return shown


def test_an_aggregation_is_asked_behind_all_messages_of_the_problem() -> None:
    shown = asked_for(partial(aggregate, n=3, k=2, rounds=2))
    assert len(shown) == 9 and shown[:3] == [TALK] * 3
    for messages in shown[3:]:
        assert messages[:-1] == TALK[:-1] and messages[-1].role == "user"
        question, _, attempts = messages[-1].content.partition("\n\n")
        assert question == TALK[-1].content
        assert [f"Attempt {i}:" in attempts for i in (0, 1, 2, 3)] == [False, True, True, False]
        assert "2 attempts" in attempts


def test_a_revision_is_asked_behind_all_messages_of_the_problem_and_the_answer_before_it() -> None:
    shown = asked_for(partial(refine, rounds=2))
    assert len(shown) == 3 and shown[0] == TALK
    for messages in shown[1:]:
        assert messages[: len(TALK)] == TALK and [m.role for m in messages[len(TALK) :]] == ["assistant", "user"]
        assert messages[-2].content == r"1+1=3 so \boxed{0}" and "1+1=3" in messages[-1].content


@pytest.mark.parametrize(
    ("worst", "said"), [(0, "step 1: p"), (1, "step 2: q"), (2, "doubts this"), (3, "doubts this")]
)
def test_a_step_that_the_scorer_counts_beyond_the_text_is_not_quoted(worst: int, said: str) -> None:
    class Counting(Scorer):
        """Sees four steps, whatever is there."""

        async def score(self, prompts, on_usage):
            return [Score(0.9, tuple(0.1 if i == worst else 0.9 for i in range(4))) for _ in prompts]

    complaints: list[str] = []

    def script(prompt: Prompt, path, key) -> str:
        complaints.append(prompt.messages[-1].content)
        return "p\n\nq \\boxed{1}"

    strategy = partial(refine, rounds=1, feedback="scorer", scorer=Counting())
    problem = Problem(id="q", messages=TALK, kind="math")
    asyncio.run(solve(problem, engine=ScriptedEngine(script), strategy=strategy, seed=2))
    assert len(complaints) == 2 and said in complaints[1]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("thinks", [True, False])
def test_an_escalation_draws_m_more_that_think_and_numbers_them_alike_for_any_n(n: int, m: int, thinks: bool) -> None:
    def script(prompt: Prompt, path, key) -> str:
        return ("hm</think>" if prompt.think_state == "open" else "") + rf"\boxed{{{path[0]}}}"

    engine = ScriptedEngine(script, thinking=thinks)  # unless it is told otherwise
    problem = Problem(id="q", messages=TALK, kind="math")
    answer = asyncio.run(solve(problem, engine=engine, strategy=partial(no_think_then_think, n=n, m=m), seed=2))
    careful = range(MAX_SAMPLES, MAX_SAMPLES + m)
    assert [c.path for c in answer.candidates] == [(i,) for i in (*range(n), *careful)]
    assert answer.stop_cause == "escalated" and answer.final == str(careful[0])  # the first of those that thought
    assert [bool(candidate.thinking) for candidate in answer.candidates] == [False] * n + [True] * m


def test_exactly_the_share_that_must_agree_is_enough_however_it_rounds() -> None:
    """0.56 * 25 is a little more than 14."""
    engine = ScriptedEngine(lambda prompt, path, key: rf"\boxed{{{0 if path[0] < 14 else path[0]}}}")
    strategy = partial(no_think_then_think, n=25, m=1, agreement=0.56)
    answer = asyncio.run(solve(Problem("q", TALK), engine=engine, strategy=strategy, seed=2))
    assert (answer.final, answer.stop_cause) == ("0", "agreed")


@pytest.mark.parametrize(("after", "final"), [(r"so \boxed{42}", "42"), ("but what does it mean?", None)])
def test_the_answer_of_an_episode_is_what_it_said_behind_the_last_result(after: str, final: str | None) -> None:
    def script(prompt: Prompt, path, key) -> str:
        return after if "<result>42</result>" in prompt.text else r"\boxed{41}? <calculator>6*7</calculator>"

    problem = Problem(id="q", messages=TALK, kind="math")
    answer = asyncio.run(solve(problem, engine=ScriptedEngine(script), strategy=tools, seed=2))
    assert answer.final == final and answer.text == after


def test_an_episode_that_runs_out_of_calls_has_no_answer() -> None:
    def script(prompt: Prompt, path, key) -> str:
        return r"\boxed{41}? <calculator>6*7</calculator>"

    problem = Problem(id="q", messages=TALK, kind="math")
    answer = asyncio.run(solve(problem, engine=ScriptedEngine(script), strategy=partial(tools, max_calls=2), seed=2))
    assert answer.final is None and answer.finish_reason == "length"


@pytest.mark.parametrize(
    "strategy",
    [
        partial(aggregate, n=3, k=3, rounds=2),
        partial(refine, rounds=2, feedback="self"),
        partial(knockout, n=3, k=2, trust=3.0),
        partial(genselect, n=3, k=2, trust=3.0),
    ],
)
def test_a_question_that_fills_the_context_is_not_asked_and_the_answers_in_hand_decide(strategy) -> None:
    def script(prompt: Prompt, path, key) -> str:
        return "so " * 20 + rf"\boxed{{{min(path[0], 1)}}}"

    def answer_within(context: int) -> Answer:
        engine = ScriptedEngine(script, max_context=context)
        return asyncio.run(solve(Problem("q", TALK), engine=engine, strategy=strategy, seed=2))

    length = len(ScriptedEngine(script).render(TALK, None).token_ids or ())
    answer = answer_within(length + 80)
    unasked = [event for event in answer.trace if "unasked" in event.data]
    assert answer.final is not None and unasked and all(len(c.path) == 1 for c in answer.candidates)
    assert {event.path for event in answer.trace if event.kind == "generate"} == {c.path for c in answer.candidates}
    with pytest.raises(PromptTooLong):  # the problem itself must fit
        answer_within(length)
