"""What methods share: the steps of plain imitation, and the fields of the training stages `sft` and `on_policy`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.spec.method import Assignment, Data, DistillJob
from distill.spec.sample import Sample, TrainingRow, row_of
from distill.spec.spec import JobSpec, TeacherSpec
from train.base.stage import Setting
from ttc.config.values import at_least, parse
from ttc.errors import ConfigError


class BaseMethod:
    """A `Method` without `about`: teachers answer every problem, and kept answers are learnt by cross-entropy.

    A method overrides what it does differently.
    """

    __slots__ = ()

    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        check_teachers(spec, spec.method)

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """See `Method.assignments`."""
        return [job.assign(teacher, domain) for teacher, domain in job.pairs()]

    def filters(self, job: DistillJob) -> Mapping[str, Mapping[str, Any] | bool]:
        """See `Method.filters`: none besides the usual ones."""
        return {}

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """See `Method.rows`."""
        return [row_of(sample) for sample in samples]

    def stages(self, job: DistillJob, data: Data | None) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """See `Method.stages`."""
        return [sft_stage(job, data)]

    def measure(self, job: DistillJob, model: Path, setting: Setting) -> Mapping[str, float]:
        """See `Method.measure`: the job measures every domain anyway."""
        return {}

    def numbers(self, job: DistillJob) -> Sequence[str]:
        """See `Method.numbers`: none."""
        return ()


def check_teachers(spec: JobSpec, method: str) -> None:
    """Refuse a spec without a teacher."""
    if not spec.teachers:
        raise ConfigError(f"{method} needs a teacher: a model folder, or a table [teacher]")


def check_readers(spec: JobSpec, method: str) -> None:
    """Refuse a missing teacher, one without a model or with a strategy, and a domain without a held-out task."""
    check_teachers(spec, method)
    for teacher in spec.teachers:
        if teacher.model is None:
            raise ConfigError(f"teacher {teacher.name}: a student has no distance from itself; name a model")
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
    """`on_policy` on the job's domains; `routing` is the teacher's name by domain, `options` the other fields.

    A single domain under a single teacher is written plainly, several as NAME=...

    Raises:
        ConfigError: the options name other problems or teachers than the job's.
    """
    for name, own in {"task": "task", "held_out": "held_out", "teacher": "teacher", "train_limit": "limit"}.items():
        if name in options:
            raise ConfigError(f"train: {name} belongs to the job, which cleans its problems by it; set {own} instead")
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
    """A teacher in the stage's notation: a folder, or an engine with its options."""
    model = str(teacher.model)
    if teacher.engine == "embedded":
        return model
    options = {"model": model, **teacher.options}
    return f"{teacher.engine}:" + ",".join(f"{key}={value}" for key, value in options.items())


EPOCHS = 3.0
_DEFAULTS: Mapping[str, Any] = {"lr": 5e-4, "rows": 32}
_HELD_OUT = 8
"""About how many rows are held out and measured, if that is 5 to 30 % of them."""


def sft_stage(job: DistillJob, data: Data | None, **own: object) -> tuple[str, Mapping[str, Any]]:
    """`sft` on the rows of the job, `spec.train` laid over `own`; `epochs` there (default 3) become steps.

    Raises:
        ConfigError: there are no rows, or the spec names other rows, which no filter and no audit would see; epochs
        beside steps, or an impossible number.
    """
    if data is None or data.num_rows == 0:
        raise ConfigError(
            "no row is left to learn from; `ttc distill report` shows what the filters dropped, and why. The answers "
            "stay on the ledger: change [filters], and run the same command again"
        )
    held_out = min(max(_HELD_OUT / data.num_rows, 0.05), 0.3)
    options = {**_DEFAULTS, "held_out_share": held_out, **own, **job.spec.train}
    for name in ("data", "corpus", "rollouts"):
        if name in options:
            raise ConfigError(f"train: {name}: the job makes the rows itself; name files of further rows as mix.data")
    epochs = parse("train.epochs", options.pop("epochs", None), float | None)
    rows = parse("train.rows", options["rows"], int)
    at_least("train", 1, rows=rows)
    if epochs is not None:
        if "steps" in options:
            raise ConfigError("train: give epochs or steps, not both")
        if not (math.isfinite(epochs) and epochs > 0):
            raise ConfigError(f"train: epochs must be above 0 and finite, got {epochs:g}")
    if "steps" not in options:
        options["steps"] = max(1, math.ceil(data.num_rows * (EPOCHS if epochs is None else epochs) / rows))
    return "sft", {"data": str(data.path), **options}
