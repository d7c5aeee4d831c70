"""The lock-step schedule: all problems advance one level together, and grow the trees they grow without it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.ttc import conformance as suite
from ttc.core import Completion, Prompt, Sampling, Score, Usage, UsageSink
from ttc.engines.simulated import simulated
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.search.tree import Barrier
from ttc.session.solve import solve, solve_all
from ttc.strategies.tree import tree


class Watched:
    """An engine that takes a different time for each draw and writes down what happens in which order."""

    def __init__(self) -> None:
        self.inner, self.log = simulated(p=0.8, steps=3, jitter=3), []

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        for _ in range(len(prompt.problem_id) * (1 + draws[0]) % 11):
            await asyncio.sleep(0)
        completions = await self.inner.generate(prompt, sampling, draws, on_usage)
        self.log.append(("generate", len(prompt.path)))
        return completions


class Noted:
    """The simulated scorer, which writes into the same log."""

    def __init__(self, log: list[tuple[str, int]]) -> None:
        self.inner, self.log = simulated_scorer(noise=1.0), log

    async def score(self, prompts, on_usage) -> list[Score]:
        self.log.extend(("score", len(prompt.path) - 1) for prompt in prompts)
        await asyncio.sleep(0)
        return await self.inner.score(prompts, on_usage)

    def release(self, problem_id: str) -> None:
        self.inner.release(problem_id)


def search(barrier: bool, policy: str, max_tokens: int = 200):
    """Solve eight problems at once; return the answers and the log."""

    async def go():
        engine = Watched()
        strategy = partial(tree, scorer=Noted(engine.log), n=6, beam_width=2, policy=policy, barrier=barrier)
        found = solve_all(
            suite.problems(8), engine=engine, strategy=strategy, seed=3, sampling=Sampling(max_tokens=max_tokens)
        )
        return {problem.id: suite.essence(answer) async for problem, answer in found}, engine.log

    return asyncio.run(go())


@pytest.mark.parametrize("policy", ["beam", "dvts"])
def test_lock_step_grows_the_same_trees(policy: str) -> None:
    assert search(True, policy)[0] == search(False, policy)[0]


@pytest.mark.parametrize("policy", ["beam", "dvts"])
def test_in_lock_step_no_problem_is_ahead_of_another_and_nothing_is_scored_before_all_is_generated(policy: str) -> None:
    _, log = search(True, policy)
    order = [2 * level + (kind == "score") for kind, level in log]
    assert order == sorted(order) and order[-1] > 2


def test_without_the_barrier_scoring_overlaps_generation() -> None:
    _, log = search(False, "dvts")
    order = [2 * level + (kind == "score") for kind, level in log]
    assert order != sorted(order)


def test_a_problem_that_fails_leaves_the_others_free() -> None:
    class Failing(Noted):
        async def score(self, prompts, on_usage) -> list[Score]:
            if prompts[0].problem_id == "p1":
                raise RuntimeError("no")
            return await super().score(prompts, on_usage)

    async def go() -> list[object]:
        engine, shared = Watched(), {}
        strategy = partial(tree, scorer=Failing(engine.log), n=4, beam_width=2, barrier=True)
        work = [solve(p, engine=engine, strategy=strategy, seed=1, shared=shared) for p in suite.problems(3)]
        async with asyncio.timeout(10):
            return await asyncio.gather(*work, return_exceptions=True)

    first, second, third = asyncio.run(go())
    assert isinstance(second, RuntimeError)
    assert first.usage != Usage() and third.usage != Usage()


def test_a_barrier_opens_when_the_last_member_waits_or_leaves() -> None:
    async def go() -> list[int]:
        barrier, log = Barrier(), []

        async def member(rounds: int) -> None:
            with barrier.joined():
                await asyncio.sleep(0)  # until all have joined
                for turn in range(rounds):
                    log.append(turn)
                    await barrier.wait()

        async with asyncio.timeout(5):
            await asyncio.gather(member(3), member(1), member(2))
        return log

    assert asyncio.run(go()) == [0, 0, 0, 1, 1, 2]


def test_a_cancelled_member_is_not_waited_for() -> None:
    async def go() -> str:
        barrier = Barrier()

        async def member(rounds: int) -> str:
            with barrier.joined():
                for _ in range(rounds):
                    await barrier.wait()
            return "through"

        async def sleeper() -> None:
            with barrier.joined():
                await asyncio.sleep(60)

        tired, alive = asyncio.create_task(sleeper()), asyncio.create_task(member(3))
        await asyncio.sleep(0.01)
        assert not alive.done()
        tired.cancel()
        async with asyncio.timeout(5):
            return await alive

    assert asyncio.run(go()) == "through"
