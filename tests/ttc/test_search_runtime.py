"""How the search runtime asks: one request for the children of a node, or one for each where a budget may end."""

from __future__ import annotations

import asyncio
import gc
import math
from dataclasses import replace
from functools import partial

import pytest

from tests.ttc.questions import ask
from ttc.config.registry import POLICIES
from ttc.core import Budget, Completion, Prompt, Sampling, Score, UsageSink
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.engines.simulated import simulated
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve, spent
from ttc.strategies.tree import tree


class Counted:
    """The simulated engine, which notes how many draws every request asks for."""

    def __init__(self) -> None:
        self.inner, self.widths = simulated(p=0.9, steps=4), []

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        self.widths.append(len(draws))
        return await self.inner.generate(prompt, sampling, draws, on_usage)


class Noted:
    """The simulated scorer, which notes how many paths it is given at once."""

    def __init__(self) -> None:
        self.inner, self.widths = simulated_scorer(noise=1.0), []

    async def score(self, prompts, on_usage) -> list[Score]:
        self.widths.append(len(prompts))
        return await self.inner.score(prompts, on_usage)

    def release(self, problem_id: str) -> None:
        self.inner.release(problem_id)


def grow(policy: str, budget: Budget | None = None, **options):
    """Search once; return the answer and the widths of the requests to engine and scorer."""
    engine, scorer = Counted(), Noted()
    strategy = partial(tree, scorer=scorer, n=8, beam_width=4, policy=policy, **options)
    answer = asyncio.run(
        solve(ask("q"), engine=engine, strategy=strategy, seed=5, sampling=Sampling(max_tokens=300), budget=budget)
    )
    return answer, engine.widths, scorer.widths


class Failing(Noted):
    """Breaks at the second call."""

    async def score(self, prompts, on_usage) -> list[Score]:
        if len(self.widths) == 1:
            raise ArithmeticError("broken")
        return await super().score(prompts, on_usage)


@pytest.mark.parametrize("budget", [None, Budget(tokens=100_000), Budget(seconds=60)])
@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_scorer_that_fails_ends_the_search_and_leaves_no_work_behind(policy: str, budget: Budget | None) -> None:
    engine = simulated(p=0.9, steps=4)
    strategy = partial(tree, scorer=Failing(), n=8, beam_width=4, policy=policy)
    with pytest.raises(ArithmeticError) as failure:
        asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=5, budget=budget))
    counted, usage = engine.counters(), spent(failure.value)
    assert (counted.generated + counted.overrun, counted.calls) == (usage.generated + usage.overrun, usage.calls)
    gc.collect()  # a coroutine that nobody awaited says so when it goes


def test_the_children_of_one_node_are_one_request_to_the_engine_and_one_to_the_scorer() -> None:
    _, asked, scored = grow("dvts")
    assert asked[:2] == [4, 4] and max(asked) == 4 and sum(asked) > 8
    assert sorted(scored) == sorted(asked)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_path_that_the_depth_cuts_is_a_candidate_and_told_as_pruned_nowhere(policy: str) -> None:
    answer, _, _ = grow(policy, max_depth=2)
    left = {event.path for event in answer.trace if event.kind == "prune"}
    assert answer.candidates and left.isdisjoint(candidate.path for candidate in answer.candidates)
    assert {candidate.finish_reason for candidate in answer.candidates} == {"length"}


@pytest.mark.parametrize("budget", [Budget(calls=500), Budget(flops=1e30), Budget(seconds=600.0), Budget(tokens=10**6)])
def test_under_any_budget_every_child_is_a_request_of_its_own(budget: Budget) -> None:
    _, asked, _ = grow("dvts", budget)
    assert set(asked) == {1}


@pytest.mark.parametrize("policy", ["dvts", "beam", "rebase", "particle", "puct", "gibbs"])
@pytest.mark.parametrize("options", [{}, {"verify_every": 2}])
def test_a_budget_that_is_not_reached_changes_no_path_and_no_score(policy: str, options: dict[str, int]) -> None:
    free, _, _ = grow(policy, **options)
    for budget in (Budget(calls=10**6), Budget(tokens=10**7)):
        held, _, _ = grow(policy, budget, **options)
        assert held.candidates == free.candidates and held.final == free.final
        assert held.usage == free.usage


class Blocked:
    """The scripted engine with ids whose cache has blocks; notes where every step ends."""

    def __init__(self, block: int) -> None:
        self.inner = ScriptedEngine(replies({"q": ("x" * 100,)}))
        self.capabilities = replace(self.inner.capabilities, cache_block=block)
        self.ends: list[int] = []

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        done = await self.inner.generate(prompt, sampling, draws, on_usage)
        self.ends += [len(prompt.token_ids) + len(completion.token_ids) for completion in done]
        return done


@pytest.mark.parametrize(("block", "step"), [(32, 16), (16, 16), (16, 64), (32, 24)])
def test_steps_of_equal_length_end_one_token_into_a_block_of_the_cache(block: int, step: int) -> None:
    """That token is all that the next step computes again."""
    engine = Blocked(block)
    strategy = partial(tree, scorer=simulated_scorer(noise=1.0), n=4, boundary="tokens", max_step_tokens=step)
    asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=5, sampling=Sampling(max_tokens=95)))
    common = math.gcd(block, step)
    cut = [end for end in engine.ends if end < max(engine.ends)]
    assert cut and {end % common for end in cut} == {1 % common}


@pytest.mark.parametrize("block", [1, 16])
def test_steps_that_end_by_their_text_are_not_made_longer_for_a_cache(block: int) -> None:
    engine = Blocked(block)
    strategy = partial(tree, scorer=simulated_scorer(noise=1.0), n=4, max_step_tokens=16)
    asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=5, sampling=Sampling(max_tokens=95)))
    assert min(engine.ends) == len(engine.render(ask("q").messages, None).token_ids) + 16


@pytest.mark.parametrize("tokens", [1, 20, 90, 400])
def test_a_longer_first_step_stays_within_its_budget(tokens: int) -> None:
    strategy = partial(tree, scorer=simulated_scorer(noise=1.0), n=4, boundary="tokens", max_step_tokens=16)
    answer = asyncio.run(
        solve(
            ask("q"),
            engine=Blocked(16),
            strategy=strategy,
            seed=5,
            sampling=Sampling(max_tokens=95),
            budget=Budget(tokens=tokens),
        )
    )
    assert 0 < answer.usage.tokens <= tokens
