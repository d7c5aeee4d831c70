"""Oracle 33: spending by marginal gain is optimal for concave gains, never over budget, and alike for the alike."""

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

from evals.calibrate import fit, read_pools, worth
from evals.commands import calibrate as command
from evals.replay import open_source
from tests.ttc.questions import ask
from ttc.allocation import Arm, Kind, allocate, hull, load_plan
from ttc.cli import main
from ttc.core import Budget, Sampling
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.solve import solve
from ttc.strategies.auto import auto

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
    falling = len(set(gains)) == len(gains)
    assert not falling or max(sizes) - min(sizes) <= 1


def test_arms_below_the_hull_are_never_bought() -> None:
    arms = [Arm("majority", n, t, a) for n, t, a in ((1, 1, 0.5), (2, 2, 0.4), (4, 4, 0.55), (8, 8, 0.9), (9, 9, 0.9))]
    assert [arm.n for arm in hull(arms)] == [1, 8]


def test_a_budget_below_the_pilot_is_refused_with_what_it_takes() -> None:
    with pytest.raises(ConfigError, match="takes 1"):
        allocate([concave("k", [0.5])], 0.5)


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
    assert made == fit(read_pools(records), pilot=4, seed=0, source=made.source)
    assert made.spent == sum(r.answer.usage.tokens for r in records if r.answer)
    assert math.isclose(sum(kind.share for kind in made.kinds), 1)
    assert not made.scored and {kind.name for kind in made.kinds} <= {f"{i} agree" for i in range(5)}


def test_auto_draws_a_pilot_for_all_and_more_where_it_helps_and_keeps_to_its_mean(plan: Path) -> None:
    engine, tokens = simulated(), 900.0
    problems = [ask(f"quantity {i} at level {1 + i % 5}") for i in range(90)]

    async def go():
        strategy = partial(auto, plan=str(plan), tokens=tokens)
        return await asyncio.gather(*(solve(p, engine=engine, strategy=strategy, seed=7) for p in problems))

    found = asyncio.run(go())
    sizes = [len(answer.candidates) for answer in found]
    assert min(sizes) == 4 and max(sizes) > 4
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
        ({"tokens": 10.0}, "pilot"),
        ({"scorer": object()}, "without a scorer"),
    ):
        with pytest.raises(ConfigError, match=reason):
            asyncio.run(one(**params))
    limits = {"sampling": Sampling(temperature=0.0)}
    with pytest.raises(ConfigError, match="temperature"):
        asyncio.run(one())


def test_the_cross_fitted_worth_keeps_to_its_budget_and_rises_with_it(pool: Path) -> None:
    pools = read_pools(open_source(pool).records)
    low, high = (worth(pools, tokens, pilot=4, seed=1) for tokens in (550.0, 1000.0))
    assert sum(low[1]) < sum(high[1])
    assert abs(sum(high[1]) / len(pools) - 1000) < 250
    assert sum(high[0]) > sum(low[0]) - 2.0
