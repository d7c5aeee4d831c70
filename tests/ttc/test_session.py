"""Sessions and solving: seconds, failures, cancellation, and what a candidate says."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace
from functools import partial

import pytest

from tests.ttc.questions import ask
from ttc.answers import kind_of
from ttc.core import Budget, Sampling, Score, Scorer, Usage
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.errors import ConfigError, EngineError
from ttc.scorers.constant import constant
from ttc.scorers.likelihood import likelihood
from ttc.session.door import run
from ttc.session.growing import Draw, grow
from ttc.session.session import Session
from ttc.session.solve import solve, solve_all, spent
from ttc.session.thinking import Thinking
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.confidence import confidence
from ttc.strategies.direct import direct
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree


class Slow(ScriptedEngine):
    """Takes its time, and remembers what was aborted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(lambda prompt, path, key: r"\boxed{1}")
        self.seconds = seconds

    async def _wait(self, path) -> None:
        await asyncio.sleep(self.seconds * (1 + path[-1]))


def test_a_budget_in_seconds_aborts_in_the_engine_and_says_so() -> None:
    engine = Slow(5.0)
    started = time.perf_counter()
    answer = asyncio.run(
        solve(ask("q"), engine=engine, strategy=partial(majority, n=3), seed=0, budget=Budget(seconds=0.05))
    )
    assert time.perf_counter() - started < 2
    assert answer.stop_cause == "budget" and answer.final is None
    assert answer.usage.overrun == engine.counters().overrun > 0


def test_cancelling_the_task_aborts_every_draw_and_the_ledger_still_balances() -> None:
    engine, usages = Slow(5.0), []

    async def go() -> None:
        session = Session(ask("q"), engine, answers=kind_of("math"), seed=0, sampling=Sampling())
        task = asyncio.create_task(majority(ask("q"), session, n=4))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        usages.append(session.usage)

    asyncio.run(go())
    assert usages[0] == engine.counters() and usages[0].attempts == 4


def test_one_failing_branch_fails_the_problem_with_its_own_error_and_no_group() -> None:
    class Broken(Scorer):
        async def score(self, prompts, on_usage):
            raise EngineError("scorer lost its device")

    engine = ScriptedEngine(replies({"q": ["a\n\nb"]}))
    with pytest.raises(EngineError, match="lost its device"):
        asyncio.run(solve(ask("q"), engine=engine, strategy=partial(tree, scorer=Broken(), n=4), seed=0))


def test_a_failed_problem_is_data_and_its_siblings_go_on() -> None:
    def script(prompt, path, key):
        if "bad" in prompt.text:
            raise EngineError("no")
        return r"\boxed{1}"

    async def go():
        problems = [ask("good 1"), ask("bad"), ask("good 2")]
        stream = solve_all(problems, engine=ScriptedEngine(script), strategy=direct, seed=0)
        return {problem.id: outcome async for problem, outcome in stream}

    outcomes = asyncio.run(go())
    assert isinstance(outcomes["bad"], BaseException)
    assert outcomes["good 1"].final == outcomes["good 2"].final == "1"


def test_a_configuration_error_is_raised_instead_of_failing_every_problem_alike() -> None:
    async def go() -> None:
        engine = ScriptedEngine(replies({"q": ["x"]}))
        async for _ in solve_all([ask("q")], engine=engine, strategy=partial(majority, n=0), seed=0):
            pass

    with pytest.raises(ConfigError, match="n must be"):
        asyncio.run(go())


def test_thinking_budgets_are_refused_before_work_where_the_model_has_no_marker() -> None:
    from dataclasses import replace

    engine = ScriptedEngine(replies({"q": ["x"]}))
    engine._capabilities = replace(engine.capabilities, think_open=(), think_close=())
    with pytest.raises(ConfigError, match="marker"):
        Session(ask("q"), engine, answers=kind_of("math"), seed=0, sampling=Sampling(), thinking=Thinking(max_tokens=5))


def test_likelihood_is_the_geometric_mean_probability_without_injected_tokens() -> None:
    import math

    def script(prompt, path, key):
        return "A" if "</think>" in prompt.generated_text else "t" * 30

    engine = ScriptedEngine(script, thinking=True)
    answer = asyncio.run(
        solve(
            ask("q", "exact"),
            engine=engine,
            strategy=partial(best_of_n, scorer=likelihood(), n=2),
            seed=0,
            thinking=Thinking(max_tokens=5, handover="no time</think>"),
        )
    )
    assert [c.score for c in answer.candidates] == pytest.approx([math.exp(-0.5)] * 2)


def test_an_engine_without_logprobs_gives_no_verdict_rather_than_a_zero() -> None:
    from dataclasses import replace

    engine = ScriptedEngine(replies({"q": [r"\boxed{1}"]}))
    session = Session(ask("q"), engine, answers=kind_of("math"), seed=0, sampling=Sampling())

    async def go() -> Score:
        prompt = session.render()
        (completion,) = await session.generate(prompt, 1)
        blind = replace(prompt.then(replace(completion, logprobs=None)))
        (score,) = await session.score(likelihood(), [blind])
        return score

    score = asyncio.run(go())
    assert score.value is None and "reported no" in score.note


