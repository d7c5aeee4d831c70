"""A job that is killed again and again ends with the ledger, the rows and the student of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distill.generation.ledger import AnswerLedger
from tests.distill.models import TASK
from ttc.identity.digests import file_digest

KILLS = 20
SPEC = """
method = "rejection"
student = "{student}"
teacher = "{teacher}"
task = "{task},split=train"
held_out = "{task}"
n = 4
seed = 5
smoke_failures = 8
[train]
steps = 40
rows = 16
lr = 3e-3
save_every = 5
[eval]
limit = 16
[gates]
max_truncation_rise = 1.0
"""
Run = Callable[[Path, float | None], tuple[int, float]]


@pytest.fixture
def run(tmp_path: Path, guesser: Path, walker: Path) -> Iterator[Run]:
    """Run the job in a folder, killed after so many seconds; returns how it ended and how long it lived."""
    spec, log = tmp_path / "job.toml", tmp_path / "log"
    spec.write_text(SPEC.format(student=guesser, teacher=walker, task=TASK))
    command = [sys.executable, str(Path(__file__).parent / "zygote.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as zygote:
        assert zygote.stdin is not None and zygote.stdout is not None
        ask, answers = zygote.stdin, zygote.stdout

        def go(folder: Path, after: float | None) -> tuple[int, float]:
            args = ["distill", "run", str(spec), "--out", str(folder)]
            ask.write(json.dumps({"args": args, "log": str(log), "after": after}) + "\n")
            ask.flush()
            line = answers.readline()
            assert line, log.read_text()[-2000:]
            status, lived = json.loads(line)
            assert status in (0, 3, -signal.SIGKILL), log.read_text()[-2000:]
            return status, lived

        yield go
        ask.close()


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on kills: the ledger, every file of rows, and the manifest with its digests."""
    with AnswerLedger(folder / "ledger.sqlite") as ledger:
        found: dict[str, Any] = {"ledger": ledger.digest(), "done": ledger.totals()["done"]}
    found |= {path.name: file_digest(path) for path in sorted((folder / "data").iterdir())}
    return {**found, "manifest": json.loads((folder / "manifest.json").read_text())}


@pytest.mark.slow
def test_twenty_kills_change_neither_ledger_nor_rows_nor_student(run: Run, tmp_path: Path) -> None:
    status, seconds = run(tmp_path / "calm", None)
    assert status == 0
    expected = outcome(tmp_path / "calm")
    dice, kills, finished = random.Random(8), 0, 0
    while kills < KILLS or not finished:
        folder = tmp_path / f"killed{finished}"
        status, _ = run(folder, dice.uniform(0.02, 0.4) * seconds if kills < KILLS else None)
        kills += status == -signal.SIGKILL
        if status == 0:
            assert outcome(folder) == expected
            finished += 1
    assert kills == KILLS
