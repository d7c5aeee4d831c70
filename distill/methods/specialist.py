"""Several specialists into one student: each domain is taught by the teacher that measures best there.

DeepSeek-V3.2 (2025) and its like: verified answers of the specialists are merged into one data set for `sft`, then the
student writes and every rollout is supervised by its domain's specialist (multi-teacher on-policy distillation). Who
teaches a domain is measured, not tagged: all teachers answer the training problems, and the one with the most right
answers wins (`distill.filters.routing`); `domains` of a [[teacher]] settles it by hand. Cost: n answers per problem and
teacher (and domain, where it is not settled), cross-entropy on the winners', then the on-policy updates. Per-domain
gaps to the teachers are gates (`max_below_teacher`, `max_domain_drop`). Left out: merging weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distill.methods._stages import BaseMethod, check_readers, on_policy_stage, sft_stage
from distill.spec.method import Assignment, Data, DistillJob, Method
from distill.spec.sample import Sample, TrainingRow, row_of
from distill.spec.spec import JobSpec
from distill.supervision.divergence import Kind
from ttc.config.values import counted
from ttc.errors import ConfigError


def specialist(
    *,
    on_policy_steps: int = 50,
    on_policy_lr: float = 5e-4,
    prompts: int = 16,
    n: int = 4,
    divergence: Kind = "reverse",
) -> Method:
    """Merge specialists.

    Args:
        on_policy_steps: updates on the student's own answers, after imitation; 0 leaves them out.
        on_policy_lr: their learning rate.
        prompts: problems per on-policy update, over all domains.
        n: the student's answers per problem.
        divergence: of the on-policy updates: reverse, forward, jsd or sampled.
    """
    if on_policy_steps < 0:
        raise ConfigError(f"specialist.on_policy_steps must be at least 0, got {on_policy_steps}")
    own = {"steps": on_policy_steps, "lr": on_policy_lr, "prompts": prompts, "n": n, "divergence": divergence}
    return _Specialist(own)


@dataclass(frozen=True, slots=True)
class _Specialist(BaseMethod):
    own: Mapping[str, Any]

    @property
    def supervises(self) -> bool:
        """Whether teachers read the student's tokens; see `distill.preflight`."""
        return bool(self.own["steps"])

    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        if len(spec.teachers) < 2 or len(spec.domains) < 2:
            raise ConfigError(
                f"specialist needs several teachers [[teacher]] and several tables [domain.NAME], got "
                f"{len(spec.teachers)} and {len(spec.domains)}; for one of them use rejection or on_policy"
            )
        for domain in spec.domains:
            if not any(teacher.teaches(domain.name) for teacher in spec.teachers):
                raise ConfigError(f"specialist: no teacher may answer the domain {domain.name}")
        if self.own["steps"]:
            check_readers(spec, "specialist")

    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        names = ", ".join(teacher.name for teacher in job.teachers)
        updates = counted(self.own["steps"], "update")
        then = f", then {updates} on the student's own answers" if self.own["steps"] else ""
        return f"the student imitates, per domain, the winner of {names}{then}"

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """See `Method.assignments`."""
        assignments = []
        for domain in job.domains:
            rivals = [teacher for teacher in job.teachers if teacher.teaches(domain.name)]
            assignments += [job.assign(teacher, domain, gated=len(rivals) == 1) for teacher in rivals]
        return assignments

    def filters(self, job: DistillJob) -> Mapping[str, Mapping[str, Any]]:
        """See `Method.filters`."""
        return {"routing": {}}

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """See `Method.rows`: all that is left is of the winners."""
        return [replace(row_of(s), notes={"domain": s.domain, "teacher": s.teacher}) for s in samples]

    def stages(self, job: DistillJob, data: Data | None) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """See `Method.stages`; who teaches which domain is read off the rows."""
        imitation = sft_stage(job, data)
        if not self.own["steps"] or data is None:
            return [imitation]
        owners = {domain.name: teacher.name for teacher, domain in job.pairs()}  # a plan: any rival costs the same
        if data.notes is not None:
            owners = {notes["domain"]: notes["teacher"] for notes in data.notes if "domain" in notes}
        missing = [domain.name for domain in job.domains if domain.name not in owners]
        if missing:
            raise ConfigError(f"specialist: no verified answer is left of the domain {missing[0]}; see the report")
        return [imitation, on_policy_stage(job, owners, self.own)]
