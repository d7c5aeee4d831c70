"""Oracles 29, 30, 35 and budgets: what everything costs, to the token, under any schedule and any limit."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.oracles.tools import answers
from tests.ttc import conformance as suite
from ttc.core import Answer, Budget, Engine, Price, Sampling, Usage
from ttc.errors import BudgetExceeded, ConfigError
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.meter import Meter, Request
from ttc.session.solve import solve
from ttc.strategies.adaptive import adaptive
from ttc.strategies.aggregate import aggregate
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.confidence import confidence
from ttc.strategies.direct import direct
from ttc.strategies.early_exit import early_exit
from ttc.strategies.first_finished import first_finished
from ttc.strategies.genselect import genselect
from ttc.strategies.knockout import knockout
from ttc.strategies.majority import majority
from ttc.strategies.no_think_then_think import no_think_then_think
from ttc.strategies.refine import refine
from ttc.strategies.tree import tree

CASES = suite.cases("scripted")


def limited(case: suite.Case, budget: Budget | None, jitter: int | None = None) -> tuple[Answer, Engine]:
    engine = suite.talkative(jitter)
    work = solve(
        suite.problems(1)[0],
        engine=engine,
        strategy=case.make(),
        seed=6,
        sampling=Sampling(max_tokens=60),
        thinking=case.thinking,
        budget=budget,
    )
    return asyncio.run(work), engine


@pytest.mark.parametrize("name", CASES)
def test_no_strategy_ever_spends_more_than_its_budget_and_all_answer_when_it_ends(name: str) -> None:
    free, _ = limited(CASES[name], None)
    for share in (0.03, 0.2, 0.45, 0.8, 1.0):
        tokens = max(int(free.usage.tokens * share), 1)
        calls = max(int(free.usage.calls * share), 1 + CASES[name].thinking.active)  # one more for what follows a cut
        by_tokens, _ = limited(CASES[name], Budget(tokens=tokens))
        assert by_tokens.usage.tokens <= tokens
        by_calls, engine = limited(CASES[name], Budget(calls=calls))
        assert by_calls.usage.calls <= calls + by_calls.usage.overrun  # a look past a thinking cap is a call of its own
        assert engine.counters().generated == by_calls.usage.generated + by_calls.usage.overrun
        for answer in (by_tokens, by_calls):
            if answer.usage.tokens < free.usage.tokens:
                assert answer.stop_cause == "budget"
            if answer.final is not None:
                assert any(c.final == answer.final for c in answer.candidates)


@pytest.mark.parametrize("name", CASES)
def test_a_budget_is_spent_alike_in_any_schedule(name: str) -> None:
    free, _ = limited(CASES[name], None)
    budget = Budget(tokens=max(free.usage.tokens // 2, 1))
    first, second = (suite.essence(limited(CASES[name], budget, jitter)[0]) for jitter in (1, 5))
    assert first == second


@pytest.mark.parametrize("name", CASES)
def test_a_budget_that_suffices_changes_nothing(name: str) -> None:
    free, _ = limited(CASES[name], None)
    ample, _ = limited(CASES[name], Budget(tokens=50 * free.usage.tokens + 10_000, calls=10_000))
    assert suite.essence(free) == suite.essence(ample)


PRICED = CASES | {
    "knockout by a scorer with a price": suite.Case(lambda: partial(knockout, n=5, scorer=simulated_scorer(noise=1.0)))
}


@pytest.mark.parametrize("name", PRICED)
@pytest.mark.parametrize("share", [0.4, 1.5, 40])
def test_what_a_run_did_not_use_is_there_for_the_next_one(name: str, share: float) -> None:
    case = PRICED[name]
    free, _ = limited(case, None)
    budget, left = Budget(tokens=max(int(free.usage.tokens * share), 2)), list[float]()

    async def twice(problem, session):
        answer = await session.run(case.make(), 0)
        left.append(session._meter.left.tokens - (budget.tokens or 0) + session.usage.tokens)
        return answer

    limited(suite.Case(lambda: twice, case.thinking), budget)
    assert left == [0]


@pytest.mark.parametrize("name", CASES)
def test_generated_tokens_are_those_of_all_pieces_and_every_candidate_is_made_of_them(name: str) -> None:
    answer, engine = limited(CASES[name], None)
    pieces: dict[tuple[int, ...], int] = {}
    for event in answer.trace:
        if event.kind == "generate":
            pieces[event.path] = pieces.get(event.path, 0) + event.data["num_tokens"]
    assert sum(pieces.values()) == answer.usage.generated
    assert engine.counters().generated == answer.usage.generated + answer.usage.overrun
    for candidate in answer.candidates:
        assert candidate.path in pieces


@pytest.mark.parametrize("policy", ["beam", "dvts", "rebase", "particle", "entropic", "puct"])
def test_what_a_search_scores_and_keeps_adds_up(policy: str) -> None:
    strategy = partial(tree, scorer=simulated_scorer(noise=1.0), n=6, beam_width=3, policy=policy)
    for answer in answers(strategy, 4, p=0.8, steps=4, cv=0.9):
        lengths = {e.path: e.data["num_tokens"] for e in answer.trace if e.kind == "generate"}
        leaves = {c.path for c in answer.candidates}
        on_the_way = {leaf[:i] for leaf in leaves for i in range(1, len(leaf) + 1)}
        delivered = sum(lengths[path] for path in on_the_way)
        pruned = sum(length for path, length in lengths.items() if path not in on_the_way)
        assert delivered + pruned == answer.usage.generated
        assert answer.usage.scored <= answer.usage.generated


def test_costs_grow_with_n_and_raising_n_keeps_what_was_there() -> None:
    previous: Answer | None = None
    for n in (1, 2, 5, 9):
        (answer,) = answers(partial(best_of_n, scorer=simulated_scorer(noise=1.0), n=n), 1, p=0.8)
        if previous is not None:
            assert answer.candidates[: len(previous.candidates)] == previous.candidates
            assert answer.usage.generated > previous.usage.generated
            assert answer.usage.prompt > previous.usage.prompt
        assert answer.usage.prompt == n * len("user: problem 0\nassistant: ")
        assert answer.usage.calls == n
        assert answer.usage.generated == sum(c.num_tokens + 1 for c in answer.candidates)
        previous = answer


def test_an_uncached_search_submits_its_context_at_every_step_as_the_formula_says() -> None:
    """Prefill without a cache: N (T P + s T (T - 1) / 2) for equal steps of s tokens."""
    n, steps, width = 4, 5, 3
    strategy = partial(tree, scorer=simulated_scorer(), n=n, beam_width=n, policy="dvts")
    (answer,) = answers(strategy, 1, p=1.0, steps=steps, mean_step_tokens=width)
    prompt, size = len("user: problem 0\nassistant: "), 4  # a letter, a filler, a blank line
    rounds = steps + 1  # and the answer
    assert answer.usage.prompt == n * (rounds * prompt + size * steps * (steps + 1) // 2)
    assert answer.usage.calls == n * rounds


PARALLEL = (adaptive, aggregate, confidence, first_finished, genselect, knockout, majority)
BAD = {
    "n": [*((s, {"n": n}) for s in PARALLEL for n in (0, -1)), (tree, {"n": -1, "scorer": simulated_scorer()})],
    "temperature": [(s, {}) for s in PARALLEL],
    "m": [(first_finished, {"n": 2, "m": 3}), (first_finished, {"m": 0}), (no_think_then_think, {"m": 0})],
    "chunk": [(first_finished, {"chunk": 0}), (confidence, {"chunk": 0}), (early_exit, {"chunk": 0})],
    "probe_tokens": [(early_exit, {"probe_tokens": 0})],
    "threshold": [*((adaptive, {"threshold": value}) for value in (0.5, 1.0, 1.5)), (early_exit, {"threshold": 0.0})],
    "keep": [(confidence, {"keep": 0.0})],
    "warmup": [(confidence, {"warmup": 0}), (confidence, {"n": 4, "warmup": 5})],
    "consensus": [(confidence, {"consensus": 0})],
    "wave": [(confidence, {"wave": 0}), (adaptive, {"wave": 0})],
    "agreement": [(no_think_then_think, {"agreement": 0.0}), (no_think_then_think, {"agreement": 1.1})],
    "k": [(knockout, {"k": 0}), (genselect, {"k": 0}), (aggregate, {"n": 2, "k": 3}), (aggregate, {"k": 0})],
    "group": [(genselect, {"group": 1}), (confidence, {"group": 0})],
    "rounds": [(aggregate, {"rounds": -1}), (refine, {"rounds": -1})],
    "scorer": [(refine, {"feedback": "scorer"})],
    "beta": [(best_of_n, {"beta": 0.0, "scorer": simulated_scorer()})],
    "window": [
        (best_of_n, {"window": 0, "scorer": simulated_scorer()}),
        (tree, {"window": 0, "scorer": simulated_scorer()}),
        (adaptive, {"window": 0}),
    ],
    "verify_every": [(tree, {"verify_every": 0, "scorer": simulated_scorer()})],
    "policy": [(tree, {"policy": "beem", "scorer": simulated_scorer()})],
    "ess": [(tree, {"policy": "particle:ess=2", "scorer": simulated_scorer()})],
    "beam_width must be": [
        (tree, {"policy": name, "beam_width": 0, "scorer": simulated_scorer()}) for name in ("beam", "dvts", "puct")
    ],
    "temperature must": [(tree, {"policy": "rebase:temperature=0", "scorer": simulated_scorer()})],
    "floor": [(tree, {"policy": "entropic:floor=2", "scorer": simulated_scorer()})],
    "c must": [(tree, {"policy": "puct:c=-1", "scorer": simulated_scorer()})],
    "has no parameter": [(tree, {"policy": "beam:wide=1", "scorer": simulated_scorer()})],
}


@pytest.mark.parametrize(("field", "strategy", "params"), [(f, s, p) for f, rows in BAD.items() for s, p in rows])
def test_what_cannot_mean_anything_is_refused_by_name_before_a_token_is_spent(field: str, strategy, params) -> None:
    engine = suite.talkative()
    sampling = Sampling(temperature=0.0 if field == "temperature" else 0.8)
    work = solve(suite.problems(1)[0], engine=engine, strategy=partial(strategy, **params), seed=1, sampling=sampling)
    with pytest.raises(ConfigError, match=field):
        asyncio.run(work)
    assert engine.counters() == Usage()


def test_greedy_decoding_of_one_sample_needs_no_temperature() -> None:
    for strategy in (direct, partial(majority, n=1), partial(adaptive, n=1), partial(refine, rounds=0)):
        work = solve(
            suite.problems(1)[0],
            engine=suite.talkative(),
            strategy=strategy,
            seed=1,
            sampling=Sampling(temperature=0.0),
        )
        assert asyncio.run(work).final is not None


def test_what_scoring_takes_is_set_aside_before_a_draw_begins() -> None:
    meter = Meter(Budget(tokens=50))
    lease = meter.lease(Request(1, 100, Price(fixed=30, per_token=1)))
    assert (lease.max_tokens, lease.tokens) == (10, 50)
    assert Meter(Budget(tokens=50)).lease(Request(1, 100, Price(fixed=30, per_token=1), injected=8)).max_tokens == 6
    with pytest.raises(BudgetExceeded):
        Meter(Budget(tokens=31)).lease(Request(1, 100, Price(fixed=30, per_token=1)))
    with pytest.raises(BudgetExceeded):
        meter.lease(Request(1, 1))


def test_a_budget_of_calls_pays_for_the_pieces_of_a_draw_and_is_shared_without_a_rest() -> None:
    meter = Meter(Budget(calls=7))
    first = meter.lease(Request(3, 10, calls=2))
    assert (first.num_draws, first.max_calls) == (3, 2)
    last = meter.lease(Request(3, 10, calls=2))
    assert (last.num_draws, last.max_calls) == (1, 1)
    with pytest.raises(BudgetExceeded):
        meter.lease(Request(1, 10))
    parent = Meter(Budget(tokens=11, calls=2))
    shares = [parent.share(3, i).budget for i in range(3)]
    assert [share.tokens for share in shares] == [4, 4, None] and [share.calls for share in shares] == [1, 1, None]
    with pytest.raises(BudgetExceeded):
        parent.share(3, 2).lease(Request(1, 1))
