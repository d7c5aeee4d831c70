"""The embedded engine in two processes: the same draws, one ledger, and what happens when a process dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from train.base.models import load_model
from ttc import nano
from ttc.core import Completion, Message, Prompt, Sampling, Usage
from ttc.engines.embedded.engine import embedded
from ttc.engines.embedded.replicas import ReplicatedEngine
from ttc.engines.embedded.routing import Router
from ttc.errors import ConfigError, EngineError

SAMPLING = Sampling(temperature=0.9, max_tokens=20, seed=5, logprobs=True)


@pytest.fixture(scope="module")
def pair() -> Iterator[Any]:
    engine = embedded(batch_invariant=True, dtype="float32", processes=2)
    assert isinstance(engine, ReplicatedEngine)
    yield engine
    for _ in range(2):
        asyncio.run(engine.close())
    assert [replica._process.poll() for replica in engine._replicas] == [0, 0]
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate(ask(engine), SAMPLING, range(1), lambda usage: None))


def ask(engine: Any) -> Prompt:
    return engine.render([Message("user", "Compute 12+30*2.")], None)


def bare(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.path, c.token_ids, c.logprobs, c.finish_reason) for c in completions]


def test_draws_are_bit_for_bit_those_of_one_process(pair: Any) -> None:
    async def go() -> None:
        one = embedded(batch_invariant=True, dtype="float32")
        try:
            alone = await one.generate(ask(one), SAMPLING, range(24), lambda usage: None)
        finally:
            await one.close()
        shared = await pair.generate(ask(pair), SAMPLING, range(24), lambda usage: None)
        assert bare(shared) == bare(alone)
        child = ask(pair).then(shared[3])
        assert (await pair.generate(child, SAMPLING, range(2), lambda usage: None))[1].path == (3, 1)

    asyncio.run(go())


def test_the_sum_of_all_reports_is_the_engines_own_counter(pair: Any) -> None:
    async def go() -> None:
        before, seen = pair.counters(), []
        await pair.generate(ask(pair), SAMPLING, range(20), seen.append)
        await pair.logprobs(ask(pair).token_ids, 1, seen.append)
        rows = await pair.top_logprobs(ask(pair).token_ids, 1, 2, seen.append)
        assert len(rows) == len(ask(pair).token_ids) - 1 and all(len(row) in (2, 3) for row in rows)
        task = asyncio.create_task(pair.generate(ask(pair), SAMPLING, range(16), seen.append))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        total = sum(seen, Usage())
        assert total.calls == 38 and total.generated + total.overrun > 0
        assert before + total == pair.counters()

    asyncio.run(go())


def test_a_stream_brings_the_tokens_of_its_completion(pair: Any) -> None:
    async def go() -> None:
        came: list[int] = []
        done = await pair.stream(ask(pair), SAMPLING, 0, lambda usage: None, came.extend)
        assert tuple(came) == done.token_ids

    asyncio.run(go())


def test_new_weights_reach_every_process_and_only_an_idle_engine(pair: Any) -> None:
    state = load_model(nano.path("teacher"), "cpu").state_dict()
    ids = ask(pair).token_ids or ()

    async def told() -> list[tuple[float, ...]]:
        return list(await asyncio.gather(*(pair.logprobs(ids, 1, lambda usage: None) for _ in range(2))))

    async def go() -> None:
        before = await told()
        running = asyncio.create_task(pair.generate(ask(pair), SAMPLING, range(16), lambda usage: None))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="idle"):
            await pair.load_weights(state)
        await running
        await pair.load_weights({name: tensor * 0.9 for name, tensor in state.items()})
        first, second = await told()
        assert first == second != before[0]
        await pair.load_weights(state)
        assert await told() == before

    asyncio.run(go())


@pytest.mark.long
def test_a_process_that_dies_fails_its_calls_and_names_its_exit_code() -> None:
    async def go() -> None:
        engine = embedded(processes=1)
        assert isinstance(engine, ReplicatedEngine)
        try:
            task = asyncio.create_task(engine.generate(ask(engine), SAMPLING, range(64), lambda usage: None))
            await asyncio.sleep(0.01)
            os.kill(engine._replicas[0]._process.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="exit code -9"):
                await task
            with pytest.raises(EngineError, match="exit code -9"):
                await engine.generate(ask(engine), SAMPLING, range(16), lambda usage: None)
        finally:
            await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("options", "words"), [({"processes": 0}, "processes"), ({"model": "/nowhere", "processes": 2}, "/nowhere")]
)
def test_what_cannot_start_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        embedded(**options)


def prompt(*path: int) -> Prompt:
    return Prompt("", (1, 2, 3), path, problem_id="p")


def test_many_draws_are_shared_out_evenly_and_few_stay_together() -> None:
    router = Router(2)
    assert router.split(prompt(), range(3, 67)) == [(0, range(3, 35)), (1, range(35, 67))]
    with router.running([(0, range(20))]):
        assert router.split(prompt(), range(40)) == [(1, range(30)), (0, range(30, 40))]
        assert router.split(prompt(), range(4)) == [(1, range(4))]


def test_a_continuation_goes_where_its_cache_is_unless_that_replica_is_busy() -> None:
    router = Router(2)
    router.split(prompt(), range(64))
    assert router.split(prompt(40), range(4)) == [(1, range(4))]
    assert router.split(prompt(), range(40, 41)) == [(1, range(40, 41))]
    with router.running([(1, range(9))]):
        assert router.split(prompt(41), range(4)) == [(0, range(4))]


def test_load_is_given_back_also_when_a_draw_fails() -> None:
    router = Router(2)
    with pytest.raises(EngineError), router.running([(0, range(5))]):
        raise EngineError("gone")
    assert router.load == [0, 0]
