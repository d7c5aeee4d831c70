"""How the search runtime asks: one request for the children of a node, or one for each where a budget may end."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.ttc.questions import ask
from ttc.core import Budget, Completion, Prompt, Sampling, Score, UsageSink
from ttc.engines.simulated import simulated
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
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


def test_the_children_of_one_node_are_one_request_to_the_engine_and_one_to_the_scorer() -> None:
    _, asked, scored = grow("dvts")
    assert asked[:2] == [4, 4] and max(asked) == 4 and sum(asked) > 8
    assert sorted(scored) == sorted(asked)


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
