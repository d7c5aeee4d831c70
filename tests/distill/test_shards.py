"""Generation over Ray actors: the ledger of one engine, whatever the number of actors and whoever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from distill.generation.generate import fill
from distill.generation.ledger import AnswerLedger, WorkUnit, sampling_digest
from distill.generation.shards import MAX_DEATHS, RayGenerator, opener_for, ray_opener
from distill.job.job import run_job
from distill.spec.spec import JobSpec, TeacherSpec, parse_spec
from distill.spec.teacher import Teacher, resolve_teacher
from tests.distill.models import TASK
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError
from ttc.session.thinking import Thinking

ENGINE = f"{Path(__file__).parent / 'mortal_engine.py'}:mortal"
SAMPLING = Sampling(max_tokens=32)


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    found = pytest.importorskip("ray", reason="ray is not installed")
    found.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield found
    found.shutdown()


def make_teacher(graves: Path, **options: object) -> Teacher:
    graves.mkdir(exist_ok=True)
    given = TeacherSpec(engine=ENGINE, model="none", options={"graves": str(graves), **options})
    spec = JobSpec(name="j", method="rejection", student="none", teachers=(given,), domains=(), seed=1)
    return resolve_teacher(given, spec)


def make_units(teacher: Teacher, texts: list[str]) -> list[WorkUnit]:
    how = sampling_digest(SAMPLING, Thinking(), 1)
    return [
        WorkUnit(
            f"{i + 1:016x}",
            Problem(f"p{i}", (Message("user", text),)),
            f"{teacher.name}-{how}",
            SAMPLING,
            Thinking(),
            0,
        )
        for i, text in enumerate(texts)
    ]


def filled(path: Path, teacher: Teacher, units: list[WorkUnit], shards: int) -> AnswerLedger:
    ledger = AnswerLedger(path)
    asyncio.run(fill(ledger, teacher, units, concurrency=8, opener=opener_for(shards)))
    return ledger


def test_two_actors_write_the_ledger_of_one_engine(ray: object, tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "graves", jitter=3)
    units = make_units(teacher, [f"question {i}" for i in range(40)])
    with filled(tmp_path / "0.db", teacher, units, 0) as here, filled(tmp_path / "2.db", teacher, units, 2) as there:
        assert here.digest() == there.digest()
        assert there.totals()["done"] == 40
        assert here.totals()["usage"] == there.totals()["usage"]


@pytest.mark.slow
def test_the_units_of_a_lost_actor_are_answered_by_others_and_each_is_paid_once(ray: object, tmp_path: Path) -> None:
    texts = [f"stumble {i}" if i == 11 else f"question {i}" for i in range(40)]
    calm = make_teacher(tmp_path / "graves")
    (tmp_path / "graves" / "somebody").touch()  # someone has died already, so nobody stumbles
    units = make_units(calm, texts)
    with filled(tmp_path / "calm.db", calm, units, 0) as calmly:
        expected = calmly.digest()
    (tmp_path / "graves" / "somebody").unlink()
    with filled(tmp_path / "lost.db", calm, units, 2) as ledger:
        assert len(list((tmp_path / "graves").iterdir())) == 1
        assert ledger.digest() == expected
        assert ledger.totals()["attempts"] == 40


@pytest.mark.slow
def test_an_actor_killed_from_outside_is_replaced(ray: object, tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "graves", jitter=1)
    units = make_units(teacher, [f"question {i}" for i in range(200)])

    async def run() -> tuple[int, set[str]]:
        generator = ray_opener(2)(teacher, 8)
        assert isinstance(generator, RayGenerator)
        seen: set[str] = set()
        async with aclosing(generator.answer(units)) as outcomes:
            async for unit, _ in outcomes:
                seen.add(unit.key)
                if len(seen) == 20:
                    os.kill((await generator.pids())[0], signal.SIGKILL)
        await generator.close()
        return generator.lost, seen

    assert asyncio.run(run()) == (1, {unit.key for unit in units})


@pytest.mark.slow
def test_a_unit_that_kills_every_actor_fails_alone(ray: object, tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "graves")
    units = make_units(teacher, ["poison", *(f"question {i}" for i in range(9))])
    ledger = filled(tmp_path / "l.db", teacher, units, 1)
    totals = ledger.totals()
    assert (totals["done"], totals["failed"]) == (9, 1)
    (failed,) = [entry for _, entry in ledger.entries(units) if entry.state == "failed"]
    assert failed.key == units[0].key
    assert f"{MAX_DEATHS} actors died" in failed.error


@pytest.mark.slow
def test_an_engine_that_cannot_start_stops_the_job_with_its_own_error(ray: object, tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "graves")
    (tmp_path / "graves").rmdir()
    with pytest.raises(ConfigError, match="is no folder"):
        filled(tmp_path / "l.db", teacher, make_units(teacher, ["question"]), 1)


@pytest.mark.slow
def test_a_job_over_two_actors_gives_the_rows_and_the_student_of_one_engine(
    ray: object, tmp_path: Path, guesser: Path, walker: Path
) -> None:
    table = {"name": "walks", "method": "rejection", "student": str(guesser), "teacher": str(walker), "seed": 1, "n": 2,
             "task": f"{TASK},split=train", "smoke_failures": 8,
             "train": {"steps": 6, "rows": 8, "lr": 3e-3}}  # fmt: skip
    for shards in (0, 2):
        run_job(parse_spec({**table, "shards": shards}), tmp_path / str(shards), lambda text: None)
    here, there = (json.loads((tmp_path / str(n) / "manifest.json").read_text())["out"] for n in (0, 2))
    assert here == there


def test_a_number_of_shards_below_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="shards must be at least 0, got -1"):
        opener_for(-1)
