"""Checks before anything is spent: each prevents one way in which distillation silently fails, and names the fix.

    def NAME(job) -> Finding            distill/preflight/NAME.py, or an entry point of ttc.preflight

A check reads model folders and the resolved job, loads no more than it needs, and never changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from distill.spec.method import DistillJob, Method
from distill.spec.registries import METHODS
from ttc.config.plugins import PluginShape
from ttc.config.registry import Registry
from ttc.errors import TTCError

__all__ = [
    "CHECKS",
    "Finding",
    "Supervising",
    "fine",
    "folders",
    "is_off",
    "method_of",
    "num_weights",
    "reads_tokens",
    "refused",
    "run",
    "skipped",
    "teacher_folders",
]

CHECKS = Registry(
    "check", "distill.preflight", "ttc.preflight",
    PluginShape(("distill.preflight:Finding",), takes=("job",), has_options=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: whether all is well, what it saw, and the fix; `run` fills in the name."""

    check: str
    ok: bool
    text: str
    fix: str = ""


def run(job: DistillJob) -> list[Finding]:
    """Run all checks in the order of their names; one that cannot run refuses the job with its own error."""
    return [_checked(name, job) for name in CHECKS.names()]


def _checked(name: str, job: DistillJob) -> Finding:
    check: Callable[[DistillJob], Finding] = CHECKS.load(name)
    try:
        finding: Finding = CHECKS.checked(name, check(job))
        return replace(finding, check=name)
    except TTCError as exc:
        return Finding(name, False, f"the check failed to run: {exc}", "see what the other checks say first")


@runtime_checkable
class Supervising(Protocol):
    """A method that may let teachers read the student's own tokens."""

    @property
    def supervises(self) -> bool:
        """Whether they do."""
        ...


def method_of(job: DistillJob) -> Method:
    """The job's bound method."""
    method: Method = METHODS.create(job.spec.method, job.spec.options, supply={})
    return method


def reads_tokens(job: DistillJob) -> bool:
    """Whether a teacher reads the student's tokens: then every id must mean the same to both."""
    method = method_of(job)
    return isinstance(method, Supervising) and method.supervises


def folders(job: DistillJob) -> dict[str, Path]:
    """The student's folder and those of teachers whose tokenizer is here, by name."""
    return {"student": job.student, **teacher_folders(job)}


def teacher_folders(job: DistillJob) -> dict[str, Path]:
    """Folders of teachers: of the model, or of the tokenizer given for a server."""
    folders: dict[str, Path] = {}
    for teacher in job.teachers:
        tokenizer = teacher.engine.params.get("tokenizer")
        folder = teacher.folder or (Path(str(tokenizer)).expanduser() if tokenizer else None)
        if folder is not None and folder.is_dir():
            folders[f"teacher {teacher.name}"] = folder
    return folders


def num_weights(folder: Path) -> int:
    """The number of parameters in a folder's weights, from their headers; 0 without weights."""
    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def is_off(value: object) -> bool:
    """Whether a field of a spec is false, in TOML or on the command line."""
    return str(value).lower() in ("false", "no", "off", "0")


def fine(text: str) -> Finding:
    """A finding that nothing is wrong."""
    return Finding("", True, text)


def skipped() -> Finding:
    """A finding where only texts pass from teacher to student."""
    return Finding("", True, "teachers give texts, which the student's own tokenizer and template lay out")


def refused(text: str, fix: str) -> Finding:
    """A finding that refuses the job."""
    return Finding("", False, text, fix)
