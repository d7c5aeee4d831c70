"""Rejection sampling: n answers per problem, verified and filtered, the kept ones imitated.

Yuan et al. 2023 (RFT, arXiv:2308.01825), Dong et al. 2023 (RAFT), and the pipelines of open-r1, OpenThoughts and the
R1 distillations. Cost: n draws of the teacher per problem, then cross-entropy on what is kept. Left out: the teacher's
probabilities; see `on_policy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.methods._stages import sft_stage
from distill.spec.method import Assignment, Data, DistillJob, Method
from distill.spec.sample import Sample, TrainingRow, row_of
from distill.spec.spec import JobSpec
from train.base.stage import Setting
from ttc.errors import ConfigError

__all__ = ["rejection"]


def rejection() -> Method:
    """Sample, verify, filter, imitate."""
    return _Rejection()


@dataclass(frozen=True, slots=True)
class _Rejection:
    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        if not spec.teachers:
            raise ConfigError("rejection needs a teacher: a model folder, or a table [teacher]")

    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        names = ", ".join(teacher.name for teacher in job.teachers)
        return f"the student imitates verified answers of {names}, {job.spec.n} drawn per problem (cross-entropy)"

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """See `Method.assignments`."""
        return [job.assign(teacher, domain) for teacher, domain in job.pairs()]

    def filters(self, job: DistillJob) -> Mapping[str, Mapping[str, Any] | bool]:
        """See `Method.filters`."""
        return {}

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """See `Method.rows`."""
        return [row_of(sample) for sample in samples]

    def stages(self, job: DistillJob, data: Data | None) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """See `Method.stages`."""
        return [sft_stage(job, data)]

    def measure(self, job: DistillJob, model: Path, setting: Setting) -> Mapping[str, float]:
        """See `Method.measure`."""
        return {}
