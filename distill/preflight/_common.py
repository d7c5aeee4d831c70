"""What checks ask of a job: whose tokens are read, which folders know them, how large models are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from distill.preflight import Finding
from distill.spec.method import Job, Method
from distill.spec.registries import METHODS
from evals.task import Item
from train.registries import make_task

__all__ = [
    "Supervising",
    "fine",
    "folders",
    "is_off",
    "method_of",
    "num_weights",
    "raw_items",
    "reads_tokens",
    "refused",
    "skipped",
    "teacher_folders",
]


@runtime_checkable
class Supervising(Protocol):
    """A method that may let teachers read the student's own tokens."""

    @property
    def supervises(self) -> bool:
        """Whether they do."""
        ...


def method_of(job: Job) -> Method:
    """The job's bound method."""
    method: Method = METHODS.create(job.spec.method, job.spec.options, supply={})
    return method


def reads_tokens(job: Job) -> bool:
    """Whether a teacher reads the student's tokens: then the two must mean the same by every id."""
    method = method_of(job)
    return isinstance(method, Supervising) and method.supervises


def folders(job: Job) -> dict[str, Path]:
    """The student's folder and those of teachers whose tokenizer is here, by name."""
    return {"student": job.student, **teacher_folders(job)}


def teacher_folders(job: Job) -> dict[str, Path]:
    """Folders of teachers: of the model, or of the tokenizer that was given for a server."""
    found: dict[str, Path] = {}
    for teacher in job.teachers:
        given = teacher.engine.params.get("tokenizer")
        folder = teacher.folder or (Path(str(given)).expanduser() if given else None)
        if folder is not None and folder.is_dir():
            found[f"teacher {teacher.name}"] = folder
    return found


def raw_items(job: Job) -> Mapping[str, list[Item]]:
    """The problems of every domain as a training stage loads them: nothing dropped."""
    return {domain.name: make_task(domain.task).items(job.spec.limit, 0) for domain in job.spec.domains}


def num_weights(folder: Path) -> int:
    """Parameters in a folder's weights, read from the headers; 0 where there are none here."""
    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def is_off(value: object) -> bool:
    """Whether a field of a spec says no, in TOML or on the command line."""
    return str(value).lower() in ("false", "no", "off", "0")


def fine(check: str, text: str) -> Finding:
    """A finding that nothing is wrong."""
    return Finding(check, True, text)


def skipped(check: str) -> Finding:
    """A finding where only texts pass from teacher to student."""
    return Finding(check, True, "teachers give texts, which the student's own tokenizer and template lay out")


def refused(check: str, text: str, fix: str) -> Finding:
    """A finding that refuses the job."""
    return Finding(check, False, text, fix)
