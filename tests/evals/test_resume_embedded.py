"""A run on the embedded engine in its batch-invariant mode, cut and resumed, equals the whole run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from evals.loop import evaluate
from evals.run_folder import RECORDS
from evals.tasks.arithmetic import arithmetic
from ttc.core import Answer, Problem, Record, Sampling
from ttc.engines.embedded.engine import embedded
from ttc.records import read
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.session.solve import solve
from ttc.strategies.tree import tree
from ttc.verifiers.math import math


def run(folder: Path, limit: int, concurrency: int) -> list[Record]:
    """Solve the first problems of the task by a tree of four paths."""

    async def go() -> list[Record]:
        engine, verifier = embedded(batch_invariant=True), math(workers=1)
        strategy = partial(tree, scorer=prm(None, EmbeddedCore(batch_invariant=True)), n=4, beam_width=2)

        async def one(problem: Problem) -> Answer:
            return await solve(problem, engine=engine, strategy=strategy, seed=3, sampling=Sampling(max_tokens=128))

        try:
            items = arithmetic(level=2).items(limit, 5)
            return await evaluate(folder, {"seed": 3}, items, one, verifier, concurrency=concurrency)
        finally:
            await verifier.close()
            await engine.close()

    return asyncio.run(go())


def timeless(record: Record) -> Record:
    """A record without wall time and without the cached / computed split."""
    if record.answer is None:
        raise AssertionError(record.error)
    usage = replace(record.answer.usage, cached=0, flops=0.0)
    verdicts = tuple(replace(verdict, seconds=0.0) for verdict in record.verdicts)
    return replace(
        record,
        answer=replace(record.answer, usage=usage, seconds=0.0),
        verdict=replace(record.verdict, seconds=0.0) if record.verdict else None,
        verdicts=verdicts,
        provenance={},
    )


@pytest.mark.long
def test_a_run_cut_in_the_middle_of_a_record_resumes_to_the_same_records(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 3, 3)
    run(tmp_path / "cut", 3, 1)
    path = tmp_path / "cut" / RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1]) + lines[1][: len(lines[1]) // 2])
    resumed = run(tmp_path / "cut", 3, 2)
    assert [timeless(record) for record in resumed] == [timeless(record) for record in whole]
    on_disk = {record.problem.id: timeless(record) for record in read(path)}  # nothing of the torn line is in the way
    assert on_disk == {record.problem.id: timeless(record) for record in whole}
