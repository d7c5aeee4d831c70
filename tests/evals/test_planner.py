"""The run-level planner: one total for a run, to the token, the same for any schedule, and through any kill."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.allocation.calibrate import fit, halves, read_pools
from evals.allocation.planner import PLAN, WAVES, Planner
from evals.run_folder import read_run
from ttc.allocation.plan import DrawKind, Plan, save_plan
from ttc.answers import kind_of
from ttc.choosing.selection import vote
from ttc.cli.cli import main
from ttc.config.plugins import without_scores
from ttc.core import Answer, Budget, Message, Price, Problem, Prompt, Record, Sampling, Score, Usage, UsageSink
from ttc.engines.simulated import simulated, truth
from ttc.errors import ConfigError, EngineError
from ttc.records import RecordFile
from ttc.scorers.simulated import SimulatedScorer
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve, spent
from ttc.strategies.auto import auto, draw_wave

pytestmark = pytest.mark.usefixtures("without_matplotlib")

NUM, TOTAL = 40, 27_000
EVAL = ["eval", "--task", "simulated", "--level", "mixed", "--engine", "simulated", "--baseline", "none", "--seed", "3"]
PROBLEMS = [
    Problem(f"p{i}", (Message("user", f"What is quantity {i} at level {1 + i % 5}?"),), "number") for i in range(NUM)
]


class Drawing:
    """Draws waves on the simulated engine; counts them, and is killed after so many."""

    def __init__(
        self, scored: bool = False, killed_after: int | None = None, broken: str | None = None, width: int = 1
    ) -> None:
        search = {"policy": "dvts", "beam_width": width} if width > 1 else {}
        self.kind = DrawKind(width=width, scored=scored, search=search)
        self.engine, self.scorer = simulated(jitter=5), simulated_scorer(preset="good") if scored else None
        self.count, self._killed_after, self._broken = 0, killed_after, broken

    async def __call__(self, problem: Problem, kind: DrawKind, draws: range, limit: Budget) -> Answer:
        if self.count == self._killed_after:
            raise KeyboardInterrupt
        if problem.id == self._broken:
            raise EngineError("gone")
        self.count += 1
        wave = functools.partial(draw_wave, start=draws.start, end=draws.stop, kind=kind, scorer=self.scorer)
        return await solve(
            problem, engine=self.engine, strategy=wave, seed=1, budget=limit, sampling=Sampling(max_tokens=512)
        )


def plan_run(folder: Path, drawing: Drawing, num: int = NUM, **options: Any) -> list[Answer]:
    settings = {"total": TOTAL, "max_tokens": 512, "kind": drawing.kind, "seed": 1, **options}
    planner = Planner(folder, PROBLEMS[:num], drawing, **settings)

    async def go() -> list[Answer]:
        await planner.run()
        return [await planner.answer(problem) for problem in PROBLEMS[:num]]

    return asyncio.run(go())


def told(found: Sequence[Answer]) -> list[Any]:
    return [(a.final, a.usage, a.candidates, a.stop_cause) for a in found]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("runs") / "pool"
    assert main([*EVAL, "--limit", "50", "--strategy", "majority", "--n", "16", "--out", str(out)]) == 0
    return fit([read_pools(out)], seed=0, source={})


@pytest.mark.long
@pytest.mark.parametrize(("learns", "width", "num"), [(False, 0, NUM), (True, 0, NUM), (True, 1, NUM), (True, 4, 20)])
def test_the_total_holds_to_the_token_and_any_concurrency_gives_the_same(
    tmp_path: Path, plan: Plan, learns: bool, width: int, num: int
) -> None:
    total = TOTAL * max(width, 1) * num // NUM
    runs = [
        plan_run(
            tmp_path / str(slots),
            Drawing(scored=bool(width), width=max(width, 1)),
            num,
            concurrency=slots,
            plan=None if learns else plan,
            total=total,
        )
        for slots in (1, 64)
    ]
    assert told(runs[0]) == told(runs[1])
    spent = sum(answer.usage.tokens for answer in runs[0])
    # What was learnt from a few problems may find nothing more to gain; a calibrated plan uses it all.
    assert (0.6 if learns else 0.97) * total <= spent <= total
    assert all(answer.candidates for answer in runs[0])


def test_a_killed_run_goes_on_where_it_was_and_draws_nothing_twice(tmp_path: Path, plan: Plan) -> None:
    whole = Drawing()
    wanted = plan_run(tmp_path / "whole", whole, plan=plan)
    killed = Drawing(killed_after=100)
    with pytest.raises(KeyboardInterrupt):
        plan_run(tmp_path / "cut", killed, plan=plan)
    resumed = Drawing()
    assert told(plan_run(tmp_path / "cut", resumed, plan=plan)) == told(wanted)
    assert resumed.count < whole.count and len((tmp_path / "cut" / WAVES).read_text().splitlines()) == whole.count
    again = Drawing()
    plan_run(tmp_path / "cut", again, plan=plan)
    assert again.count == 0
    waves = json.loads((tmp_path / "cut" / PLAN).read_text())["waves"]
    assert waves[0]["members"] == [problem.id for problem in PROBLEMS]
    assert all(later["start"] >= before["start"] for before, later in itertools.pairwise(waves))


def test_more_goes_to_the_problems_between_easy_and_hopeless(tmp_path: Path, plan: Plan) -> None:
    found = plan_run(tmp_path, Drawing(), plan=plan)
    sizes = [len(answer.candidates) for answer in found]
    by_level = [sum(sizes[level::5]) / len(sizes[level::5]) for level in range(5)]
    assert min(sizes) <= 4 and max(sizes) >= 8
    assert by_level[0] < max(by_level[1:4])


def test_a_problem_that_fails_costs_only_itself(tmp_path: Path, plan: Plan) -> None:
    planner = Planner(
        tmp_path, PROBLEMS, Drawing(broken="p7"), total=TOTAL, max_tokens=512, kind=DrawKind(), seed=1, plan=plan
    )
    asyncio.run(planner.run())
    with pytest.raises(EngineError):
        asyncio.run(planner.answer(PROBLEMS[7]))
    assert asyncio.run(planner.answer(PROBLEMS[8])).candidates


def test_a_problem_that_fails_late_keeps_the_cost_of_its_earlier_waves_on_the_ledger(
    tmp_path: Path, plan: Plan
) -> None:
    class Breaking(Drawing):
        """Fails at the second wave of a problem, whose first one was paid for."""

        async def __call__(self, problem: Problem, kind: DrawKind, draws: range, limit: Budget) -> Answer:
            if draws.start:
                raise EngineError("gone")
            return await super().__call__(problem, kind, draws, limit)

    drawing, spent_tokens = Breaking(), list[int]()
    settings: dict[str, Any] = {"total": TOTAL, "max_tokens": 512, "kind": drawing.kind, "seed": 1, "plan": plan}
    planner = Planner(tmp_path, PROBLEMS, drawing, **settings, on_spent=spent_tokens.append)

    async def cost(problem: Problem) -> int:
        try:
            return (await planner.answer(problem)).usage.tokens
        except EngineError as error:
            return spent(error).tokens

    async def go() -> list[int]:
        await planner.run()
        return [await cost(problem) for problem in PROBLEMS]

    costs = asyncio.run(go())
    assert min(costs) > 0 and sum(costs) == sum(spent_tokens)


def test_a_scorer_that_reads_long_problems_scores_every_draw_that_the_total_pays_for(tmp_path: Path) -> None:
    class Reading(SimulatedScorer):
        """Reads 1,500 tokens of a problem before it scores, more than a draw and its scores take."""

        def __init__(self) -> None:
            super().__init__(1.5, 1.0)
            self.problems: set[str] = set()

        def price(self, prompt: Prompt) -> Price:
            price = super().price(prompt)
            return Price(price.fixed + (0 if prompt.problem_id in self.problems else 1500), price.per_token)

        async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
            for problem_id in {prompt.problem_id for prompt in prompts} - self.problems:
                on_usage(Usage(scored=1500))
                self.problems.add(problem_id)
            return await super().score(prompts, on_usage)

        def release(self, problem_id: str) -> None:
            super().release(problem_id)
            self.problems.discard(problem_id)

    drawing = Drawing(scored=True)
    drawing.scorer = Reading()
    answers = plan_run(tmp_path, drawing, total=200_000)
    assert sum(answer.usage.tokens for answer in answers) <= 200_000
    assert all(c.score is not None for answer in answers for c in answer.candidates)


def test_a_total_below_the_first_samples_is_refused_before_any_token(tmp_path: Path, plan: Plan) -> None:
    drawing = Drawing()
    with pytest.raises(ConfigError, match=f"first samples of {NUM} problems"):
        plan_run(tmp_path, drawing, total=1000, plan=plan)
    assert drawing.count == 0


def test_a_run_too_small_to_learn_from_gives_everybody_the_same(tmp_path: Path) -> None:
    found = plan_run(tmp_path, Drawing(), total=9_300)
    assert sum(answer.usage.tokens for answer in found) <= 9_300
    assert {len(answer.candidates) for answer in found} <= {1, 2}


def test_a_problem_whose_draw_the_total_has_cut_says_so(tmp_path: Path) -> None:
    found = plan_run(tmp_path, Drawing(), total=1000)
    assert sum(answer.usage.tokens for answer in found) == 1000
    cut = [answer for answer in found if any(c.finish_reason == "length" for c in answer.candidates)]
    finished = [answer for answer in found if answer.final is not None]
    assert cut and {answer.stop_cause for answer in cut} == {"budget"}
    assert finished and {answer.stop_cause for answer in finished} == {"n=1"}


def test_eval_spends_its_budget_as_a_total_of_auto_and_as_a_limit_of_others(tmp_path: Path, plan: Plan) -> None:
    save_plan(plan, tmp_path / "plan.json")
    out = tmp_path / "run"
    command = [*EVAL, "--limit", "40", "--strategy", f"auto:plan={tmp_path / 'plan.json'},majority:n=4"]
    assert main([*command, "--budget", "tokens=24000", "--out", str(out)]) == 0
    auto, majority = (read_run(out / name) for name in sorted(p.name for p in out.iterdir() if p.is_dir()))
    spent = sum(record.answer.usage.tokens for record in auto.records if record.answer)
    assert 0.95 * 24_000 <= spent <= 24_000
    assert auto.config["params"]["total"] == 24_000 and auto.config["budget"] is None
    assert majority.config["budget"]["tokens"] == 24_000
    right = [r for r in auto.records if r.answer and r.answer.final == truth(r.problem.messages[0].content)]
    assert len(right) == sum(record.verdict.correct for record in auto.records if record.verdict)
    assert main([*command, "--budget", "tokens=24000,calls=9", "--out", str(tmp_path / "other")]) == 2


@pytest.mark.parametrize("score", [None, -1.0])
def test_draws_without_a_score_that_can_be_used_vote(tmp_path: Path, score: float | None, pool_of_scored: Path) -> None:
    class Useless(SimulatedScorer):
        async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
            return [Score(score, note="none") for _ in prompts]

    plan = fit([read_pools(pool_of_scored)], seed=0, source={})
    drawing = Drawing(scored=True)
    drawing.scorer = Useless(1.0, 0.1)
    save_plan(plan, tmp_path / "plan.json")
    alone = functools.partial(auto, plan=str(tmp_path / "plan.json"), tokens=2000.0, scorer=drawing.scorer)
    answers = plan_run(tmp_path / "run", drawing, 12, total=30_000)
    if score is None:  # a plan may choose by argmax, which takes what is below 0
        answers += [asyncio.run(solve(one, engine=drawing.engine, strategy=alone, seed=1)) for one in PROBLEMS[:12]]
    for answer in answers:
        leader = vote(answer.candidates, kind_of("number").key)
        assert answer.final == (leader and leader.final)
    assert max(len(answer.candidates) for answer in answers) > 2
    assert ("scores below 0" in without_scores(answers)) == (score is not None)


@pytest.fixture(scope="module")
def pool_of_scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scored") / "pool"
    scored = ["--strategy", "best_of_n", "--n", "8", "--scorer", "simulated", "--set", "scorer.preset=good"]
    assert main([*EVAL, "--limit", "30", *scored, "--out", str(out)]) == 0
    return out


@pytest.mark.long
def test_a_plan_calibrated_on_a_tree_run_draws_subtrees(tmp_path: Path) -> None:
    scored = ["--scorer", "simulated", "--set", "scorer.preset=good"]
    searched = [*EVAL, *scored, "--limit", "16", "--strategy", "tree:n=16,policy=dvts", "--out", str(tmp_path / "pool")]
    assert main(searched) == 0
    assert main(["calibrate", str(tmp_path / "pool"), "--out", str(tmp_path / "plan.json")]) == 0
    pools = read_pools(tmp_path / "pool")
    assert pools.kind.width == 4 and all(len(pool.draws) == 4 for pool in pools.by_id.values())
    total = round(1.5 * pools.spent / 4)
    command = [*EVAL, *scored, "--limit", "16", "--strategy", f"auto:plan={tmp_path / 'plan.json'}"]
    assert main([*command, "--budget", f"tokens={total}", "--out", str(tmp_path / "run")]) == 0
    found = [record.answer for record in read_run(tmp_path / "run").records if record.answer]
    assert 0.8 * total <= sum(answer.usage.tokens for answer in found) <= total
    # The total ends within an island; what that leaves over begins another that ends sooner, and so on.
    cut = [at for at, answer in enumerate(found) if len(answer.candidates) % 4]
    assert len(cut) <= 3, [len(answer.candidates) for answer in found]
    # With tokens for all, nothing is cut.
    assert main([*command, "--budget", f"tokens={4 * total}", "--out", str(tmp_path / "rich")]) == 0
    rich = [record.answer for record in read_run(tmp_path / "rich").records if record.answer]
    assert len(rich) == 16 and {len(answer.candidates) % 4 for answer in rich} == {0}
    with pytest.raises(ConfigError, match="only runs of whole samples"):
        read_pools(tmp_path / "rich")
    beam = [*EVAL, *scored, "--limit", "4", "--strategy", "tree:n=8,policy=beam", "--out", str(tmp_path / "beam")]
    assert main(beam) == 0
    with pytest.raises(ConfigError, match="policy=dvts"):
        read_pools(tmp_path / "beam")


@pytest.mark.parametrize(("problems", "rows"), [(3, 0), (9, 3)])
def test_a_small_pool_calibrates_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problems: int, rows: int
) -> None:
    pool = tmp_path / "pool"
    drawn = ["--limit", str(problems), "--strategy", "majority", "--n", "4", "--baseline", "none", "--out", str(pool)]
    assert main([*EVAL, *drawn]) == 0
    capsys.readouterr()
    assert main(["calibrate", str(pool), "--out", str(tmp_path / "plan.json")]) == 0
    told = capsys.readouterr()
    assert (tmp_path / "plan.json").is_file() and told.out.count("accuracy") == rows
    assert ("cannot be cross-fitted" in told.err) == (not rows)


def test_calibration_tells_what_it_leaves_out_and_weighs_variants_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool"
    drawn = ["--limit", "12", "--strategy", "majority", "--n", "4", "--baseline", "none", "--out", str(pool)]
    assert main([*EVAL, *drawn]) == 0
    records = list(read_run(pool).records)

    def told(changed: list[Record]) -> Any:
        (pool / "records.jsonl").unlink()
        with RecordFile(pool / "records.jsonl") as file:
            for record in changed:
                file.append(record)
        capsys.readouterr()
        assert main(["calibrate", str(pool), "--out", str(tmp_path / "plan.json")]) == 0
        return capsys.readouterr()

    alone = told(records)
    assert "left out" not in alone.err
    failed = [
        replace(record, answer=None, verdict=None, verdicts=(), error="EngineError: gone") for record in records[:2]
    ]
    assert "left out: 2 problems that failed or are not in all of these runs" in told([*failed, *records[2:]]).err
    paired = [replace(r, provenance={**r.provenance, "cluster": str(i // 3)}) for i, r in enumerate(records)]
    assert told(paired).out.splitlines()[1] != alone.out.splitlines()[1]

    fitted_apart = [{record.problem.id for record in paired[at : at + 3]} for at in range(0, 12, 3)]
    for _, names in halves([read_pools(pool)], seed=0):
        assert all(variants <= set(names) or variants.isdisjoint(names) for variants in fitted_apart)
    threes = [replace(r, provenance={**r.provenance, "cluster": str(i // 4)}) for i, r in enumerate(records)]
    assert "cannot be cross-fitted" in told(threes).err


BREAKING = """
import pathlib

from ttc.engines.simulated import simulated
from ttc.errors import EngineError

def engine():
    inner = simulated()
    ask = inner.generate

    async def generate(prompt, *arguments, **options):
        with pathlib.Path("asked.txt").open("a") as file:
            file.write("x")
        if "quantity 3 " in prompt.text:
            raise EngineError("gone")
        return await ask(prompt, *arguments, **options)

    inner.generate = generate
    return inner
"""


def test_a_finished_run_of_a_total_asks_nothing_again_for_a_problem_that_failed(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_plan(plan, tmp_path / "plan.json")
    (tmp_path / "mine.py").write_text(BREAKING)
    command = ["eval", "--task", "simulated", "--engine", "mine.py:engine", "--limit", "8", "--baseline", "none"]
    command += ["--strategy", "auto:plan=plan.json", "--budget", "tokens=4800", "--out", "run"]
    assert main(command) == 3
    asked, waves = (Path(name).read_bytes() for name in ("asked.txt", "run/waves.jsonl"))
    assert main(command) == 3
    assert [Path(name).read_bytes() for name in ("asked.txt", "run/waves.jsonl")] == [asked, waves]
    main([*command, "--retry-errors"])
    assert Path("asked.txt").stat().st_size > len(asked)
