"""Oracle 33: spending by marginal gain is optimal for concave gains, never over budget, and alike for the alike.

The policy of `auto` is held against all policies there are, on plans small enough to try them all.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.oracle_allocation import Arm, Kind, allocate, hull
from evals.allocation.calibrate import fit, read_pools, worth
from evals.commands import calibrate as command
from evals.commands.replay import open_source
from tests.oracles.tools import ballots
from tests.ttc.questions import ask
from ttc.allocation.plan import (
    Climb,
    Mixture,
    Plan,
    Route,
    State,
    StoppingPolicy,
    follow,
    load_plan,
    policy_at,
    save_plan,
    state_of,
)
from ttc.allocation.plan import DrawKind as Draws
from ttc.answers import kind_of
from ttc.cli.cli import main
from ttc.core import Budget, Sampling
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.session.solve import solve
from ttc.strategies.auto import auto
from ttc.strategies.direct import direct

GAINS = st.lists(st.floats(0.001, 1), min_size=1, max_size=4)


def concave(name: str, gains: list[float], share: float = 1.0) -> Kind:
    """Arms of unit cost each, with falling gains."""
    steps = sorted(gains, reverse=True)
    arms = [Arm("majority", i + 1, float(i + 1), sum(steps[:i])) for i in range(len(steps) + 1)]
    return Kind(name, share, tuple(arms))


def value(kinds: list[Kind], found) -> float:
    return sum(
        kind.share * ((1 - f.fraction) * f.arm.accuracy + f.fraction * f.more.accuracy)
        for kind in kinds
        for f in [found[kind.name]]
    )


def cost(kinds: list[Kind], found) -> float:
    return sum(
        kind.share * ((1 - f.fraction) * f.arm.tokens + f.fraction * f.more.tokens)
        for kind in kinds
        for f in [found[kind.name]]
    )


@given(st.lists(GAINS, min_size=1, max_size=4), st.integers(0, 10))
def test_marginal_allocation_equals_the_exhaustive_optimum(rows, extra: int) -> None:
    kinds = [concave(f"k{i}", gains) for i, gains in enumerate(rows)]
    budget = len(kinds) + extra
    best = max(
        sum(arm.accuracy for arm in choice)
        for choice in itertools.product(*(kind.arms for kind in kinds))
        if sum(arm.tokens for arm in choice) <= budget
    )
    found = allocate(kinds, budget)
    assert math.isclose(value(kinds, found), best, abs_tol=1e-9)
    assert cost(kinds, found) <= budget + 1e-9


@given(st.lists(GAINS, min_size=1, max_size=5), st.floats(0, 9), st.data())
def test_the_budget_is_never_exceeded_and_is_used_up_where_something_is_left_to_gain(rows, extra: float, data) -> None:
    raw = data.draw(st.lists(st.floats(0.05, 1), min_size=len(rows), max_size=len(rows)))
    kinds = [concave(f"k{i}", gains, share / sum(raw)) for i, (gains, share) in enumerate(zip(rows, raw, strict=True))]
    budget = 1 + extra
    found = allocate(kinds, budget)
    spent = cost(kinds, found)
    assert spent <= budget + 1e-9
    most = sum(kind.share * kind.arms[-1].tokens for kind in kinds)
    assert math.isclose(spent, min(budget, most), rel_tol=1e-9)


@given(GAINS, st.integers(2, 5), st.floats(0, 4))
def test_identical_kinds_get_equal_budgets_up_to_one_step(gains, number: int, extra: float) -> None:
    kinds = [concave(f"k{i}", gains, 1 / number) for i in range(number)]
    sizes = [found.arm.n for found in allocate(kinds, 1 + extra).values()]
    falling = all(first - second > 1e-9 for first, second in itertools.pairwise(sorted(gains)[::-1]))
    assert not falling or max(sizes) - min(sizes) <= 1


def test_arms_below_the_hull_are_never_bought() -> None:
    arms = [Arm("majority", n, t, a) for n, t, a in ((1, 1, 0.5), (2, 2, 0.4), (4, 4, 0.55), (8, 8, 0.9), (9, 9, 0.9))]
    assert [arm.n for arm in hull(arms)] == [1, 8]


def test_a_budget_below_the_pilot_is_refused_with_what_it_takes() -> None:
    with pytest.raises(ConfigError, match="it takes 1"):
        allocate([concave("k", [0.5])], 0.5)


SHARES = st.floats(0.05, 0.95)


@st.composite
def routes(draw) -> Route:
    """Two states on each of three rungs, with any accuracies, costs and transitions."""
    accuracy, cost = st.floats(0, 1), st.floats(1, 50)
    rungs, visits = [], draw(SHARES)
    for rung in range(3):
        states = {}
        for name, share in (("0.0", visits), ("1.0", 1 - visits)):
            on = draw(SHARES)
            leads = {"0.0": on, "1.0": 1 - on} if rung < 2 else {}
            states[name] = State(share, draw(cost) if leads else 0.0, {"majority": draw(accuracy)}, leads)
        visits = sum(state.visits * state.leads.get("0.0", 0.0) for state in states.values())
        rungs.append(states)
    return Route(Draws(), (1, 2, 4), (), float(draw(st.integers(1, 20))), tuple(rungs))


def one_route(states) -> Plan:
    """A plan of one rung."""
    return Plan((Route(Draws(), (1,), (), 100.0, (states,)),), 0, {})


PLANS = st.lists(routes(), min_size=1, max_size=3).map(lambda found: Plan(tuple(found), 0, {}))


def play(route: Route, go) -> tuple[float, float]:
    """Expected accuracy and tokens of going on from the states of `go`."""
    here = {name: state.visits for name, state in route.rungs[0].items()}
    right, spent = 0.0, route.first
    for rung, states in enumerate(route.rungs):
        above: dict[str, float] = {}
        for name, chance in here.items():
            state = states[name]
            if name not in go[rung]:
                right += chance * state.accuracy["majority"]
                continue
            spent += chance * state.tokens
            for other, share in state.leads.items():
                above[other] = above.get(other, 0.0) + chance * share
        here = above
    return right, spent


def played(plan: Plan, policy: StoppingPolicy) -> tuple[float, float]:
    return play(plan.routes[policy.route], policy.climbs[policy.route].go)


def every_policy(plan: Plan) -> list[tuple[float, float]]:
    """Accuracy and tokens of all that can be done: every route, and on it every choice of states to go on from."""
    subsets = [frozenset(names) for k in range(3) for names in itertools.combinations(("0.0", "1.0"), k)]
    choices = [(*choice, frozenset()) for choice in itertools.product(subsets, repeat=2)]
    return [play(route, go) for route in plan.routes for go in choices]


@given(PLANS, st.floats(1e-6, 0.05))
def test_no_policy_gains_more_than_the_one_of_backward_induction_at_any_price(plan: Plan, price: float) -> None:
    right, spent = played(plan, policy_at(plan, price))
    best = max(value - price * cost for value, cost in every_policy(plan))
    assert math.isclose(right - price * spent, best, abs_tol=1e-9)


@given(PLANS, st.floats(0, 1))
def test_the_mixture_spends_its_tokens_and_nothing_that_spends_no_more_is_more_often_right(plan: Plan, share) -> None:
    every = every_policy(plan)
    most = max(cost for _, cost in every)
    tokens = plan.first + share * (most - plan.first)
    found = follow(plan, tokens)
    lean, rich = played(plan, found.lean), played(plan, found.rich)
    right = (1 - found.fraction) * lean[0] + found.fraction * rich[0]
    spent = (1 - found.fraction) * lean[1] + found.fraction * rich[1]
    assert spent <= tokens + 1e-6
    assert right >= max(value for value, cost in every if cost <= tokens) - 1e-6


def test_the_share_of_a_mixture_that_follows_the_richer_policy_is_its_fraction() -> None:
    lean, rich = (StoppingPolicy(0, (Climb(go, ()),)) for go in ((), (frozenset({"8.2"}),)))
    mixture = Mixture(lean, rich, 0.3)
    assert [mixture.pick(u) is rich for u in (0.0, 0.2999, 0.3, 0.9)] == [True, True, False, False]


def test_states_tell_agreement_and_with_a_scorer_how_good_the_best_is() -> None:
    assert state_of(ballots(["1", "1", "1", "1"]), kind_of("number").key, ()) == "8.4"
    assert state_of(ballots(["1", "1", "2", "3"]), kind_of("number").key, ()) == "4.1"
    assert state_of(ballots([None, None]), kind_of("number").key, ()) == "0.0"
    assert state_of(ballots(["1"] * 64), kind_of("number").key, ()) == "8.6"
    assert state_of(ballots(["1", "2"], [0.9, 0.1]), kind_of("number").key, (0.5, 0.8)) == "3.3.2"
    assert state_of(ballots(["1", "2", "2"], [0.6, 0.4, 0.4]), kind_of("number").key, (0.5, 0.8)) == "2.2.1"
    assert state_of(ballots([None], [None]), kind_of("number").key, (0.5,)) == "0.0.0"


def test_a_state_that_was_never_seen_is_taken_for_its_neighbour() -> None:
    state = State(0.5, 0.0, {"majority": 0.5}, {})
    (route,) = one_route({"0.0": state, "8.2": state}).routes
    assert route.known(0, "7.1") == "8.2" and route.known(0, "1.1") == "0.0" and route.known(0, "8.2") == "8.2"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "pool"
    simulate = ["--task", "simulated", "--level", "mixed", "--engine", "simulated", "--limit", "40"]
    assert (
        main(["eval", *simulate, "--strategy", "majority", "--n", "16", "--baseline", "none", "--out", str(out)]) == 0
    )
    return out


@pytest.fixture(scope="module")
def plan(pool: Path) -> Path:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    path = pool / "plan.json"
    args = parser.parse_args(["calibrate", str(pool), "--out", str(path)])
    assert args.run(args) == 0
    return path


def test_a_plan_survives_its_file_and_states_what_it_cost(pool: Path, plan: Path) -> None:
    made = load_plan(str(plan))
    records = open_source(pool).records
    assert made == fit([read_pools(pool)], seed=0, source=made.source)
    assert made.spent == sum(r.answer.usage.tokens for r in records if r.answer)
    (route,) = made.routes
    assert route.ladder == (1, 2, 3, 4, 6, 8, 12, 16) and not made.scored
    for rung in route.rungs:
        assert math.isclose(sum(state.visits for state in rung.values()), 1)
    for states, above in itertools.pairwise(route.rungs):
        for name, state in above.items():
            met = sum(s.visits * s.leads.get(name, 0.0) for s in states.values())
            assert math.isclose(met, state.visits, abs_tol=1e-9)


def test_auto_draws_one_for_all_and_more_where_it_helps_and_keeps_to_its_mean(plan: Path) -> None:
    tokens = 900.0
    problems = [ask(f"quantity {i} at level {1 + i % 5}") for i in range(90)]

    async def go():
        strategy = partial(auto, plan=str(plan), tokens=tokens)
        run: dict = {"engine": simulated(), "strategy": strategy, "seed": 7, "shared": {}}
        return await asyncio.gather(*(solve(problem, **run) for problem in problems))

    found = asyncio.run(go())
    sizes = [len(answer.candidates) for answer in found]
    assert min(sizes) <= 4 and max(sizes) > 8
    spent = [answer.usage.tokens for answer in found]
    mean = sum(spent) / len(spent)
    error = math.sqrt(sum((s - mean) ** 2 for s in spent) / len(spent) / len(spent))
    assert abs(mean - tokens) < 4 * error
    easy = [n for n, p in zip(sizes, problems, strict=True) if "level 1" in p.id]
    assert sum(easy) / len(easy) < sum(sizes) / len(sizes)


def test_auto_holds_a_hard_limit_too_and_refuses_what_does_not_fit(plan: Path, tmp_path: Path) -> None:
    def one(**params):
        strategy = partial(auto, **{"plan": str(plan), "tokens": 2000.0, **params})
        return solve(ask("quantity 1 at level 3"), engine=simulated(), strategy=strategy, seed=1, **limits)

    limits: dict = {"budget": Budget(tokens=500)}
    answer = asyncio.run(one())
    assert answer.usage.tokens <= 500
    limits = {}
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"pilot": 4}))
    for params, reason in (
        ({"plan": str(broken)}, "ttc calibrate"),
        ({"plan": "nowhere.json"}, "ttc calibrate"),
        ({"tokens": 10.0}, "first samples"),
        ({"tokens": None}, "--budget tokens=TOTAL"),
        ({"plan": None}, "ttc calibrate"),
        ({"scorer": object()}, "without a scorer"),
        ({"width": 4}, "a plan knows its own"),
    ):
        with pytest.raises(ConfigError, match=reason):
            asyncio.run(one(**params))
    limits = {"sampling": Sampling(temperature=0.0)}
    with pytest.raises(ConfigError, match="temperature"):
        asyncio.run(one())


def test_at_temperature_0_a_plan_of_one_sample_is_the_greedy_answer(tmp_path: Path) -> None:
    state = State(1.0, 0.0, {"majority": 0.5}, {})
    save_plan(one_route({"8.2": state}), tmp_path / "one.json")

    def one(strategy, place: int):
        greedy = Sampling(temperature=0.0)
        return solve(ask(f"problem {place}"), engine=simulated(), strategy=strategy, seed=1, sampling=greedy)

    for place in range(5):
        planned = asyncio.run(one(partial(auto, plan=str(tmp_path / "one.json"), tokens=100.0), place))
        plain = asyncio.run(one(direct, place))
        assert planned.final == plain.final and planned.candidates == plain.candidates
        assert planned.usage == plain.usage


def test_the_cross_fitted_worth_keeps_to_its_budget_and_rises_with_it(pool: Path) -> None:
    pools = read_pools(pool)
    low, high = (worth([pools], tokens, seed=1) for tokens in (550.0, 1000.0))
    assert sum(low[1]) < sum(high[1])
    assert abs(sum(high[1]) / len(pools.by_id) - 1000) < 250
    assert sum(high[0]) > sum(low[0]) - 2.0
