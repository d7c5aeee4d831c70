"""Records that stay in their folder: the same records, read when they are looked at."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from evals import run_folder as module
from evals.loop import evaluate
from evals.numbers.summary import summarise
from evals.report.problems import group_data
from evals.report.runs import read_runs
from evals.run_folder import RECORDS, StoredRecords, read_run
from evals.tasks.simulated import simulated as simulated_task
from tests.evals.runs import BoxVerifier
from tests.evals.test_run import SETTINGS, items, solve_problem
from ttc import records as store
from ttc.core import Answer, Event, Problem, Record
from ttc.errors import EngineError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder whose records are too many to be held."""
    monkeypatch.setattr(module, "HELD_BYTES", 0)
    return tmp_path / "run"


def run(folder: Path, solver=solve_problem, count: int = 9, **options):
    return asyncio.run(evaluate(folder, SETTINGS, items(count), solver, BoxVerifier(), concurrency=3, **options))


def test_records_of_a_large_run_are_read_in_the_order_of_its_problems(folder: Path) -> None:
    records = run(folder)
    assert isinstance(records, StoredRecords) and len(records) == 9
    assert [record.problem.id for record in records] == [item.problem.id for item in items(9)]
    assert tuple(records) == tuple(records) == read_run(folder).records
    assert records[4] == tuple(records)[4] and tuple(records[2:5]) == tuple(records)[2:5]


def test_a_resumed_run_finds_its_old_records_again_and_the_newest_of_a_retried_problem(folder: Path) -> None:
    async def fails_once(problem: Problem) -> Answer:
        if problem.id.endswith("3"):
            raise EngineError("gone")
        return await solve_problem(problem)

    first = run(folder, fails_once, 5)
    assert [record.error is None for record in first] == [True, True, True, False, True]
    kept = run(folder, solve_problem, 5)
    assert tuple(kept) == tuple(first)
    retried = run(folder, solve_problem, 5, retry_errors=True)
    assert all(record.error is None for record in retried)
    assert [a == b for a, b in zip(first, retried, strict=True)] == [True, True, True, False, True]


def test_summary_and_page_are_the_same_from_the_folder_as_from_memory(folder: Path) -> None:
    records = run(folder)
    entry = summarise(records, SETTINGS)
    assert entry == summarise(list(records), SETTINGS) and entry["curve"]
    (one,) = read_runs([{**entry, "model": "m", "records": "."}])
    assert group_data([one], {one.key: records}) == group_data([one], {one.key: list(records)})


def test_a_row_is_named_by_what_its_strategy_chose_by_the_model(folder: Path) -> None:
    async def chooses(problem: Problem) -> Answer:
        event = Event("setting", (), {"markup": "template", "calls": "glm"})
        return replace(await solve_problem(problem), trace=(event,))

    entry = summarise(run(folder, chooses, 3), {**SETTINGS, "settings": {"max_calls": 2}})
    (one,) = read_runs([{**entry, "model": "m", "records": "."}])
    assert one.label.endswith("max_calls=2, markup=template, calls=glm")


def test_a_page_lists_no_more_problems_than_it_can_hold_and_says_how_many_there_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evals.report import problems

    records = run(folder)
    (one,) = read_runs([{**summarise(records, SETTINGS), "model": "m", "records": "."}])
    monkeypatch.setattr(problems, "MAX_ROWS", 4)
    monkeypatch.setattr(problems, "MAX_TREES", 2)
    data = group_data([one], {one.key: records})
    assert len(data["rows"]) == 4 and data["problems"] == 9
    order = [item.problem.id for item in items(9)]
    listed = [row["id"] for row in data["rows"]]
    assert listed == sorted(listed, key=order.index)
    assert all(row["q"] and row["c"][0] for row in data["rows"])


def test_the_place_that_a_writer_tells_is_the_one_that_a_reader_finds(tmp_path: Path) -> None:
    path = tmp_path / RECORDS
    records = [Record(Problem(f"p{i}", (), "number"), target="é" * i) for i in range(5)]
    with store.RecordFile(path) as file:
        places = [file.append(record) for record in records]
    with store.RecordFile(path) as file:
        places.append(file.append(records[0]))
    assert list(store.scan(path)) == list(zip(places, [*records, records[0]], strict=True))
    with path.open("rb") as lines:
        assert [store.read_at(lines, place) for place in reversed(places)] == [records[0], *reversed(records)]


def test_a_hundred_thousand_simulated_problems_are_made_only_as_they_are_looked_at() -> None:
    task = simulated_task(level="mixed")
    many, few = task.sequence(100_000, 0), task.items(40, 0)
    assert len(many) == 100_000 and not isinstance(many, list)
    assert [many[i] for i in range(40)] == few == list(many[:40])
    assert many[-1].problem.id.endswith("-99999")
    with pytest.raises(IndexError):
        many[100_000]
