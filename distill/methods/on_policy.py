"""On-policy distillation: the student writes, its teacher supervises every token; see `distill.stages.on_policy`.

Agarwal et al. 2024 (GKD, arXiv:2306.13649), Gu et al. 2024 (MiniLLM, arXiv:2306.08543). There is no data set: it needs
only prompts, and the ledger stays empty. Every field of the stage may be set in [train]: steps, lr, divergence and so
on. Cost: per update, prompts x n completions of the student and one prefill of each by the teacher. A base student
needs imitation first (`rejection`), or it never writes what the teacher could judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distill.methods._stages import BaseMethod, check_readers, on_policy_stage
from distill.spec.method import Assignment, Data, DistillJob, Method
from distill.spec.spec import JobSpec
from distill.supervision.divergence import WORDS, Kind
from ttc.errors import ConfigError, UnknownName

_DEFAULTS: Mapping[str, Any] = {"steps": 100, "lr": 5e-4}


def on_policy(*, divergence: Kind = "reverse", beta: float = 0.5, top_k: int | None = None) -> Method:
    """Supervise what the student writes.

    Args:
        divergence: reverse, forward, jsd, or sampled.
        beta: of jsd, from 0 (forward) to 1 (reverse).
        top_k: tokens per position that a teacher behind a server reports.
    """
    own = {"divergence": divergence, "beta": beta, **({} if top_k is None else {"top_k": top_k})}
    return _OnPolicy(own)


@dataclass(frozen=True, slots=True)
class _OnPolicy(BaseMethod):
    own: Mapping[str, Any]

    @property
    def supervises(self) -> bool:
        """The teacher reads the student's tokens; see `distill.preflight`."""
        return True

    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        check_readers(spec, "on_policy")
        for domain in spec.domains:
            owners = [t.name for t in spec.teachers if t.teaches(domain.name)]
            if len(owners) != 1:
                raise ConfigError(
                    f"domain {domain.name} has {len(owners)} teachers; give each one its domains, or use "
                    "method = specialist, which measures which is best"
                )
        kind = spec.train.get("divergence", self.own["divergence"])
        if kind not in WORDS:
            raise UnknownName("train.divergence", str(kind), WORDS)

    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        kind: Kind = {**self.own, **job.spec.train}["divergence"]
        names = ", ".join(teacher.name for teacher in job.teachers)
        return f"the student writes, {names} supervises every token; {WORDS[kind]}"

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """See `Method.assignments`: nothing is generated beforehand."""
        return []

    def stages(self, job: DistillJob, data: Data | None) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """See `Method.stages`."""
        routing = {
            domain.name: next(t.name for t in job.spec.teachers if t.teaches(domain.name))
            for domain in job.spec.domains
        }
        return [on_policy_stage(job, routing, {**_DEFAULTS, **self.own, **job.spec.train})]
