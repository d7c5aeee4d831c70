"""One suite over every engine and every strategy: seeds, stops, ledger, cancellation, schedule invariance, canaries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.ttc import conformance as suite
from ttc.config.registry import STRATEGIES
from ttc.core import Answer, Completion, Engine, Sampling, Usage
from ttc.errors import PromptTooLong

CHEAP = [(engine, name) for engine in suite.ENGINES if engine != "embedded" for name in suite.cases(engine)]
"""Every strategy on every engine without a model."""


def run(engine_name: str, body, jitter: int | None = None):
    """Run `body(engine)` and close the engine."""

    async def go():
        engine = suite.ENGINES[engine_name](jitter)
        try:
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(go())


async def draw(engine: Engine, draws: range, usages: list[Usage] | None = None, ids=(), **kwargs) -> list[Completion]:
    """Draw from one fixed problem, after `ids` more tokens."""
    prompt = engine.render(suite.problems(1)[0].messages, None)
    prompt = prompt.extend(ids, engine.decode(ids))
    sampling = Sampling(**{"seed": 3, "max_tokens": 24, **kwargs})
    return await engine.generate(prompt, sampling, draws, (usages if usages is not None else []).append)


@pytest.fixture(params=list(suite.ENGINES))
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def essential(completion: Completion) -> Completion:
    return replace(completion, usage=Usage())


def test_raising_n_only_adds_draws(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        together = await draw(engine, range(5))
        alone = [(await draw(engine, range(i, i + 1)))[0] for i in (4, 0, 2)]
        assert [essential(c) for c in alone] == [essential(together[i]) for i in (4, 0, 2)]
        assert [c.path for c in together] == [(i,) for i in range(5)]

    run(engine_name, body)


def test_raising_max_tokens_only_extends(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        short = await draw(engine, range(3), max_tokens=5)
        long = await draw(engine, range(3), max_tokens=30)
        for a, b in zip(short, long, strict=True):
            assert b.token_ids[:5] == a.token_ids
            assert (a.finish_reason == "length" and len(a.token_ids) == 5) or a == b

    run(engine_name, body)


def test_a_draw_resumed_in_pieces_equals_one_long_run(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        whole = (await draw(engine, range(1, 2), max_tokens=24))[0].token_ids
        pieces: tuple[int, ...] = ()
        while len(pieces) < len(whole):
            (piece,) = await draw(engine, range(1, 2), ids=pieces, max_tokens=min(7, 24 - len(pieces)))
            pieces += piece.token_ids
        assert pieces == whole

    run(engine_name, body)


def test_text_is_what_the_ids_decode_to(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        for completion in await draw(engine, range(4), max_tokens=60):
            kept = completion.token_ids[: len(completion.token_ids) - completion.num_eos]
            assert engine.decode(kept) == completion.text
            if completion.num_eos:
                assert completion.token_ids[-1] in engine.capabilities.eos_ids

    run(engine_name, body)


def test_a_stop_string_ends_the_draw_and_stays_in_it(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        (free,) = await draw(engine, range(1), max_tokens=30)
        stop = free.text[2:4]
        (stopped,) = await draw(engine, range(1), max_tokens=30, stop=(stop,))
        assert stopped.finish_reason == "stop" and stopped.stop_reason == stop
        assert stopped.text == free.text[: free.text.index(stop) + len(stop)]
        assert free.token_ids[: len(stopped.token_ids)] == stopped.token_ids

    run(engine_name, body)


def test_a_stop_token_ends_the_draw_and_stays_in_it(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        (free,) = await draw(engine, range(1), max_tokens=30)
        token = free.token_ids[3]
        (stopped,) = await draw(engine, range(1), max_tokens=30, stop_token_ids=(token,))
        first = free.token_ids.index(token)
        assert stopped.token_ids == free.token_ids[: first + 1]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)

    run(engine_name, body)


def test_every_draw_reports_its_usage_once_and_the_sum_is_the_engines_own(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        usages: list[Usage] = []
        completions = await draw(engine, range(4), usages)
        completions += await draw(engine, range(2), usages, max_tokens=3)
        assert len(usages) == 6
        assert sum(usages, Usage()) == engine.counters()
        assert [c.usage.generated for c in completions] == [len(c.token_ids) for c in completions]
        assert all(u.cached <= u.prompt for u in usages)

    run(engine_name, body)


def test_a_cancelled_draw_is_aborted_and_its_tokens_are_overrun(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        usages: list[Usage] = []
        task = asyncio.create_task(draw(engine, range(4), usages, max_tokens=200, stop_token_ids=()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        total = sum(usages, Usage())
        assert total == engine.counters()
        assert total.attempts == 4 and total.generated < 4 * 200

    run(engine_name, body, jitter=4)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        limit = engine.capabilities.max_context
        if limit > 100_000:
            pytest.skip("practically unlimited context")
        with pytest.raises(PromptTooLong, match=str(limit)):
            await draw(engine, range(1), ids=engine.encode("1") * limit)

    run(engine_name, body)


def test_encode_and_decode_are_inverse_on_plain_text(engine_name: str) -> None:
    async def body(engine: Engine) -> None:
        for text in ("12+30*2=72", "Wait, \n\nno", "ünï \\boxed{3}"):
            assert engine.decode(engine.encode(text)) == text

    run(engine_name, body)


@pytest.mark.parametrize(("engine_name", "name"), CHEAP)
def test_any_schedule_gives_the_same_trees_and_answers_and_ledgers_that_equal_the_engines_counters(
    engine_name: str, name: str
) -> None:
    check_any_schedule(engine_name, suite.cases(engine_name)[name])


def check_any_schedule(engine_name: str, case: suite.Case) -> None:
    """Concurrency 1, 7 and 64, any problem order, any timing."""
    order = suite.problems(8)
    shuffled = random.Random(5).sample(order, len(order))
    results = []
    for concurrency, sequence, jitter in [(7, order[::-1], 2), (1, order, None), (64, shuffled, 1)]:

        async def body(engine: Engine, s=sequence, c=concurrency):
            return await suite.solve_in_order(engine, case, s, c), engine.counters()

        answers, counters = run(engine_name, body, jitter)
        check_the_ledger(answers.values(), counters)
        check_the_trace(answers.values())
        results.append({name: suite.essence(answer) for name, answer in sorted(answers.items())})
    assert all(result == results[0] for result in results)


def check_the_ledger(answers: Iterable[Answer], counters: Usage) -> None:
    """What the answers say that they cost, all together, is what the engine counted."""
    total = sum((answer.usage for answer in answers), Usage())
    assert total.generated + total.overrun == counters.generated + counters.overrun
    assert (total.prompt, total.cached) == (counters.prompt, counters.cached)
    assert (total.calls, total.attempts) == (counters.calls, counters.attempts)


def check_the_trace(answers: Iterable[Answer]) -> None:
    """It tells every token that the answers cost."""
    total = sum((answer.usage for answer in answers), Usage())
    generated = sum(e.data["num_tokens"] for a in answers for e in suite.events_of(a, "generate"))
    assert total.generated == generated
    assert 0 <= total.thinking <= total.generated


@dataclass(frozen=True)
class Scheduled:
    """What strategies answered over one engine, what it reported to each, and what it counted."""

    together: suite.Together
    reported: dict[str, Usage]
    counters: Usage


@pytest.fixture(scope="module")
def schedules() -> list[Scheduled]:
    """Every strategy over one engine with the packaged model: two problems in flight, then one, in the other order."""
    order, names = suite.problems(2), list(suite.cases("embedded"))
    runs = []
    for concurrency, sequence, columns in [(7, order[::-1], names), (1, order, names[::-1])]:

        async def body(engine: Engine, s=sequence, c=concurrency, n=columns):
            views = {name: suite.counted(engine) for name in n}
            together = await suite.side_by_side({name: view for name, (view, _) in views.items()}, s, c)
            reported = {name: sum(reports, Usage()) for name, (_, reports) in views.items()}
            return Scheduled(together, reported, engine.counters())

        runs.append(run("embedded", body))
    return runs


@pytest.mark.parametrize("name", list(suite.cases("embedded")))
def test_any_schedule_gives_the_same_trees_and_answers_of_a_model_and_what_was_reported_for_them_on_the_ledger(
    schedules: list[Scheduled], name: str
) -> None:
    results = []
    for scheduled in schedules:
        answers = scheduled.together.of(name)
        check_the_ledger(answers.values(), scheduled.reported[name])
        check_the_trace(answers.values())
        results.append({key: suite.essence(answer) for key, answer in sorted(answers.items())})
    assert results[0] == results[1]


def test_the_answers_of_a_model_cost_what_its_engine_counted(schedules: list[Scheduled]) -> None:
    for scheduled in schedules:
        check_the_ledger(scheduled.together.answers(), scheduled.counters)


@pytest.mark.parametrize("name", list(suite.cases("scripted")))
def test_no_strategy_or_scorer_can_reach_a_target(name: str) -> None:
    check_no_target(suite.cases("scripted")[name])


def check_no_target(case: suite.Case) -> None:
    """A canary target exists beside the problem; nothing handed to a strategy or a scorer leads to it."""
    import gc

    from ttc.core import Record

    class Canary:
        pass

    canary = Canary()
    problem = suite.problems(1)[0]
    record = Record(problem, target=canary)
    reachable: set[int] = set()
    frontier: list[object] = [problem]
    for _ in range(6):
        frontier = [r for item in frontier for r in gc.get_referents(item) if id(r) not in reachable]
        reachable.update(map(id, frontier))
    assert id(canary) not in reachable

    async def body(engine: Engine):
        return await suite.solve_in_order(engine, case, [record.problem], 1)

    (answer,) = run("scripted", body).values()
    assert "Canary" not in repr(answer)


NEW = """\
from ttc.choosing.selection import fallback, vote


async def pairs(problem, session, *, n: int = 64):
    prompt = session.render()
    candidates = []
    while len(candidates) < n:
        drawn = await session.generate(prompt, 2)
        candidates += [session.candidate(prompt, completion) for completion in drawn]
    return session.answer(vote(candidates, session.key) or fallback(candidates), candidates)
"""


@pytest.mark.parametrize("engine_name", ["scripted", "simulated"])
def test_a_strategy_in_a_file_of_its_own_runs_through_the_same_suite(engine_name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NEW)
    case = suite.case_of(f"{file}:pairs")
    assert case.make().keywords == {"n": 4}
    check_any_schedule(engine_name, case)
    check_no_target(case)


def test_every_registered_strategy_has_a_case() -> None:
    assert set(STRATEGIES.names()) <= set(suite.cases("embedded"))
