"""From a spec to a plan: everything found, checked and digested, no model loaded.

A plan is the same whoever makes it and whenever: problems are loaded and cleaned, teachers checked and digested, the
method's assignments listed, filters bound. What is measured (held-out and retention tasks) is loaded first, since
training prompts are compared with it. Cost: hashing the model folders once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distill.data.filtering import Context, Filter
from distill.data.pipeline import read_filters, settings_of
from distill.data.prompts import Prompts, clean_prompts
from distill.data.selection import Selection, read_selection
from distill.plan.gates import JobGates, read_job_gates
from distill.spec.contents import Asked, Contents, job_contents
from distill.spec.method import Assignment, Domain, Job, Method
from distill.spec.registries import METHODS
from distill.spec.spec import JobSpec, TeacherSpec
from distill.spec.teacher import resolve_teacher
from evals.data.decontamination import own_texts
from evals.runs.contents import problems_digest
from evals.task import Task
from train.registries import make_task
from ttc.config.values import parse
from ttc.errors import ConfigError
from ttc.identity.digests import model_digests

__all__ = ["PROBE", "Plan", "resolve"]

PROBE = "probe"
"""Label of the student's own answers that measure difficulty."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A job, ready to run: `measured` are tasks by their spec, `digests` go to the manifest, `contents` to the lock."""

    job: Job
    method: Method
    assignments: Sequence[Assignment]
    prompts: Mapping[str, Prompts]
    measured: Mapping[str, Task]
    context: Context
    filters: Mapping[str, Filter]
    selection: Selection
    gates: JobGates | None
    digests: Mapping[str, object]
    contents: Contents

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return self.job.spec

    @property
    def num_units(self) -> int:
        """Answers that are asked for."""
        return sum(assignment.n * len(assignment.items) for assignment in self.assignments)


def resolve(spec: JobSpec, folder: Path) -> Plan:
    """Resolve a spec for a job folder; raises ConfigError for whatever cannot work."""
    student = Path(spec.student).expanduser()
    if not (student / "config.json").is_file():
        raise ConfigError(f"student {spec.student} is not a model folder: it has no config.json")
    gates = read_job_gates(spec)
    measured = _measured(spec)
    teachers = [resolve_teacher(given, spec) for given in spec.teachers]
    cleaned: dict[str, Prompts] = {}
    domains = []
    compared = {**measured, **{name: make_task(name) for name in _gate_tasks(gates)}}
    most = max(spec.eval.limit, gates.train.limit if gates is not None and gates.train is not None else 0)
    held_out = [task.items(most, 0) for task in compared.values()]
    tasks = {
        f"measured task {name}": Asked(task, most, problems_digest(items))
        for (name, task), items in zip(compared.items(), held_out, strict=True)
    }
    for given in spec.domains:
        task = make_task(given.task)
        problems = task.items(spec.limit, 0)
        tasks[f"domain {given.name}"] = Asked(task, spec.limit, problems_digest(problems))
        cleaned[given.name] = clean_prompts(problems, held_out)
        items = cleaned[given.name].items
        if not items:
            lost = cleaned[given.name].dropped
            raise ConfigError(f"domain {given.name}: no problem of {given.task} is left, such as {lost[0]}")
        domains.append(Domain(given.name, task, items, measured[given.held_out] if given.held_out else None))
    job = Job(spec, folder, student, teachers, domains)
    method: Method = METHODS.create(spec.method, spec.options, supply={})
    settings = settings_of(method.filters(job), spec.filters)
    filters = read_filters(settings)
    assignments = list(method.assignments(job))
    if "difficulty" in settings:
        n = parse("filters.difficulty.n", settings["difficulty"].get("n", 4), int)
        assignments += _probes(job, n)
    digests = {
        "student": model_digests(student),
        "teachers": {teacher.name: teacher.digest for teacher in teachers},
        "prompts": {domain.name: problems_digest(domain.items) for domain in domains},
        "measured": {name: tasks[f"measured task {name}"].digest for name in compared},
    }
    texts = [text for items in held_out for text in own_texts(items)]
    return Plan(
        job, method, assignments, cleaned, measured, Context(texts), filters, read_selection(spec.select), gates,
        digests, job_contents(spec, folder, teachers, tasks),
    )  # fmt: skip


def _measured(spec: JobSpec) -> dict[str, Task]:
    """Every task that something is measured on, by its spec."""
    names = [domain.held_out for domain in spec.domains if domain.held_out is not None] + list(spec.eval.retention)
    return {name: make_task(name) for name in dict.fromkeys(names)}


def _gate_tasks(gates: JobGates | None) -> list[str]:
    """Tasks that only gates measure."""
    found = gates.train if gates is not None else None
    if found is None:
        return []
    return [found.held_out, *found.retention, *([found.canaries] if found.canaries else [])]


def _probes(job: Job, n: int) -> list[Assignment]:
    """The student answers every problem itself, plainly."""
    himself = resolve_teacher(TeacherSpec(name="student"), job.spec)
    return [job.assign(himself, replace(domain), n=n, label=PROBE) for domain in job.domains]
