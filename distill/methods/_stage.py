"""From a job to the fields of the stage `on_policy`: tasks, measures and teachers as that stage writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distill.spec.method import Job
from distill.spec.spec import JobSpec, TeacherSpec
from ttc.errors import ConfigError

__all__ = ["check_readers", "on_policy_stage"]


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


def on_policy_stage(job: Job, routing: Mapping[str, str], given: Mapping[str, object]) -> tuple[str, Mapping[str, Any]]:
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
    mind = job.spec.thinking
    common: dict[str, object] = {
        "thinking": mind.mode,
        "max_thinking": mind.max_tokens,
        "max_tokens": job.spec.sampling.get("max_tokens"),
        "train_limit": job.spec.limit,
    }
    return "on_policy", {**fields, **{k: v for k, v in common.items() if v is not None}, **given}


def _written(teacher: TeacherSpec) -> str:
    """A teacher as the stage reads it: a folder, or an engine with its options."""
    model = str(teacher.model)
    if teacher.engine == "embedded":
        return model
    options = {"model": model, **teacher.options}
    return f"{teacher.engine}:" + ",".join(f"{key}={value}" for key, value in options.items())
