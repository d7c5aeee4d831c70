"""The models that several claims start from, made once per seed by the example files, and the outputs of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.distill.place import Answers, Place


def teacher(place: Place) -> Path:
    """Pretrained, then trained by GRPO on right answers."""
    return place.train("teacher", "teacher")


def base(place: Place) -> Path:
    """The teacher before reinforcement."""
    teacher(place)
    return place.folder / "teacher" / "1-pretrain" / "model"


def student(place: Place) -> Path:
    """Pretrained for a while, with fewer than half the teacher's parameters."""
    return place.train("start", "student")


def rejection_student(place: Place) -> Path:
    """The student after imitating one verified answer of the teacher to each of 512 problems."""
    settings = {"student": str(student(place)), "teacher": str(teacher(place))}
    return place.distill("rejection", "rejection", settings)


def warmed(place: Place, problems: Mapping[str, object]) -> Path:
    """The student after imitating one verified answer of the teacher to each of a few problems."""
    settings = {**problems, "student": str(student(place)), "teacher": str(teacher(place)), "train.steps": 150}
    return place.distill("warmed", "rejection", settings)


def rows_of(job: Path, name: str) -> Iterator[dict[str, Any]]:
    """Lines of a file of the training runs of a job or a recipe: metrics.jsonl, rollouts.jsonl."""
    for path in sorted([*job.glob(f"train/*/*/{name}"), *job.glob(f"[0-9]*/{name}")]):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def trained_tokens(job: Path) -> int:
    """Completion tokens of all rollouts that a run learnt from."""
    return sum(len(row["token_ids"]) for row in rows_of(job, "rollouts.jsonl"))


def stopped(job: Path) -> str:
    """Why the training of a job ended early; empty when it did not."""
    return "; ".join(
        found for path in sorted(job.glob("train/*/*/done.json")) if (found := json.loads(path.read_text())["stopped"])
    )


def measured(job: Path, who: str, task: str) -> Answers:
    """What a job itself measured of its start, its student or a teacher; a teacher under a strategy has no samples."""
    found = json.loads((job / "result.json").read_text())["measured"][who]["tasks"][task]
    right = {name: [float(value) for value in found[name]] for name in ("right", "sampled")}
    return Answers(right["right"], right["sampled"] or right["right"], found["length"])
