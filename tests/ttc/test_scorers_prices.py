"""What scorers on a server, judges and ensembles say they will cost, and that a token budget then holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.ttc.questions import ask
from tests.ttc.reward_models import qwen_head
from tests.ttc.reward_server import PrefixCache, classify, metrics, models, pooling, reward_server, spans
from tests.ttc.test_scorers_adapters import grow, root, run
from ttc.core import Budget, Price, Prompt, Sampling
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import simulated
from ttc.scorers.constant import constant
from ttc.scorers.ensemble import EnsembleScorer
from ttc.scorers.judge import judge
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import StepsOverHttp
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.direct import direct
from ttc.strategies.tree import tree


def noise(ids: list[int]) -> list[list[float]]:
    """Rows that depend on the ids, by no model."""
    return [[0.0, (sum(ids[: at + 1]) % 13) / 7] for at in range(len(ids))]


def routes_of(way: str, cache: PrefixCache) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """A server whose label model is read in this way."""
    known = {"/v1/models": models("m"), "/metrics": metrics(16)}
    ways = {
        "spans": {"/pooling": spans(noise, cache)},
        "last": {"/classify": classify(lambda ids: noise(ids)[-1], cache)},
        "tokens": {"/pooling": pooling(noise, None)},
    }
    return known | ways[way]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(qwen_head(tmp_path_factory.mktemp("q") / "m", 2, "Qwen2ForProcessRewardModel"))


@pytest.mark.parametrize("way", ["spans", "last", "tokens"])
def test_the_price_of_a_path_on_a_server_is_what_it_then_costs(qwen: str, way: str) -> None:
    with reward_server(routes_of(way, PrefixCache(16))) as (url, _):
        scorer = prm(qwen, StepsOverHttp(base_url=url))
        node, charged = root(), 0
        assert scorer.price(node) == Price(0, 2, len(scorer._layout.root(node)))
        for step in ("It is 1 + 1.", "So it is 2, and three times this is 6.", "The answer is 6."):
            node = grow(node, step + "\n\n")
            price = scorer.price(node)
            _, scored = run(scorer, [node])
            length, charged = len(scorer._layout.lay(node).ids), charged + scored
            assert price.fixed == scored
            again = length if way == "tokens" else (length - 1) % 16 + 1
            assert scorer.price(node) == Price(0, 2, again)
        assert (charged > 2 * length) == (way == "tokens")


@pytest.mark.parametrize("way", ["spans", "last", "tokens"])
@pytest.mark.parametrize("tokens", [300, 1200, 2500])
def test_a_reward_model_on_a_server_keeps_to_the_budget(qwen: str, way: str, tokens: int) -> None:
    with reward_server(routes_of(way, PrefixCache(16))) as (url, _):
        answer = asyncio.run(
            solve(
                ask("x"),
                engine=simulated(p=0.8, steps=4),
                strategy=partial(tree, scorer=prm(qwen, StepsOverHttp(base_url=url)), n=4, policy="beam"),
                seed=1,
                sampling=Sampling(max_tokens=80),
                budget=Budget(tokens=tokens),
            )
        )
    assert answer.usage.tokens <= tokens
    assert answer.usage.scored > 0 or tokens == 300


@pytest.mark.parametrize(("mode", "most"), [("pairwise", 2 * 2 * 50), ("single", 2 * 50)])
def test_a_judge_asks_for_room_for_its_longest_verdicts(mode: str, most: int) -> None:
    scorer = judge(engine=ScriptedEngine(lambda prompt, path, key: ""), mode=mode, opponents=3, max_tokens=50)
    assert scorer.price(root()) == Price(0, 0, most, calls=most // 50)
    assert scorer.price(grow(root(), "It is 6.")) == Price(most, 0, most, calls=most // 50)


def test_an_ensemble_costs_what_its_members_cost() -> None:
    engine = ScriptedEngine(lambda prompt, path, key: "")
    members = [judge(engine=engine, mode="single", max_tokens=5), judge(engine=engine, opponents=1, max_tokens=7)]
    assert EnsembleScorer([*members, constant()]).price(grow(root(), "6")) == Price(24, 0, 24, calls=4)
    assert EnsembleScorer([constant()]).price(root()) == Price()


@pytest.mark.parametrize("tokens", [100, 400, 1000])
@pytest.mark.parametrize("mode", ["pairwise", "single"])
def test_a_judge_keeps_to_the_budget(tokens: int, mode: str) -> None:
    def script(prompt: Prompt, path: tuple[int, ...], key: int) -> str:
        return "thinking about it. Verdict: A" if "Verdict" in prompt.text else f"\\boxed{{{path[-1]}}}"

    engine = ScriptedEngine(script)
    scorer = judge(engine=engine, mode=mode, opponents=2, max_tokens=40)
    answer = asyncio.run(
        solve(
            ask("x"),
            engine=engine,
            strategy=partial(best_of_n, scorer=scorer, n=8),
            seed=1,
            sampling=Sampling(max_tokens=20),
            budget=Budget(tokens=tokens),
        )
    )
    assert answer.usage.tokens <= tokens and answer.candidates
    assert (answer.usage.judged > 0) == (tokens > 100 or mode == "single")


@pytest.mark.parametrize("calls", [1, 2, 3, 7, 20, 60])
@pytest.mark.parametrize("mode", ["pairwise", "single"])
@pytest.mark.parametrize("more", [{}, {"of": direct}, {"select": "weighted"}])
def test_the_calls_of_a_judge_are_within_the_budget_of_calls(calls: int, mode: str, more: dict[str, Any]) -> None:
    def script(prompt: Prompt, path: tuple[int, ...], key: int) -> str:
        return "Verdict: A" if "Verdict" in prompt.text else f"\\boxed{{{path[0]}}}"

    engine = ScriptedEngine(script)
    strategy = partial(best_of_n, scorer=judge(engine=engine, mode=mode, opponents=2), n=8, **more)
    answer = asyncio.run(solve(ask("x"), engine=engine, strategy=strategy, seed=1, budget=Budget(calls=calls)))
    assert engine.counters().calls == answer.usage.calls <= calls
    assert answer.final is not None and (answer.usage.judged > 0 or calls < 20)
