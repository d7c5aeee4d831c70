"""From a job to the fields of the stages that learn: `sft` for imitation, `on_policy` for supervision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distill.spec.method import Data, DistillJob
from distill.spec.spec import JobSpec, TeacherSpec
from ttc.errors import ConfigError

__all__ = ["EPOCHS", "check_readers", "on_policy_stage", "sft_stage"]


def check_readers(spec: JobSpec, method: str) -> None:
    """Refuse teachers and domains that a student cannot be supervised with.

    Raises:
        ConfigError: no teacher, one without a model, one under a strategy, or a domain without a held-out task.
    """
    if not spec.teachers:
        raise ConfigError(f"{method} needs a teacher: a model folder, or a table [teacher]")
    for teacher in spec.teachers:
        if teacher.model is None:
            raise ConfigError(f"teacher {teacher.name}: a student is nothing apart from itself; name a model")
        if teacher.strategy != "direct":
            raise ConfigError(
                f"teacher {teacher.name}: {method} reads a teacher's probabilities, and the strategy "
                f"{teacher.strategy} has none; use method = search, or leave the strategy out"
            )
    for domain in spec.domains:
        if domain.held_out is None:
            raise ConfigError(f"{method}: give held_out of {domain.name}: the student is measured while it trains")


def on_policy_stage(
    job: DistillJob, routing: Mapping[str, str], options: Mapping[str, object]
) -> tuple[str, Mapping[str, Any]]:
    """`on_policy` on the job's domains; `routing` is the teacher's name by domain, `given` the other fields.

    A single domain under a single teacher is written plainly, several as NAME=...
    """
    teachers = {teacher.name: teacher for teacher in job.spec.teachers}
    specs = {name: _written(teachers[owner]) for name, owner in routing.items()}
    if len(job.spec.domains) == 1:
        (domain,) = job.spec.domains
        fields: dict[str, Any] = {"task": domain.task, "held_out": domain.held_out, "teacher": specs[domain.name]}
    else:
        fields = {
            "task": tuple(f"{domain.name}={domain.task}" for domain in job.spec.domains),
            "held_out": tuple(f"{domain.name}={domain.held_out}" for domain in job.spec.domains),
            "teacher": tuple(f"{name}={spec}" for name, spec in specs.items()),
        }
    thinking = job.spec.thinking
    common: dict[str, object] = {
        "thinking": thinking.mode,
        "max_thinking": thinking.max_tokens,
        "max_tokens": job.spec.sampling.get("max_tokens"),
        "train_limit": job.spec.limit,
    }
    return "on_policy", {**fields, **{k: v for k, v in common.items() if v is not None}, **options}


def _written(teacher: TeacherSpec) -> str:
    """A teacher as the stage reads it: a folder, or an engine with its options."""
    model = str(teacher.model)
    if teacher.engine == "embedded":
        return model
    options = {"model": model, **teacher.options}
    return f"{teacher.engine}:" + ",".join(f"{key}={value}" for key, value in options.items())


EPOCHS = 3.0
_DEFAULTS: Mapping[str, Any] = {"lr": 5e-4, "rows": 32}
_HELD_OUT = 8
"""Rows that are held out and measured, about, where they are between 5 and 30 % of all."""


def sft_stage(job: DistillJob, data: Data | None, **own: object) -> tuple[str, Mapping[str, Any]]:
    """`sft` on the rows of the job, `spec.train` laid over `own`; `epochs` there, or 3, become steps.

    Raises:
        ConfigError: there are no rows, or both epochs and steps are given.
    """
    if data is None or data.num_rows == 0:
        raise ConfigError("no row is left to learn from; `ttc distill report` shows what the filters dropped, and why")
    held_out = min(max(_HELD_OUT / data.num_rows, 0.05), 0.3)
    options = {**_DEFAULTS, "held_out_share": held_out, **own, **job.spec.train}
    epochs = options.pop("epochs", None)
    if epochs is not None and "steps" in options:
        raise ConfigError("train: give epochs or steps, not both")
    rows = int(options["rows"])
    if "steps" not in options:
        options["steps"] = max(1, math.ceil(data.num_rows * float(epochs or EPOCHS) / rows))
    return "sft", {"data": str(data.path), **options}
