"""Plans of several routes: the greedy answer, plain samples and islands of a search, of recorded runs of each."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evals.allocation.calibrate import fit, opened, read_pools, routes, spend, unscored
from evals.run_folder import read_run
from tests.ttc.questions import ask
from ttc.allocation.plan import Plan, load_plan, save_plan
from ttc.cli.cli import main
from ttc.core import Answer, Sampling
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
from ttc.strategies.auto import auto
from ttc.strategies.direct import direct

pytestmark = pytest.mark.usefixtures("without_matplotlib")

SIMULATED = ["eval", "--task", "simulated", "--level", "mixed", "--engine", "simulated", "--baseline", "none"]
SCORED = [*SIMULATED, "--seed", "3", "--limit", "16", "--scorer", "simulated", "--set", "scorer.preset=good"]
RUNS = {
    "greedy": [*SCORED, "--temperature", "0", "--strategy", "best_of_n:n=1"],
    "samples": [*SCORED, "--strategy", "best_of_n:n=12"],
    "islands": [*SCORED, "--strategy", "tree:n=16,policy=particle,islands=4"],
    "votes": [*SIMULATED, "--seed", "3", "--limit", "16", "--strategy", "majority:n=4"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, command in RUNS.items():
        assert main([*command, "--out", str(folder / name)]) == 0
    return {name: folder / name for name in RUNS}


@pytest.fixture(scope="module")
def plan(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plans") / "plan.json"
    sources = [str(runs[name]) for name in ("greedy", "samples", "islands")]
    assert main(["calibrate", *sources, "--out", str(out)]) == 0
    return out


def solved(plan: Path, tokens: float, places: int = 40, **options: Any) -> list[Answer]:
    strategy = partial(auto, plan=str(plan), tokens=tokens, scorer=simulated_scorer(preset="good"))
    problems = [ask(f"quantity {i} at level {1 + i % 5}") for i in range(places)]

    async def go() -> list[Answer]:
        run: dict[str, Any] = {"engine": simulated(), "strategy": strategy, "seed": 7, "shared": {}, **options}
        return await asyncio.gather(*(solve(problem, **run) for problem in problems))

    return asyncio.run(go())


def test_greedy_answers_open_every_route_and_samples_are_one_with_and_one_without_their_scorer(plan: Path) -> None:
    kinds = [route.kind for route in load_plan(str(plan)).routes]
    assert all(kind.greedy for kind in kinds)
    assert [(kind.width, kind.scored, kind.search.get("policy")) for kind in kinds] == [
        (1, True, None),
        (4, True, "particle"),
        (1, True, None),
        (1, False, None),
        (1, False, None),
    ]
    assert [route.ladder[-1] for route in load_plan(str(plan)).routes] == [13, 5, 1, 13, 1]


def test_every_draw_of_a_calibration_is_charged_once(runs: dict[str, Path], plan: Path) -> None:
    used = [read_run(runs[name]).records for name in ("greedy", "samples", "islands")]
    assert load_plan(str(plan)).spent == sum(r.answer.usage.tokens for found in used for r in found if r.answer)


def test_the_cheapest_budget_gets_the_greedy_answer_of_direct(plan: Path) -> None:
    cheapest = load_plan(str(plan)).first
    found = solved(plan, cheapest)
    greedy = partial(solve, engine=simulated(), strategy=direct, seed=7, sampling=Sampling(temperature=0.0))
    for place, answer in enumerate(found):
        plain = asyncio.run(greedy(ask(f"quantity {place} at level {1 + place % 5}")))
        assert (answer.final, answer.usage) == (plain.final, plain.usage)


def test_a_rich_budget_takes_the_island_route_and_stays_within_its_mean(plan: Path) -> None:
    tokens = 2500.0
    found = solved(plan, tokens)
    notes = [event.data for answer in found for event in answer.trace if event.kind == "note"]
    assert {note["route"] for note in notes} <= set(range(5)) and len(notes) == len(found)
    sizes = {len(answer.candidates) for answer in found}
    assert any(size > 1 for size in sizes)
    spent = [answer.usage.tokens for answer in found]
    mean = sum(spent) / len(spent)
    error = math.sqrt(sum((s - mean) ** 2 for s in spent)) / len(spent)
    assert mean < tokens + 4 * error


def test_the_draws_of_a_route_are_those_that_its_runs_recorded_the_greedy_one_first(runs: dict[str, Path]) -> None:
    made = fit([read_pools(runs["greedy"]), read_pools(runs["islands"])], seed=0, source={})
    assert [route.kind.width for route in made.routes] == [4, 1, 1]
    islands = opened(read_pools(runs["greedy"]), read_pools(runs["islands"]))
    assert all(pool.greedy and len(pool.draws) == 5 and len(pool.draws[0]) == 1 for pool in islands.by_id.values())


def test_what_a_plan_is_worth_is_played_on_the_route_that_it_takes(runs: dict[str, Path]) -> None:
    known = [read_pools(runs["greedy"]), read_pools(runs["samples"])]
    made = fit(known, seed=0, source={})
    right, spent = spend(made, known, made.first, seed=0)
    cheapest = unscored(read_pools(runs["greedy"]))
    assert spent == [pool.tokens[0] for pool in cheapest.by_id.values()]
    assert right == [float(pool.right[0]) for pool in cheapest.by_id.values()]
    assert [pools.kind.scored for pools in routes(known)] == [True, True, False, False]
    rich, _ = spend(made, known, 1e9, seed=0)
    assert sum(rich) > sum(right) + 1


def test_a_pilot_of_several_draws_leaves_the_greedy_answer_alone_out(runs: dict[str, Path]) -> None:
    known = [read_pools(runs["greedy"]), read_pools(runs["islands"])]
    (route,) = fit(known, seed=0, source={}, pilot=2).routes
    assert route.kind.width == 4 and route.ladder[0] == 2
    for pilot in (0, 6):
        with pytest.raises(ConfigError, match=f"got {pilot}"):
            fit(known, seed=0, source={}, pilot=pilot)


@pytest.mark.parametrize(
    ("names", "reason"),
    [(["greedy", "greedy"], "one run of greedy answers"), (["greedy", "votes"], "a scorer where they have one")],
)
def test_runs_that_do_not_go_together_are_refused(runs: dict[str, Path], names: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fit([read_pools(runs[name]) for name in names], seed=0, source={})


def test_runs_of_other_problems_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    other = [*RUNS["votes"], "--problems-seed", "4"]
    assert main([*other, "--out", str(tmp_path / "other")]) == 0
    with pytest.raises(ConfigError, match="no problem in common"):
        fit([read_pools(runs["votes"]), read_pools(tmp_path / "other")], seed=0, source={})


@pytest.mark.parametrize("tokens", [6_000, 26_000])
def test_a_run_spends_its_total_over_several_routes_and_goes_on_after_it_was_killed(
    plan: Path, tmp_path: Path, tokens: int
) -> None:
    command = [*SCORED, "--strategy", f"auto:plan={plan}", "--budget", f"tokens={tokens}"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    records = read_run(tmp_path / "run").records
    spent = sum(record.answer.usage.tokens for record in records if record.answer)
    assert 0.6 * tokens <= spent <= tokens
    # What is left of the journal after a kill is read again, and the rest is drawn as it was.
    journal = tmp_path / "run" / "waves.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:20]))
    (tmp_path / "run" / "records.jsonl").unlink()
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    again = read_run(tmp_path / "run").records
    assert [(r.problem.id, r.answer and r.answer.final, r.answer and r.answer.usage) for r in again] == [
        (r.problem.id, r.answer and r.answer.final, r.answer and r.answer.usage) for r in records
    ]


def test_a_plan_with_a_search_needs_its_scorer_and_one_of_an_older_form_is_refused(plan: Path, tmp_path: Path) -> None:
    strategy = partial(auto, plan=str(plan), tokens=900.0)
    with pytest.raises(ConfigError, match="with a scorer"):
        asyncio.run(solve(ask("quantity 1 at level 3"), engine=simulated(), strategy=strategy, seed=1))
    save_plan(Plan((), 0, {}), tmp_path / "empty.json")
    with pytest.raises(ConfigError, match="no routes"):
        load_plan(str(tmp_path / "empty.json"))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("tree:n=8,policy=particle,islands=3", "islands must divide n"),
        ("tree:n=8,policy=particle,islands=0", "islands must be at least 1"),
        ("tree:n=8,policy=puct,islands=2", "level by level"),
    ],
)
def test_islands_that_cannot_be_are_refused_before_any_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, reason: str
) -> None:
    assert main([*SCORED, "--strategy", spec, "--out", str(tmp_path / "run")]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.glob("**/records.jsonl"))
