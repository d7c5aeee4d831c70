"""A token budget is exact for scored tokens too: room for scoring is leased with the draw, in path order."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loops import finished
from tests.ttc.questions import ask
from tests.ttc.reward_models import qwen_head
from ttc.core import Answer, Budget, Completion, Price, Sampling, Scorer, Usage
from ttc.engines.embedded.engine import embedded
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import simulated
from ttc.errors import BudgetExceeded
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.meter import Meter, Request
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.tree import tree


def drawn(path: int, num_tokens: int) -> Completion:
    return Completion((path,), "", tuple(range(num_tokens)), "stop", usage=Usage(generated=num_tokens))


def test_a_draw_keeps_room_for_its_scoring_until_it_is_scored() -> None:
    meter = Meter(Budget(tokens=100))
    before = Price(10, 1)
    lease = meter.lease(Request(1, 20, before))
    assert lease.tokens == 50
    meter.add(Usage(generated=12))
    meter.settle(lease)
    meter.keep(lease, [drawn(0, 12)], [Price(before.fixed + 12)], before)
    with pytest.raises(BudgetExceeded):
        meter.lease(Request(1, 1, Price(66, 0), (5,)))
    assert meter.affords((0,))
    assert meter.lease(Request(1, 100)).max_tokens == 100 - 12 - 10 - 12


def test_the_fixed_part_is_leased_once_a_prompt_and_not_lost_when_it_does_not_fit() -> None:
    meter = Meter(Budget(tokens=100))
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            meter.lease(Request(1, 20, Price(99, 1)))
    assert [meter.lease(Request(1, 20, Price(30, 1))).tokens for _ in range(2)] == [70, 30]


def test_what_is_kept_comes_back_when_the_path_is_scored() -> None:
    meter = Meter(Budget(tokens=100))
    before = Price(10, 1)
    lease = meter.lease(Request(1, 20, before))
    meter.settle(lease)
    meter.keep(lease, [drawn(0, 12)], [Price(before.fixed + 12)], before)
    meter.add(Usage(generated=12, scored=22))
    meter.release((0,))
    assert meter.lease(Request(1, 1000)).max_tokens == 100 - 34


def test_a_draw_longer_than_its_lease_foresaw_is_not_scored_rather_than_overspent() -> None:
    meter = Meter(Budget(tokens=100))
    before = Price(0, 1)
    lease = meter.lease(Request(1, 20, before))
    meter.settle(lease)
    meter.keep(lease, [drawn(0, 20)], [Price(before.fixed + 45)], before)
    assert not meter.affords((0,))
    assert meter.lease(Request(1, 1000)).max_tokens == 100


@given(st.integers(1, 400), st.integers(1, 12), st.integers(1, 40), st.integers(0, 60), st.integers(0, 3))
def test_a_priced_lease_never_exceeds_what_is_left(
    budget: int, num: int, max_tokens: int, fixed: int, each: int
) -> None:
    meter = Meter(Budget(tokens=budget))
    try:
        lease = meter.lease(Request(num, max_tokens, Price(fixed, each)))
    except BudgetExceeded:
        assert budget < fixed + 1 + each
    else:
        assert lease.tokens <= budget and 1 <= lease.num_draws <= num and 1 <= lease.max_tokens <= max_tokens


def test_what_every_draw_costs_is_leased_with_each_and_cannot_be_drawn_from() -> None:
    meter = Meter(Budget(tokens=100))
    before = Price(10, 1, 20)
    lease = meter.lease(Request(5, 10, before))
    assert (lease.num_draws, lease.max_tokens, lease.tokens) == (2, 10, 10 + 2 * (20 + 20))
    meter.settle(lease)
    short = meter.lease(Request(1, 100, Price(0, 1, 70), (1,)))
    assert (short.max_tokens, short.tokens) == (15, 100)
    meter.settle(short)
    with pytest.raises(BudgetExceeded):
        meter.lease(Request(1, 1, Price(0, 1, 99), (2,)))
    meter.keep(lease, [drawn(0, 8)], [Price(before.fixed + 32)], before)
    assert meter.affords((0,)) and meter.lease(Request(1, 100)).max_tokens == 100 - 32 - 10


def search(strategy: str, tokens: int, jitter: int | None = None, **options: object) -> Answer:
    engine = simulated(p=0.8, steps=4) if jitter is None else simulated(p=0.8, steps=4, jitter=jitter)
    function = {"tree": tree, "best_of_n": best_of_n}[strategy]
    return asyncio.run(
        solve(
            ask("x"),
            engine=engine,
            strategy=partial(function, scorer=simulated_scorer(noise=0.5), **options),  # type: ignore[arg-type]
            seed=1,
            sampling=Sampling(max_tokens=90),
            budget=Budget(tokens=tokens),
        )
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 1500), st.sampled_from(["tree", "best_of_n"]), st.sampled_from([4, 16]))
def test_no_search_spends_a_token_more_than_its_budget(tokens: int, strategy: str, n: int) -> None:
    answer = search(strategy, tokens, n=n)
    assert answer.usage.tokens <= tokens


def test_every_draw_of_best_of_n_is_scored_but_the_first_where_that_needs_all_there_is() -> None:
    for tokens in (70, 100, 200, 400):
        answer = search("best_of_n", tokens, n=16)
        assert answer.stop_cause == "budget" and answer.final is not None
        assert all(candidate.score is not None for candidate in answer.candidates[1:])
        assert answer.usage.scored > 0 or tokens == 70


def test_the_tree_under_a_budget_does_not_depend_on_the_schedule() -> None:
    for tokens in (150, 333, 700):
        trees = [search("tree", tokens, jitter, n=8, policy="beam") for jitter in (None, 1, 2)]
        assert len({tuple((c.path, c.text, c.score) for c in answer.candidates) for answer in trees}) == 1


@pytest.mark.parametrize("tokens", [80, 300, 900])
def test_the_packaged_models_keep_to_the_budget_in_a_tree_search(tokens: int) -> None:
    engine = embedded(device="cpu")
    scorer = prm(None, EmbeddedCore(device="cpu"))

    answer = finished(
        solve(
            ask("12+30*2"),
            engine=engine,
            strategy=partial(tree, scorer=scorer, n=8),
            seed=1,
            sampling=Sampling(max_tokens=100),
            budget=Budget(tokens=tokens),
        ),
        engine,
    )
    assert answer.usage.tokens <= tokens
    if tokens == 900:
        assert answer.usage.scored > 0


@pytest.mark.parametrize("tokens", [300, 700, 1600])
def test_a_reward_model_with_a_tokenizer_of_its_own_keeps_to_the_budget_on_every_schedule(
    tmp_path: Path, tokens: int
) -> None:
    folder = str(qwen_head(tmp_path / "m", 2, "Qwen2ForProcessRewardModel"))
    on_cpu = EmbeddedCore(device="cpu", dtype="float32")

    def once(jitter: int | None) -> Answer:
        return asyncio.run(
            solve(
                ask("x"),
                engine=simulated(p=0.8, steps=4, jitter=jitter),
                strategy=partial(tree, scorer=prm(folder, on_cpu), n=4, policy="beam"),
                seed=1,
                sampling=Sampling(max_tokens=80),
                budget=Budget(tokens=tokens),
            )
        )

    answers = [once(jitter) for jitter in (None, 1, 2)]
    assert all(answer.usage.tokens <= tokens for answer in answers)
    assert any(candidate.score is not None for candidate in answers[0].candidates) == (tokens == 1600)
    assert len({tuple((c.path, c.text) for c in answer.candidates) for answer in answers}) == 1


def test_a_scorer_without_a_price_is_charged_when_it_reports() -> None:
    class Unpriced(Scorer):
        async def score(self, prompts, on_usage):  # type: ignore[no-untyped-def]
            from ttc.core import Score

            on_usage(Usage(scored=1000))
            return [Score(0.5)] * len(prompts)

    engine = ScriptedEngine(lambda prompt, path, key: "\\boxed{1}")
    answer = asyncio.run(
        solve(
            ask("x"),
            engine=engine,
            strategy=partial(best_of_n, scorer=Unpriced(), n=2),
            seed=1,
            sampling=Sampling(max_tokens=20),
            budget=Budget(tokens=100),
        )
    )
    assert answer.final == "1" and answer.usage.scored == 1000
