"""Runs survive kills and bad problems, and no schedule changes what they record."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from evals.loop import evaluate
from evals.numbers.summary import total_usage, usage_of
from evals.run_folder import CONFIG, COUNTED, RECORDS, digest, held, read_run
from evals.task import Item
from evals.tasks.simulated import simulated as simulated_task
from tests.evals.runs import BoxVerifier, timeless
from ttc.core import Answer, Candidate, Problem, Record, Sampling, Submission, TargetLike, Verdict
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError, EngineError, EngineTimeout, PluginError, PromptRefused, PromptTooLong, RecordError
from ttc.session.session import Session
from ttc.session.solve import solve
from ttc.strategies.majority import majority

SETTINGS = {"task": "simulated", "strategy": "majority", "params": {"n": 16}, "seed": 3}


def items(count: int = 12) -> list[Item]:
    return simulated_task().items(count, 0)


async def solve_problem(problem: Problem, jitter: int | None = None) -> Answer:
    engine = simulated(p=0.9, steps=4, jitter=jitter)
    return await solve(problem, engine=engine, strategy=majority, seed=3, sampling=Sampling())


def run(folder: Path, problems: list[Item], solver=solve_problem, **options) -> list[Record]:  # type: ignore[no-untyped-def]
    options = {"concurrency": 4, **options}
    return asyncio.run(evaluate(folder, SETTINGS, problems, solver, BoxVerifier(), **options))


def test_every_problem_is_recorded_with_verdicts_of_the_answer_and_of_each_candidate(tmp_path: Path) -> None:
    records = run(tmp_path / "run", items())
    assert [record.problem.id for record in records] == [item.problem.id for item in items()]
    assert all(record.verdict is not None and record.answer is not None for record in records)
    assert all(len(record.verdicts) == len(record.answer.candidates) == 16 for record in records if record.answer)
    assert {verdict.status for record in records for verdict in record.verdicts} == {"correct", "incorrect"}
    assert read_run(tmp_path / "run").records == tuple(records)


def test_no_schedule_and_no_order_of_problems_changes_a_record(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", items(), concurrency=1)
    for concurrency, seed in [(7, 1), (64, 2)]:
        shuffled = items()
        random.Random(seed).shuffle(shuffled)

        async def jittered(problem: Problem, seed: int = seed) -> Answer:
            return await solve_problem(problem, jitter=seed)

        folder = tmp_path / f"jitter-{seed}"
        run(folder, shuffled, jittered, concurrency=concurrency)
        assert [timeless(r) for r in read_run(folder).records] == [timeless(r) for r in straight]


def test_equal_submissions_are_verified_once(tmp_path: Path) -> None:
    verifier = BoxVerifier()
    candidate = Candidate((0,), "\\boxed{1}", "", "1", "stop", 3)

    async def same(problem: Problem) -> Answer:
        return Answer("\\boxed{1}", "1", candidates=(candidate,) * 5)

    asyncio.run(evaluate(tmp_path / "run", SETTINGS, items(2), same, verifier, concurrency=1))
    assert verifier.calls == 2


SCRIPT = """
import asyncio, sys, time
sys.path.insert(0, {tests!r})
from test_run import SETTINGS, BoxVerifier, evaluate, items, solve_problem
from pathlib import Path

left = int(sys.argv[2])

async def hang_at_last(problem):
    global left
    left -= 1
    if left < 0:
        await asyncio.Event().wait()
    return await solve_problem(problem)