def test_an_engine_that_reports_no_self_certainty_is_refused_before_it_draws() -> None:
    from dataclasses import replace

    engine = ScriptedEngine(replies({"q": [r"\boxed{1}"]}))
    engine._capabilities = replace(engine.capabilities, certainty=False)
    with pytest.raises(ConfigError, match="reports no self-certainty; set measure=mean_logprob"):
        likelihood(engine=engine, measure="self_certainty")
    assert likelihood(engine=engine)
    with pytest.raises(ConfigError, match="reports no certainty; set measure=logprob"):
        asyncio.run(solve(ask("q"), engine=engine, strategy=partial(confidence, measure="certainty"), seed=0))
    assert engine.counters().calls == 0


def test_scorers_forget_a_problem_when_it_is_done() -> None:
    released = []

    class Watching(type(constant())):
        def release(self, problem_id: str) -> None:
            released.append(problem_id)

    engine = ScriptedEngine(replies({"q": ["a\n\nb"]}))
    asyncio.run(solve(ask("q"), engine=engine, strategy=partial(tree, scorer=Watching(), n=4), seed=0))
    assert released == ["q"]


def test_the_synchronous_door_answers_a_plain_question() -> None:
    engine = ScriptedEngine(replies({"6*7": [r"\boxed{42}"]}))
    assert run("6*7", engine=engine, strategy=direct, seed=0).final == "42"


def test_usage_adds_column_by_column() -> None:
    from dataclasses import fields

    one = Usage(*range(1, 1 + len(fields(Usage))))
    assert one + one == Usage(*(2 * value for value in range(1, 1 + len(fields(Usage)))))


def test_what_a_failed_problem_had_cost_travels_with_its_error() -> None:
    class Broken(type(constant())):
        async def score(self, prompts, on_usage):
            raise EngineError("gone")

    engine = ScriptedEngine(replies({"q": ["a\n\nb"]}))
    with pytest.raises(EngineError) as raised:
        asyncio.run(solve(ask("q"), engine=engine, strategy=partial(best_of_n, scorer=Broken(), n=3), seed=0))
    assert spent(raised.value) == engine.counters() and spent(raised.value).generated > 0
    assert spent(ValueError("another")) == Usage()


def test_only_what_is_in_flight_is_taken_from_an_endless_supply_of_problems() -> None:
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield ask(f"q{taken}")

    async def go() -> None:
        engine = ScriptedEngine(lambda prompt, path, key: "\\boxed{1}")
        stream = solve_all(endless(), engine=engine, strategy=direct, seed=0, concurrency=5)
        for solved in range(1, 21):
            await anext(stream)
            assert taken <= solved + 10
        await stream.aclose()

    asyncio.run(go())


@pytest.mark.parametrize(("usual", "meanwhile"), [(700, 20_000), (50_000, 50_000), (0, 0)])
def test_cycles_are_looked_for_rarely_while_problems_are_solved(usual, meanwhile) -> None:
    async def go() -> None:
        engine = ScriptedEngine(lambda prompt, path, key: "\\boxed{1}")
        async for _ in solve_all([ask("q1"), ask("q2")], engine=engine, strategy=direct, seed=0):
            assert gc.get_threshold()[0] == meanwhile

    before = gc.get_threshold()
    gc.set_threshold(usual)
    try:
        asyncio.run(go())
        assert gc.get_threshold()[0] == usual
    finally:
        gc.set_threshold(*before)


class Spelled(ScriptedEngine):
    """Ids are bytes, and the space that a text begins with is dropped, as SentencePiece's tokenizers do."""

    SAYS = " The café has 3 tables.\n\n So 3 naïve 🙂 guests.\n\n"

    def __init__(self) -> None:
        super().__init__(lambda prompt, path, key: self.SAYS.encode().decode("latin-1")[len(prompt.generated_ids) :])

    @staticmethod
    def decode(ids) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace").removeprefix(" ")

    async def generate(self, prompt, sampling, draws, on_usage):
        completions = await super().generate(prompt, sampling, draws, on_usage)
        ends = [len(one.token_ids) - one.num_eos for one in completions]
        return [replace(one, text=self.decode(one.token_ids[:end])) for one, end in zip(completions, ends, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 40])
def test_pieces_of_a_draw_read_as_the_whole_of_it(size: int) -> None:
    async def go() -> Draw:
        engine = Spelled()
        session = Session(ask("q"), engine, answers=kind_of("math"), seed=0, sampling=Sampling(max_tokens=200))
        draw = Draw(session.render(), 0)
        while not draw.ended:
            draw = await grow(session, draw, size)
        return draw

    draw = asyncio.run(go())
    assert draw.finished and draw.prompt.generated_text == Spelled.SAYS.removeprefix(" ")


def test_steps_of_a_search_keep_the_space_between_them() -> None:
    read = []

    class Reader(Scorer):
        async def score(self, prompts, on_usage):
            read.extend(prompt.generated_text for prompt in prompts)
            return [Score(0.5) for _ in prompts]

    asyncio.run(solve(ask("q"), engine=Spelled(), strategy=partial(tree, scorer=Reader(), n=1, beam_width=1), seed=0))
    assert max(read, key=len) == Spelled.SAYS.removeprefix(" ")
