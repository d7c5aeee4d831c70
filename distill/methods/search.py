"""Search distillation: any strategy of this toolkit is the teacher, and the student learns its answer in one pass.

Usually the teacher is the student itself under a strategy (ReST-EM; "Large Language Models Can Self-Improve", Huang et
al. 2022; TTRL); another model is possible. `trust = "verifier"` keeps answers that are right. `trust = "self"` needs no
key: the answer that the strategy chose is the label, kept where enough of its draws agree (majority as label). The
winning path is imitated, and on request the draws that agree with it, all or the shortest, which teach a small model
best (arXiv 2502.12143); the tokens of the whole search are on the ledger. Cost: the strategy's cost, n times per
problem. Left out: the search's intermediate choices as training signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distill.methods._stages import BaseMethod
from distill.spec.method import DistillJob, Method
from distill.spec.sample import Sample, TrainingRow, row_of
from distill.spec.spec import JobSpec
from ttc import answers
from ttc.errors import ConfigError


def search(
    *,
    trust: Literal["verifier", "self"] = "verifier",
    min_share: float = 0.5,
    agreeing: bool = False,
    most: int | None = None,
) -> Method:
    """Distil a strategy.

    Args:
        trust: verifier keeps right answers; self keeps what enough draws agree on, without a key.
        min_share: for self, least share of the draws that give the chosen answer.
        agreeing: also learn the other draws of the search that give the chosen answer.
        most: of the draws that agree, learn at most this many per search, the shortest first.
    """
    if most is not None and (most < 1 or not agreeing):
        raise ConfigError(f"search.most must be at least 1 and needs agreeing = true, got {most}")
    if not 0 < min_share <= 1:
        raise ConfigError(f"search: min_share must be in (0, 1], got {min_share}")
    return _Search(trust == "self", min_share, agreeing, most)


@dataclass(frozen=True, slots=True)
class _Search(BaseMethod):
    blind: bool
    min_share: float
    agreeing: bool
    most: int | None

    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        if not spec.teachers:
            raise ConfigError(
                'search needs a strategy: --strategy majority:n=16, or [teacher] strategy = "majority:n=16"'
            )
        for teacher in spec.teachers:
            plain = teacher.strategy.partition(":")[0] == "direct"  # budget forcing under a cap or a floor on thinking
            if plain and not (spec.thinking.active or spec.thinking.extends):
                raise ConfigError(
                    f"search: teacher {teacher.name} does not search with {teacher.strategy}; name a strategy "
                    "such as majority:n=16, set [thinking] to force its budget, or use the method rejection"
                )

    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        who = ", ".join(f"{teacher.strategy.label} on {_place(teacher.folder, job)}" for teacher in job.teachers)
        who += " under a thinking budget" if job.spec.thinking.active else ""
        label = "the answer its draws agree on" if self.blind else "answers that the verifier calls right"
        return f"the student learns to give in one pass what {who} finds: {label}"

    def filters(self, job: DistillJob) -> Mapping[str, Mapping[str, Any] | bool]:
        """See `Method.filters`."""
        return {"verdict": False, "agreement": {"min_share": self.min_share}} if self.blind else {}

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """See `Method.rows`."""
        if not self.agreeing:
            return [row_of(sample) for sample in samples]
        return [row for sample in samples for row in _agreeing(sample)[: self.most]]


def _agreeing(sample: Sample) -> list[TrainingRow]:
    """Rows of all draws that ended by themselves with the chosen answer, each text once, the shortest first."""
    answer, kind = sample.answer, sample.item.problem.kind
    if answer.final is None:
        return [row_of(sample)]
    key = answers.key(answer.final, kind)
    rows: dict[tuple[str, str], TrainingRow] = {}
    for one in sorted(answer.candidates, key=lambda one: one.num_tokens):
        if (
            one.finish_reason == "stop"
            and one.final is not None
            and answers.same_class(answers.key(one.final, kind), key)
        ):
            other = replace(sample, answer=replace(answer, thinking=one.thinking, text=one.text))
            rows.setdefault((one.thinking, one.text), row_of(other))
    rows.setdefault((answer.thinking, answer.text), row_of(sample))
    return list(rows.values())


def _place(folder: Path | None, job: DistillJob) -> str:
    return "itself" if folder == job.student else (folder.name if folder is not None else "a server")