asyncio.run(evaluate(Path(sys.argv[1]), SETTINGS, items(40), hang_at_last, BoxVerifier(), concurrency=3))
"""


def test_a_killed_run_loses_nothing_does_nothing_twice_and_ends_the_same(tmp_path: Path) -> None:
    folder, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent)))
    for new, wanted in [(5, 5), (10, 15)]:
        process = subprocess.Popen([sys.executable, str(script), str(folder), str(new)], cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + 60
        while lines(folder) < wanted and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert lines(folder) == wanted
    with (folder / RECORDS).open("ab") as file:  # the third kill falls into the middle of a line
        file.write(b'{"schema":1,"problem":{"id":"simu')

    solved: list[str] = []

    async def counted(problem: Problem) -> Answer:
        solved.append(problem.id)
        return await solve_problem(problem)

    finished_before = {record.problem.id for record in read_run(folder).records}
    resumed = run(folder, items(40), counted)
    assert sorted(solved) == sorted({item.problem.id for item in items(40)} - finished_before)
    assert lines(folder) == 40
    whole = run(tmp_path / "whole", items(40))
    assert [timeless(record) for record in resumed] == [timeless(record) for record in whole]


def lines(folder: Path) -> int:
    path = folder / RECORDS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_cancelled_run_can_be_continued(tmp_path: Path) -> None:
    async def cancel_soon() -> None:
        task = asyncio.create_task(
            evaluate(tmp_path / "run", SETTINGS, items(), stuck_after_three, BoxVerifier(), concurrency=1)
        )
        while count <= 3:  # the fourth begins when three are written
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    count = 0

    async def stuck_after_three(problem: Problem) -> Answer:
        nonlocal count
        count += 1
        if count > 3:
            await asyncio.Event().wait()
        return await solve_problem(problem)

    asyncio.run(cancel_soon())
    assert lines(tmp_path / "run") == 3
    assert len(run(tmp_path / "run", items())) == 12
    assert lines(tmp_path / "run") == 12


def test_a_failed_problem_is_data_and_is_retried_only_on_request(tmp_path: Path) -> None:
    async def picky(problem: Problem) -> Answer:
        if problem.id.endswith("-1"):
            raise PromptTooLong("prompt has 9000 tokens, context is 4096")
        if problem.id.endswith("-2"):
            raise ExceptionGroup("many", [ZeroDivisionError("a bug in a strategy")])
        return await solve_problem(problem)

    first = run(tmp_path / "run", items(), picky)
    assert [record.error for record in first[:3]] == [
        None,
        "PromptTooLong: prompt has 9000 tokens, context is 4096",
        "ZeroDivisionError: a bug in a strategy",
    ]
    assert first[1].answer is None and first[1].verdict is None
    kept = run(tmp_path / "run", items())
    assert kept[1].error is not None
    retried = run(tmp_path / "run", items(), retry_errors=True)
    assert all(record.error is None for record in retried)
    assert [r.error for r in read_run(tmp_path / "run").records] == [None] * 12
    assert lines(tmp_path / "run") == 14


def test_what_a_strategy_spent_before_its_task_group_failed_is_in_the_record(tmp_path: Path) -> None:
    async def grouped(problem: Problem, session: Session) -> Answer:
        completions = await session.generate(session.render(), 2)
        raise ExceptionGroup("many", [EngineTimeout(f"after {len(completions)} draws")])

    async def solver(problem: Problem) -> Answer:
        return await solve(problem, engine=simulated(p=0.9, steps=4), strategy=grouped, seed=3)

    (record,) = run(tmp_path / "run", items(1), solver)
    assert record.error == "EngineTimeout: after 2 draws"
    assert record.provenance["spent"]["calls"] == 2 and record.provenance["spent"]["generated"] > 0


def test_what_failed_attempts_had_cost_stays_in_the_total_after_they_are_retried(tmp_path: Path) -> None:
    async def breaking(problem: Problem, session: Session) -> Answer:
        await session.generate(session.render(), 2)
        raise EngineTimeout("late")

    async def first(problem: Problem) -> Answer:
        strategy = breaking if problem.id.endswith("-1") else majority
        return await solve(problem, engine=simulated(p=0.9, steps=4), strategy=strategy, seed=3)

    failed = run(tmp_path / "run", items(3), first)
    twice = run(tmp_path / "run", items(3), first, retry_errors=True)
    done = run(tmp_path / "run", items(3), retry_errors=True)
    assert [record.error is None for record in done] == [True] * 3
    lost = failed[1].provenance["spent"]["calls"]
    assert lost == 2 and usage_of(twice[1]).calls == 2 * lost
    assert total_usage(done).calls == 3 * 16 + 2 * lost
    assert total_usage(read_run(tmp_path / "run").records) == total_usage(done)


def test_answers_without_a_verdict_are_judged_again_where_errors_are_retried_and_cost_nothing(tmp_path: Path) -> None:
    class Late(BoxVerifier):
        async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
            return Verdict("timeout", reason="too slow") if self.late else await super().verify(target, submission)

        late = True

    async def asked(problem: Problem) -> Answer:
        raise AssertionError("it is paid for")

    folder, verifier = tmp_path / "run", Late()
    judging = partial(evaluate, folder, SETTINGS, items(3), verifier=verifier, concurrency=2)
    first = asyncio.run(judging(solve=solve_problem))
    assert {record.verdict.status for record in first if record.verdict} == {"timeout"}
    verifier.late = False
    assert list(asyncio.run(judging(solve=asked))) == list(first), "kept, where nobody asks for more"
    again = asyncio.run(judging(solve=asked, retry_errors=True))
    assert [record.answer for record in again] == [record.answer for record in first]
    assert {record.verdict.status for record in again if record.verdict} <= {"correct", "incorrect"}
    assert read_run(folder).records == tuple(again) and total_usage(again) == total_usage(first)


def test_an_engine_that_keeps_failing_stops_the_run(tmp_path: Path) -> None:
    async def dead(problem: Problem) -> Answer:
        raise EngineTimeout("no answer in 5 s")

    with pytest.raises(EngineError, match=r"8 problems in a row failed.*no answer in 5 s.*--retry-errors"):
        run(tmp_path / "run", items(), dead)
    assert len(run(tmp_path / "run", items(), retry_errors=True)) == 12


@pytest.mark.parametrize("fault", [EngineError("answered 400: filtered"), PluginError("strategy mine.py:vote raised")])
def test_problems_that_fail_at_once_stop_no_run_whose_answers_come_later(fault: Exception, tmp_path: Path) -> None:
    async def filtered(problem: Problem) -> Answer:
        is_filtered = int(problem.id.rpartition("-")[2]) < 10
        await asyncio.sleep(0 if is_filtered else 0.02)
        if is_filtered:
            raise fault
        return await solve_problem(problem)

    records = run(tmp_path / "run", items(20), filtered, concurrency=12)
    assert [record.error is None for record in records] == [False] * 10 + [True] * 10
    assert lines(tmp_path / "run") == 20


def test_problems_that_a_filter_refuses_are_data_however_many_they_are(tmp_path: Path) -> None:
    async def filtered(problem: Problem) -> Answer:
        raise PromptRefused("answered 400: content_filter")

    records = run(tmp_path / "run", items(), filtered)
    assert [record.error for record in records] == ["PromptRefused: answered 400: content_filter"] * 12


def test_code_of_the_users_own_that_never_works_stops_the_run_and_one_that_works_once_does_not(tmp_path: Path) -> None:
    fault = "strategy mine.py:vote raised IndexError: list index out of range (mine.py, line 12)"

    async def broken(problem: Problem) -> Answer:
        raise PluginError(fault)

    with pytest.raises(PluginError, match=r"mine.py, line 12\); so did the first 8 problems: fix it.*--retry-errors"):
        run(tmp_path / "run", items(), broken)
    assert lines(tmp_path / "run") >= 8

    async def once(problem: Problem) -> Answer:
        return await solve_problem(problem) if problem.id.endswith("-0") else await broken(problem)

    records = run(tmp_path / "other", items(), once, concurrency=1)
    assert [record.error for record in records] == [None, *[f"PluginError: {fault}"] * 11]


def test_what_would_fail_every_problem_stops_the_run_unrecorded(tmp_path: Path) -> None:
    async def misconfigured(problem: Problem) -> Answer:
        raise ConfigError("n=4 needs temperature > 0")

    with pytest.raises(ConfigError, match="needs temperature"):
        run(tmp_path / "run", items(), misconfigured)
    assert lines(tmp_path / "run") == 0


def test_a_folder_of_another_run_is_refused_by_the_name_of_what_differs(tmp_path: Path) -> None:
    run(tmp_path / "run", items(2))
    other = {**SETTINGS, "params": {"n": 8}}
    with pytest.raises(ConfigError, match=r"params\.n is 16 there and 8 here"):
        asyncio.run(evaluate(tmp_path / "run", other, items(2), solve_problem, BoxVerifier(), concurrency=1))
    assert digest(other) != digest(SETTINGS) == digest(dict(reversed(SETTINGS.items())))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 4, "engine_params": {"logprobs": None, "seeded": None}}, "seed is 3 there and 4 here; choose"),
        (
            {"engine_params": {"logprobs": None, "seeded": None}},
            r"engine_params.seeded is false there and null here \(it is false where no --seed is given\)",
        ),
        (
            {"engine_params": {"logprobs": None, "seeded": False}},
            r"engine_params.logprobs is false there and null here \(.*; name a further strategy alone\)",
        ),
        ({"engine_params": {"max_context": 9}}, "engine_params.max_context is null there and 9 here; choose"),
        ({"fit": False, "sampling": {"max_tokens": 9}}, r"sampling.max_tokens is 8 there and 9 here"),
        ({"fit": False}, r"fit is true there and false here \(it is false where --max-tokens is given\)"),
    ],
)
def test_of_several_differences_that_which_the_user_gave_is_named(changes: dict, named: str, tmp_path: Path) -> None:
    before = {
        **SETTINGS,
        "engine_params": {"logprobs": False, "seeded": False},
        "fit": True,
        "sampling": {"max_tokens": 8},
    }
    with held(tmp_path / "run", before):
        pass
    with pytest.raises(ConfigError, match=named), held(tmp_path / "run", {**before, **changes}):
        pass


def test_changed_data_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", items(3))
    with pytest.raises(ConfigError, match="'simulated-s0-2' is gone"):
        run(tmp_path / "run", items(2))
    changed = [dataclasses.replace(item, target="1") for item in items(3)]
    with pytest.raises(ConfigError, match="changed; choose another"):
        run(tmp_path / "run", changed)


def test_a_broken_line_is_named_with_a_fix_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = run(folder, items(4))
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    (folder / RECORDS).write_bytes(b"".join([lines[0], lines[1][:40] + b"\n", *lines[2:]]))
    for read in (lambda: read_run(folder), lambda: run(folder, items(4))):
        with pytest.raises(RecordError, match=r"records.jsonl, line 2: not JSON .*; delete this line, and the command"):
            read()
    (folder / RECORDS).write_bytes(b"".join([lines[0], *lines[2:]]))
    assert [timeless(record) for record in run(folder, items(4))] == [timeless(record) for record in whole]


def test_a_doubled_record_and_a_missing_configuration_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, items(2))
    (folder / RECORDS).write_bytes((folder / RECORDS).read_bytes() * 2)
    with pytest.raises(RecordError, match="recorded twice; delete one"):
        read_run(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(ConfigError, match=r"not a run: it has no run.json"):
        read_run(folder)
    other = {**SETTINGS, "seed": 4}
    with pytest.raises(ConfigError, match=r"records.jsonl but no run.json that can be read.* other settings"):
        asyncio.run(evaluate(folder, other, items(2), solve_problem, BoxVerifier(), concurrency=1))


@pytest.mark.parametrize("damage", ["", '{"digest": "12", "conf', '{"config": 3}', None])
def test_a_run_whose_configuration_was_lost_goes_on_by_what_its_records_bear(
    tmp_path: Path, damage: str | None
) -> None:
    folder = tmp_path / "run"
    before = run(folder, items(2))
    whole = (folder / CONFIG).read_text()
    (folder / CONFIG).unlink() if damage is None else (folder / CONFIG).write_text(damage)
    with pytest.raises(
        ConfigError, match="not a run" if damage is None else "given again with its --out, writes it again"
    ):
        read_run(folder)

    async def only_new(problem: Problem) -> Answer:
        assert problem.id == items(3)[2].problem.id, "what was paid for is not asked again"
        return await solve_problem(problem)

    records = run(folder, items(3), only_new)
    assert list(records[:2]) == before and len(records) == 3
    assert (folder / CONFIG).read_text() == whole


def test_a_folder_that_another_process_takes_at_the_same_moment_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with held(folder, SETTINGS):
        (folder / CONFIG).unlink()  # as the other one has not written it yet
        with pytest.raises(ConfigError, match="is being written by another process"):
            run(folder, items(2))
        assert not (folder / CONFIG).exists()
    assert len(run(folder, items(2))) == 2, "and what is killed at that moment leaves a folder that can be used"


def test_sessions_are_numbered_and_timed(tmp_path: Path) -> None:
    run(tmp_path / "run", items(3)[:3])
    folder = tmp_path / "run"
    (folder / RECORDS).write_bytes(b"".join((folder / RECORDS).read_bytes().splitlines(keepends=True)[:2]))
    records = run(folder, items(3))
    assert sorted(record.provenance["session"] for record in records) == [1, 1, 2]
    assert all(record.provenance["at_s"] >= 0 for record in records)


def test_what_was_done_before_the_first_problem_is_timed_too(tmp_path: Path) -> None:
    """As the draws of a planner, which spends a total before any problem is answered."""
    records = run(tmp_path / "run", items(2), started=time.monotonic() - 100)
    assert all(100 <= record.provenance["at_s"] < 160 for record in records)


def test_what_counted_flops_in_another_way_is_read_when_it_is_whole_and_not_continued(tmp_path: Path) -> None:
    async def fails(problem: Problem) -> Answer:
        if problem.id == items()[0].problem.id:
            raise EngineTimeout("slow")
        return await solve_problem(problem)

    def again(folder: Path, problems: list[Item], **options: bool) -> list[Record]:
        config = {**SETTINGS, COUNTED: 2}
        work = evaluate(folder, config, problems, solve_problem, BoxVerifier(), concurrency=4, **options)
        return list(asyncio.run(work))

    run(tmp_path / "run", items()[:6], fails)
    before = [(tmp_path / "run" / name).read_bytes() for name in (CONFIG, RECORDS)]
    for problems, options in ((items(), {}), (items()[:6], {"retry_errors": True})):
        with pytest.raises(ConfigError, match=r"counts FLOPs in another way, so it can be read .* another --out"):
            again(tmp_path / "run", problems, **options)
    assert len(again(tmp_path / "run", items()[:6])) == 6
    assert [(tmp_path / "run" / name).read_bytes() for name in (CONFIG, RECORDS)] == before
    with held(tmp_path / "empty", SETTINGS):
        pass
    again(tmp_path / "empty", items()[:2])
    assert read_run(tmp_path / "empty").config[COUNTED] == 2, "nothing was there that could be mixed"
    assert len(again(tmp_path / "empty", items()[:4])) == 4
