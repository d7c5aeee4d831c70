"""A method: what teachers are asked, which rows their answers become, and which stages of `train` learn from them.

    factory(**the method's table of the spec) -> Method

A method is a function in `distill/methods/` (or an entry point of `ttc.methods`); its keywords are the fields of the
table of its name in a spec. A method only plans and rearranges: generation and the ledger, filters, training (by
`train`'s stages), measuring and promotion belong to the job and are the same for every method.

    check(spec)           refuse what cannot work, before anything is loaded
    assignments(job)      who answers what, how often       -> units of the ledger
    filters(job)          filters it needs besides the usual ones, by name (a spec may change or drop them)
    rows(samples, job)    kept samples to training rows
    stages(job, data)     (kind, fields) of `train`'s stages, in order; `data` is the file of rows, None without any
    measure(job, model)   numbers of its own about a model folder, such as mode obedience; asked before and after
    numbers(job)          their names, which a gate may bound; asked before anything is paid for
    about(job)            one sentence for the plan: what happens, in which direction
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from distill.spec.sample import Sample, TrainingRow
from distill.spec.spec import JobSpec
from distill.spec.teacher import Teacher
from evals.task import Item, Task
from train.base.stage import Setting
from ttc.core import Sampling
from ttc.session.thinking import Thinking


@dataclass(frozen=True, slots=True)
class Domain:
    """A task to learn: its training problems, and the task that measures it (None: not measured).

    `dropped` are its other problems with the reason, `kind: detail`: duplicates, given-away answers, measured ones.
    """

    name: str
    task: Task
    items: Sequence[Item]
    held_out: Task | None
    dropped: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """`teacher` answers every one of `items` `n` times.

    The cost is n times the strategy's per item. `label` is the method's name for these answers; samples carry it.
    `gated` False leaves them out of the smoke gate: where teachers compete for a domain, one may be bad at it.
    """

    teacher: Teacher
    domain: Domain
    items: Sequence[Item]
    n: int
    sampling: Sampling
    thinking: Thinking
    label: str = ""
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Data:
    """The training rows of a job: their file and number, the tokens learnt in one pass, and notes on each.

    Without notes (None) they are planned rows, whose file does not exist yet.
    """

    path: Path
    num_rows: int
    num_tokens: int
    notes: Sequence[Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class DistillJob:
    """A spec with everything in it resolved: checked, digested, and no model loaded."""

    spec: JobSpec
    folder: Path
    student: Path
    teachers: Sequence[Teacher]
    domains: Sequence[Domain]

    @property
    def setting(self) -> Setting:
        """The settings of this machine for measuring and training; they log nothing."""
        spec = self.spec
        return Setting(self.folder, self.student, spec.seed, spec.device, spec.threads, lambda text: None)

    def sampling(self, domain: Domain) -> Sampling:
        """How answers of a domain are drawn: the spec's [sampling] over the task's own."""
        return self.spec.sampling_of(domain.task.sampling)

    def pairs(self) -> list[tuple[Teacher, Domain]]:
        """Every teacher with every domain it teaches."""
        return [
            (teacher, domain) for teacher in self.teachers for domain in self.domains if teacher.teaches(domain.name)
        ]

    def assign(
        self,
        teacher: Teacher,
        domain: Domain,
        *,
        n: int | None = None,
        thinking: Thinking | None = None,
        label: str = "",
        gated: bool = True,
    ) -> Assignment:
        """Assign all problems of a domain to a teacher; n, sampling and thinking default to the spec's."""
        num = self.spec.n if n is None else n
        thinking = thinking or self.spec.thinking
        return Assignment(teacher, domain, domain.items, num, self.sampling(domain), thinking, label, gated)


def planned_data(job: DistillJob, assignments: Sequence[Assignment]) -> Data | None:
    """The rows of a job as planned, with every answer kept; None where nothing is asked."""
    num_answers = sum(assignment.n * len(assignment.items) for assignment in assignments)
    return Data(job.folder / "data" / "train.jsonl", max(num_answers, 1), 0) if assignments else None


class Method(Protocol):
    """See the module docstring."""

    def check(self, spec: JobSpec) -> None:
        """Raise ConfigError for what cannot work."""
        ...

    def about(self, job: DistillJob) -> str:
        """One sentence: who learns what from whom."""
        ...

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """What teachers are asked; empty for a method that generates while it trains."""
        ...

    def filters(self, job: DistillJob) -> Mapping[str, Mapping[str, Any] | bool]:
        """Filters by name and their parameters, laid over the usual ones; False drops one."""
        ...

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """Training rows of the selected samples."""
        ...

    def stages(self, job: DistillJob, data: Data | None) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Kinds and fields of training stages, `spec.train` over the method's own."""
        ...

    def measure(self, job: DistillJob, model: Path, setting: Setting) -> Mapping[str, float]:
        """Further numbers about a model folder; empty for most methods."""
        ...

    def numbers(self, job: DistillJob) -> Sequence[str]:
        """The names of `measure`'s numbers, for gates; raises ConfigError for a gate that this job cannot measure."""
        ...
