"""Rejection sampling: n answers per problem, verified and filtered, the kept ones imitated.

Yuan et al. 2023 (RFT, arXiv:2308.01825), Dong et al. 2023 (RAFT), and the pipelines of open-r1, OpenThoughts and the
R1 distillations. Cost: n draws of the teacher per problem, then cross-entropy on what is kept. Left out: the teacher's
probabilities; see `on_policy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from distill.methods._stages import BaseMethod
from distill.spec.method import DistillJob, Method


def rejection() -> Method:
    """Sample, verify, filter, imitate."""
    return _Rejection()


@dataclass(frozen=True, slots=True)
class _Rejection(BaseMethod):
    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        names = ", ".join(teacher.name for teacher in job.teachers)
        return f"the student imitates verified answers of {names}, {job.spec.n} drawn per problem (cross-entropy)"
