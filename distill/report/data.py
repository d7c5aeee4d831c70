"""A job folder as the report reads it: whatever is there, finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.data.dataset import DATA, FUNNEL, LINEAGE, PROMPTS, SAMPLES, read_lines
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.measure.evaluate import Measured, TaskNumbers
from distill.plan.resolve import read_lock
from train.recipe.run import stage_folders


@dataclass(frozen=True, slots=True)
class JobData:
    """Everything a report shows. `samples`, `lineage`, `prompts` are the lines of the files of those names.

    `result` is None before the job is finished; `totals` are the ledger's; `training` is the metrics of each stage of
    the finished training.
    """

    lock: Mapping[str, Any]
    totals: Mapping[str, Any]
    funnel: Mapping[str, Any] | None
    samples: Sequence[Mapping[str, Any]]
    lineage: Sequence[Mapping[str, Any]]
    prompts: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any] | None
    training: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def seed(self) -> int:
        """Of the intervals."""
        return int(self.lock["spec"]["seed"])

    @property
    def measured(self) -> dict[str, Measured]:
        """What was measured, by who; empty before the job is finished."""
        if self.result is None:
            return {}
        return {who: _measured(numbers) for who, numbers in self.result["measured"].items()}


def read_job(folder: Path) -> JobData:
    """Read a job folder; raises ConfigError when it is none."""
    lock = read_lock(folder)
    totals: Mapping[str, Any] = {}
    if (folder / LEDGER).is_file():
        with AnswerLedger(folder / LEDGER) as ledger:
            totals = ledger.totals()
    data = folder / DATA
    there = (data / FUNNEL).is_file()
    path = folder / "result.json"
    result = json.loads(path.read_text()) if path.is_file() else None
    return JobData(
        lock,
        totals,
        json.loads((data / FUNNEL).read_text()) if there else None,
        read_lines(data / SAMPLES) if there else (),
        read_lines(data / LINEAGE) if there else (),
        read_lines(data / PROMPTS) if there else (),
        result,
        {} if result is None else _training(folder / "train" / result["training"]),
    )


def _training(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Metrics by the name of the stage."""
    paths = {stage.name: stage / "metrics.jsonl" for stage in stage_folders(run)}
    return {name: read_lines(path) for name, path in paths.items() if path.is_file()}


def _measured(found: Mapping[str, Any]) -> Measured:
    tasks = {
        name: TaskNumbers(
            tuple(bit == "1" for bit in task["right"]),
            tuple(bit == "1" for bit in task["sampled"]),
            task["tokens"],
            task["length"],
            task["truncated"],
        )
        for name, task in found["tasks"].items()
    }
    return Measured(tasks, found["own"])
