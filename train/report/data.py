"""A run's files, read for the report: per stage its metrics, held-out outcomes, alarms and a few rollouts.

A step that was written twice (a resumed run) counts as last written; lines that a lost attempt wrote after the resume
point are left out. A file that a stage does not write is empty here. If a stage trains several models (`member-1`, ..),
a metric is their mean, and alarms are those of all. The metrics can also be exported to TensorBoard or Weights &
Biases; both are optional.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from evals.numbers.statistics import Interval, mean_interval
from train.base.health import excerpt
from train.base.rollout import read_rollouts
from train.base.stage import StageResult, last_attempt, read_result
from train.measure.retention import Kept, read_kept
from train.recipe.run import RUN, stage_folders
from ttc.errors import ConfigError, RecordError, pip
from ttc.records import iterate

SHOWN_STEPS = 12
"""Steps, spread evenly, of which rollouts are shown."""
SHOWN_ROLLOUTS = 4
"""Rollouts shown of such a step: the first of different groups, right and wrong."""


@dataclass(frozen=True, slots=True)
class HeldOutPoint:
    """Held-out accuracy after `step` updates, with its 95 % interval over problems."""

    step: int
    interval: Interval
    num: int


@dataclass(frozen=True, slots=True)
class StageData:
    """One stage: rows of metrics by step, and what else it wrote."""

    name: str
    fields: Mapping[str, Any]
    result: StageResult | None
    rows: Sequence[Mapping[str, Any]]
    held_out: Sequence[HeldOutPoint]
    alarms: Sequence[Mapping[str, Any]]
    samples: Mapping[int, Sequence[Mapping[str, Any]]]

    def series(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of every row that has the metric."""
        return [(int(row["step"]), float(row[metric])) for row in self.rows if metric in row]


@dataclass(frozen=True, slots=True)
class RunData:
    """A run: the recipe's name, its seed, its started stages, and retention, once it is measured."""

    recipe: str
    seed: int
    stages: Sequence[StageData]
    kept: Sequence[Kept] = ()


def read_run(run: Path, *, samples: bool = True) -> RunData:
    """Read the folder of a run; raises ConfigError for another folder, RecordError for a broken file.

    Without `samples` rollouts, which may be gigabytes, are not read.
    """
    folders = stage_folders(run)
    if not folders:
        raise ConfigError(f"{run} has no stage that has begun; nothing to report yet")
    try:
        settings = json.loads((run / RUN).read_text())
        fields = [stage["fields"] for stage in settings["stages"]]
        stages = [_stage(path, fields, samples) for path in folders]
        return RunData(str(settings["recipe"]), int(settings["seed"]), stages, read_kept(run))
    except (ValueError, KeyError, TypeError) as exc:
        if isinstance(exc, RecordError):
            raise
        raise RecordError(f"{run / RUN}: not the settings of a run ({exc})") from exc


def _stage(folder: Path, fields: Sequence[Mapping[str, Any]], samples: bool) -> StageData:
    places = sorted(folder.glob("member-*"), key=lambda place: int(place.name.partition("-")[2])) or [folder]
    rows = _mean([_by_step(place / "metrics.jsonl") for place in places])
    end = rows[-1]["step"] if rows else math.inf
    outcomes = [row for row in _by_step(folder / "held_out.jsonl") if row["step"] <= end]
    number = int(folder.name.partition("-")[0])
    return StageData(
        name=folder.name,
        fields=fields[number - 1],
        result=read_result(folder),
        rows=rows,
        held_out=[_point(row) for row in outcomes],
        alarms=[row for place in places for row in _lines(place / "alarms.jsonl") if row["step"] <= end],
        samples=_samples(folder / "rollouts.jsonl", [int(row["step"]) for row in rows]) if samples else {},
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for number, row in iterate(path):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise RecordError(f"{path}, line {number}: not an object with a whole number under step")
        yield row


def _by_step(path: Path) -> list[dict[str, Any]]:
    return last_attempt(_lines(path))


def _mean(members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows by step of the mean of every metric, over the members that have it there."""
    steps: dict[int, dict[str, list[float]]] = {}
    for row in chain.from_iterable(members):
        for name, value in row.items():
            steps.setdefault(row["step"], {}).setdefault(name, []).append(value)
    return [
        {n: v[0] if len(v) == 1 else fmean(v) for n, v in steps[step].items()} | {"step": step}
        for step in sorted(steps)
    ]


def _point(row: Mapping[str, Any]) -> HeldOutPoint:
    right = [float(value) for value in row["right"]]
    groups = row.get("groups", range(len(right)))
    return HeldOutPoint(int(row["step"]), mean_interval(right, groups, seed=0), len(right))


def _samples(path: Path, steps: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Excerpts of rollouts by the update they led to; one pass over the file."""
    if not path.is_file() or not steps:
        return {}
    sample_steps = {steps[round(i * (len(steps) - 1) / max(SHOWN_STEPS - 1, 1))] for i in range(SHOWN_STEPS)}
    excerpts: dict[int, list[dict[str, Any]]] = {step: [] for step in sorted(sample_steps)}
    pairs: set[tuple[int, bool]] = set()
    for rollout in read_rollouts(path):
        step = rollout.step + 1  # rollouts count the updates before them, metrics those after
        right = rollout.right
        step_excerpts = excerpts.get(step)
        kinds = sum(1 for row in step_excerpts or () if (row["status"] == "correct") == right)
        if step_excerpts is None or (step, right) in pairs or kinds >= SHOWN_ROLLOUTS // 2:
            continue
        if any(row["problem"] == rollout.problem_id for row in step_excerpts if (row["status"] == "correct") == right):
            continue
        step_excerpts.append(excerpt(rollout))
    return {step: rows for step, rows in excerpts.items() if rows}


def scalars(run: RunData) -> Iterator[tuple[str, int, dict[str, float]]]:
    """(stage, step, metrics) of every logged step, in order."""
    for stage in run.stages:
        for row in stage.rows:
            values = {name: float(value) for name, value in row.items() if name != "step"}
            yield stage.name, int(row["step"]), values


def to_tensorboard(run: RunData, folder: Path) -> None:
    """Write an event file per stage below `folder`; raises ConfigError when tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as exc:
        raise ConfigError(f"tensorboard is not installed; run: {pip('install')} tensorboard") from exc
    writers = {stage.name: SummaryWriter(str(folder / stage.name)) for stage in run.stages if stage.rows}
    for stage, step, values in scalars(run):
        for name, value in values.items():
            writers[stage].add_scalar(name, value, step)
    for writer in writers.values():
        writer.close()


def to_wandb(run: RunData, project: str) -> None:
    """Send the metrics as one run, a prefix per stage; raises ConfigError when wandb is not installed."""
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError as exc:
        raise ConfigError(f"wandb is not installed; run: {pip('install')} wandb") from exc
    with wandb.init(project=project, name=f"{run.recipe}-{run.seed}") as session:
        for number, (stage, step, values) in enumerate(scalars(run)):
            session.log({f"{stage}/{name}": value for name, value in values.items()} | {f"{stage}/step": step}, number)
