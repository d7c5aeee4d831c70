"""From a spec to a plan: everything but models loaded, checked and digested.

A plan is the same whoever makes it and whenever: problems are loaded and cleaned, teachers checked and digested, the
method's assignments listed, filters bound. What is measured (held-out and retention tasks) is loaded first, since
training prompts are compared with it.

`Contents` are the digests in a job's lock that decide it: models, user files and code, problems. Files are named by
settings that may change from run to run (a filter, a verifier, mixed-in rows), so a missing or new name is no
difference; other content under the same name is. Problems are those of every task at the limit of that run: a job that
asks for more is the same job as long as the first ones are the same. Cost: each model's files once, about a second per
gigabyte, then remembered. Left out: what a teacher's server says of its model, and what a user's own code opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.data.dataset import check_mix
from distill.data.pipeline import (
    Context,
    Filter,
    Prompts,
    Selection,
    clean_prompts,
    read_filters,
    read_selection,
    settings_of,
)
from distill.generation.judging import verifier_of
from distill.generation.ledger import LEDGER
from distill.plan.gates import JobGates, check_numbers, read_job_gates
from distill.spec.method import Assignment, DistillJob, Domain, Method
from distill.spec.registries import METHODS
from distill.spec.spec import JobSpec, TeacherSpec
from distill.spec.teacher import Teacher, resolve_teacher
from evals.data.decontamination import own_texts
from evals.task import Item, Task, problems_digest
from train.recipe.contents import path_contents
from train.registries import make_task
from ttc.config.values import parse
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.identity.digests import code_digests, differing, model_digests, named, part_contents, texts_in


@dataclass(frozen=True, slots=True)
class TaskDigest:
    """A task, the most problems that are taken of it (None: all), and their digest."""

    task: Task
    limit: int | None
    digest: str

    def at(self, limit: int | None) -> str:
        """The digest of its problems at another limit."""
        return self.digest if limit == self.limit else problems_digest(self.task.items(limit, 0))


@dataclass(frozen=True, slots=True)
class Contents:
    """Digests by name; `tasks` are the tasks of the job by the names that their problems have."""

    models: Mapping[str, str]
    files: Mapping[str, str]
    tasks: Mapping[str, TaskDigest]

    def to_json(self) -> dict[str, Any]:
        """As the lock holds them."""
        problems = {owner: {"limit": task.limit, "digest": task.digest} for owner, task in self.tasks.items()}
        return {"models": dict(self.models), "files": dict(self.files), "problems": problems}

    def changed(self, there: Mapping[str, Any]) -> list[str]:
        """The names of contents that differ from the lock `there`."""
        files = [name for name, digest in there["files"].items() if self.files.get(name, digest) != digest]
        before = there["problems"]
        problems = [
            f"problems of {owner}"
            for owner, task in self.tasks.items()
            if owner in before and task.at(before[owner]["limit"]) != before[owner]["digest"]
        ]
        return [*differing(there["models"], self.models), *files, *problems]


def job_contents(spec: JobSpec, folder: Path, teachers: Sequence[Teacher], tasks: Mapping[str, TaskDigest]) -> Contents:
    """The contents of the job in `folder`, without files that it made itself; `tasks` by their names for people.

    Raises:
        ConfigError: a file cannot be read.
    """
    models = named(model_digests(Path(spec.student).expanduser()), after=" of the student")
    for teacher in teachers:
        models |= teacher.contents
    files = code_digests("method", spec.method)
    for owner, value in _named_settings(spec):
        for text in texts_in(value):
            files |= path_contents(owner, text, folder)
    for owner, task in tasks.items():
        files |= named(part_contents(verifier_of(task.task, spec.verifier)), after=f" of {owner}")
    return Contents(models, files, tasks)


def _named_settings(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    """Every setting that may name a file, by its place in the spec; without gates, which are measured each time."""
    for domain in spec.domains:
        yield f"task of domain {domain.name}", domain.task
        yield f"held_out of domain {domain.name}", domain.held_out
    yield "eval.retention", spec.eval.retention
    yield "verifier", spec.verifier
    for name, table in spec.filters.items():
        yield "filters", name
        yield f"filters.{name}", table
    for place in ("select", "train", "options"):
        for key, value in getattr(spec, place).items():
            yield f"{spec.method if place == 'options' else place}.{key}", value
    yield "mix.data", spec.mix.data


PROBE = "probe"
"""Label of the student's own answers, which measure difficulty."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, ready to run: `measured` are tasks by their spec, `digests` go to the manifest, `contents` to the lock.

    `held_out` are the measured problems, gates' included, task by task.
    """

    job: DistillJob
    method: Method
    assignments: Sequence[Assignment]
    prompts: Mapping[str, Prompts]
    measured: Mapping[str, Task]
    held_out: Sequence[Sequence[Item]]
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


def resolve(spec: JobSpec, folder: Path) -> JobPlan:
    """Resolve a spec for a job folder; raises ConfigError for whatever cannot work."""
    student = _student(spec, folder)
    spec = replace(spec, student=str(student))
    _check_ledgers(spec)
    check_mix(spec.mix)
    gates = read_job_gates(spec)
    measured_tasks = _measured(spec)
    teachers = [resolve_teacher(teacher, spec) for teacher in spec.teachers]
    cleaned: dict[str, Prompts] = {}
    domains = []
    compared = {**measured_tasks, **{name: make_task(name) for name in _gate_tasks(gates)}}
    most = max(spec.eval.limit, gates.train.limit if gates is not None and gates.train is not None else 0)
    held_out = [task.items(most, 0) for task in compared.values()]
    tasks = {
        f"measured task {name}": TaskDigest(task, most, problems_digest(items))
        for (name, task), items in zip(compared.items(), held_out, strict=True)
    }
    for domain in spec.domains:
        task = make_task(domain.task)
        problems = task.items(spec.limit, 0)
        tasks[f"domain {domain.name}"] = TaskDigest(task, spec.limit, problems_digest(problems))
        prompts = clean_prompts(problems, held_out)
        if not prompts.items:
            name, reason = prompts.dropped[0]
            raise ConfigError(f"domain {domain.name}: no problem of {domain.task} is left; {name}: {reason}")
        own = measured_tasks[domain.held_out] if domain.held_out else None
        cleaned[domain.name] = prompts
        domains.append(Domain(domain.name, task, prompts.items, own, prompts.dropped))
    job = DistillJob(spec, folder, student, teachers, domains)
    method: Method = METHODS.create(spec.method, spec.options, supply={})
    if gates is not None and gates.measured:
        check_numbers(gates, method.numbers(job), spec.method)
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
    return JobPlan(
        job, method, assignments, cleaned, measured_tasks, held_out, Context(texts), filters,
        read_selection(spec.select), gates, digests, job_contents(spec, folder, teachers, tasks),
    )  # fmt: skip


def _check_ledgers(spec: JobSpec) -> None:
    for place in spec.ledgers:
        if not (Path(place).expanduser() / LEDGER).is_file():
            raise ConfigError(f"ledgers: {place} is not the folder of a job: it has no {LEDGER}")


START = "student-start"
"""The student before training, where it is an adapted copy of the one that was given."""


def _student(spec: JobSpec, folder: Path) -> Path:
    """The student's folder, or a copy of it that can think, where the job needs that.

    It does where markers or a form are asked for, or a teacher may think; only a teacher's folder shows that it does
    not.
    """
    from train.recipe.adapt import Adaptation, adapted  # imports torch, which commands that only report do not need

    student = Path(spec.student).expanduser()
    if not (student / "config.json").is_file():
        raise ConfigError(f"student {spec.student} is not a model folder: it has no config.json")
    named = spec.thinking.open is not None or spec.form is not None
    if not named and (spec.thinking.template is False or Text(student).markers is not None):
        return student
    others = [teacher.model for teacher in spec.teachers if teacher.model is not None]
    places = [Path(model).expanduser() for model in others]
    if not named and all(place.is_dir() and Text(place).markers is None for place in places):
        return student
    return adapted(student, folder / START, Adaptation(spec.thinking.open, spec.thinking.close, form=spec.form))


def _measured(spec: JobSpec) -> dict[str, Task]:
    """Every measured task, by its spec."""
    names = [domain.held_out for domain in spec.domains if domain.held_out is not None] + list(spec.eval.retention)
    return {name: make_task(name) for name in dict.fromkeys(names)}


def _gate_tasks(gates: JobGates | None) -> list[str]:
    """Tasks that only gates measure."""
    train = gates.train if gates is not None else None
    if train is None:
        return []
    return [train.held_out, *train.retention, *([train.canaries] if train.canaries else [])]


def _probes(job: DistillJob, n: int) -> list[Assignment]:
    """Plain answers of the student to every problem."""
    student = resolve_teacher(TeacherSpec(name="student"), job.spec)
    return [job.assign(student, replace(domain), n=n, label=PROBE) for domain in job.domains]
