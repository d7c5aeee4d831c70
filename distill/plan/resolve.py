"""From a spec to a plan with its gates, and the lock that keeps a folder one job; no model is loaded.

A plan is the same whoever makes it and whenever: problems are loaded and cleaned, teachers checked and digested, the
method's assignments listed, filters bound. What is measured (held-out and retention tasks) is loaded first, since
training prompts are compared with it.

`Contents` are what decides a job by content, as its lock holds it: models, user files and code, problems. Files are
named by settings that may change from run to run (a filter, a verifier, rows that are mixed in), so a name that is gone
or new is no difference; another content under the same name is. Problems are those of every task at the limit of then:
a job that asks for more of them is the same job while the first ones are the same. Cost: each model's files once, about
a second per gigabyte, then remembered. Left out: what a teacher's server says of its model, and what a user's own code
opens.

n, limit, max_tokens, filters, selection, mixing, training, measuring and gates may change from run to run: the ledger
pays for the difference only, and what follows is made anew. Another method, student, seed, task or teacher is another
job, and so are other models, files or problems under the same names; max_tokens may not fall, since answers that are
longer are already there.

What a student must show to be promoted: the gates of `train.measure.gates`, and those that only a job can check.

    [gates]
    min_gain = 0.0                   fields of train.measure.gates; held_out is the first domain's where it is not given
    max_truncation_rise = 0.01       share of cut answers, after minus before, on every measured task
    max_below_teacher = 0.05         upper end of the paired gap to the best teacher, on every measured domain
    max_domain_drop = 0.02           upper end of the paired drop on every domain and retention task
    min_recovered = 0.5              share of the teacher strategy's gain over the start that the student has

    [gates.measured]                 lower bounds on a method's own numbers, such as obedience
    obedience = 0.99

Bounds are on the end of an interval that is against the student, so too few problems fail instead of passing by luck.
A job without gates is never promoted. A stop-token share below 100 %, or a training problem that is measured, fails a
job long before its gates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import ttc
from distill.data.dataset import write_json
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
from distill.measure.measured import Measured, best_teachers, recovered
from distill.spec.method import Assignment, DistillJob, Domain, Method
from distill.spec.registries import METHODS
from distill.spec.spec import JobSpec, TeacherSpec
from distill.spec.teacher import Teacher, resolve_teacher
from evals.data.decontamination import own_texts
from evals.numbers.gates import GateCheck, at_least, at_most
from evals.task import Task, problems_digest
from train.measure.gates import Gates, read_gates
from train.recipe.contents import path_contents
from train.registries import make_task
from ttc.config.recipes import dump
from ttc.config.values import build, nearest, parse
from ttc.durable import is_scratch
from ttc.errors import ConfigError, RecordError
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
        """The names of what is not as it was when the lock `there` was written."""
        files = [name for name, digest in there["files"].items() if self.files.get(name, digest) != digest]
        before = there["problems"]
        problems = [
            f"problems of {owner}"
            for owner, task in self.tasks.items()
            if owner in before and task.at(before[owner]["limit"]) != before[owner]["digest"]
        ]
        return [*differing(there["models"], self.models), *files, *problems]


def job_contents(spec: JobSpec, folder: Path, teachers: Sequence[Teacher], tasks: Mapping[str, TaskDigest]) -> Contents:
    """The contents of a job in `folder`, which are not what it made itself; `tasks` by what people call them.

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
    """Every setting that may name a file, by its place in the spec; gates are measured anew each time."""
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
"""Label of the student's own answers that measure difficulty."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, ready to run: `measured` are tasks by their spec, `digests` go to the manifest, `contents` to the lock."""

    job: DistillJob
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


def resolve(spec: JobSpec, folder: Path) -> JobPlan:
    """Resolve a spec for a job folder; raises ConfigError for whatever cannot work."""
    student = Path(spec.student).expanduser()
    if not (student / "config.json").is_file():
        raise ConfigError(f"student {spec.student} is not a model folder: it has no config.json")
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
        cleaned[domain.name] = clean_prompts(problems, held_out)
        items = cleaned[domain.name].items
        if not items:
            lost = cleaned[domain.name].dropped
            raise ConfigError(f"domain {domain.name}: no problem of {domain.task} is left, such as {lost[0]}")
        domains.append(Domain(domain.name, task, items, measured_tasks[domain.held_out] if domain.held_out else None))
    job = DistillJob(spec, folder, student, teachers, domains)
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
    return JobPlan(
        job, method, assignments, cleaned, measured_tasks, Context(texts), filters, read_selection(spec.select), gates,
        digests, job_contents(spec, folder, teachers, tasks),
    )  # fmt: skip


def _measured(spec: JobSpec) -> dict[str, Task]:
    """Every task that something is measured on, by its spec."""
    names = [domain.held_out for domain in spec.domains if domain.held_out is not None] + list(spec.eval.retention)
    return {name: make_task(name) for name in dict.fromkeys(names)}


def _gate_tasks(gates: JobGates | None) -> list[str]:
    """Tasks that only gates measure."""
    train = gates.train if gates is not None else None
    if train is None:
        return []
    return [train.held_out, *train.retention, *([train.canaries] if train.canaries else [])]


def _probes(job: DistillJob, n: int) -> list[Assignment]:
    """The student answers every problem itself, plainly."""
    student = resolve_teacher(TeacherSpec(name="student"), job.spec)
    return [job.assign(student, replace(domain), n=n, label=PROBE) for domain in job.domains]


LOCK = "lock.json"
_SETTINGS, _MODELS = ("method", "seed", "tasks"), ("student", "teachers")


def check_lock(plan: JobPlan) -> None:
    """Compare a plan with what its folder was made for, if anything; raises ConfigError that names what differs."""
    folder = plan.job.folder
    if (folder / LOCK).is_file():
        _compare(plan, read_lock(folder), _lock_of(plan))
    elif folder.is_dir() and not all(map(is_scratch, folder.iterdir())):
        raise ConfigError(f"{folder} is not empty and holds no job; give another --out")


def claim(plan: JobPlan) -> None:
    """Write the lock of a plan; raises like `check_lock`."""
    check_lock(plan)
    plan.job.folder.mkdir(parents=True, exist_ok=True)
    write_json(plan.job.folder / LOCK, _lock_of(plan))


def _compare(plan: JobPlan, stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Refuse a folder of another job: first by settings, then by contents, since another file has another content."""
    folder = plan.job.folder
    if "contents" not in stored:
        raise ConfigError(
            f"{folder} holds a job of an older version, whose {LOCK} keeps no digests of user files and problems, so "
            "nobody can tell whether they are still the same; give another --out"
        )
    for name in _SETTINGS:
        there, here = stored["fixed"].get(name), json.loads(json.dumps(fresh["fixed"][name]))
        if there != here:
            raise ConfigError(
                f"{folder} holds another job: {name} is {there} there and {here} here; give another --out"
            )
    changed = plan.contents.changed(stored["contents"])
    if changed:
        raise ConfigError(
            f"{folder} holds a job that was made with other contents: {', '.join(changed)}; put back what it was made "
            "with, give a changed file another name in the spec where the setting may change, or give another --out"
        )
    for name in _MODELS:
        if stored["fixed"][name] != fresh["fixed"][name]:
            raise ConfigError(f"{folder} holds another job: its {name} ran with other settings; give another --out")
    for name, cap in stored["max_tokens"].items():
        if fresh["max_tokens"].get(name, cap) < cap:
            raise ConfigError(
                f"sampling.max_tokens may not fall: {folder} has answers of domain {name} made with {cap}; "
                "give another --out"
            )


def read_lock(folder: Path) -> dict[str, Any]:
    """The lock of a job folder; raises ConfigError when it is none."""
    path = folder / LOCK
    if not path.is_file():
        raise ConfigError(f"{folder} is not a distillation job: it has no {LOCK}")
    try:
        lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise RecordError(f"{path}: not JSON ({exc})") from exc
    return lock


def _lock_of(plan: JobPlan) -> dict[str, Any]:
    spec = plan.spec
    fixed = {
        "method": spec.method,
        "seed": spec.seed,
        "student": plan.digests["student"],
        "teachers": plan.digests["teachers"],
        "tasks": {domain.name: domain.task for domain in spec.domains},
    }
    return {
        "fixed": fixed,
        "max_tokens": {domain.name: plan.job.sampling(domain).max_tokens for domain in plan.job.domains},
        "contents": plan.contents.to_json(),
        "digests": dict(plan.digests),
        "units": plan.num_units,
        "about": plan.method.about(plan.job),
        "spec": dump(spec),
        "version": ttc.__version__,
    }


_SILENT = frozenset({"held_out", "limit", "max_drop", "max_canary_drop"})
"""Fields of `train`'s gates that only say how others are measured."""


@dataclass(frozen=True, slots=True)
class JobGates:
    """What only a job can check; None is no such gate.

    `train` are the gates that `train.promote.gate` measures, None without any; `measured` bounds a method's numbers.
    """

    max_truncation_rise: float | None = None
    max_below_teacher: float | None = None
    max_domain_drop: float | None = None
    min_recovered: float | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    train: Gates | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that no share can meet."""
        for name, limit in self.bounds.items():
            if limit is not None and not -1 <= limit <= 1:
                raise ConfigError(f"gates.{name} must be in [-1, 1], got {limit}")

    @property
    def bounds(self) -> dict[str, float | None]:
        """The bounds on tasks that the job measures, by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("measured", "train")}


_OWN = tuple(JobGates().bounds)


def read_job_gates(spec: JobSpec) -> JobGates | None:
    """Split and read the table [gates]; None without one. Raises ConfigError naming the field."""
    if not spec.gates:
        return None
    table = dict(spec.gates)
    method_bounds = table.pop("measured", {})
    if not isinstance(method_bounds, Mapping):
        raise ConfigError("gates.measured must be a table [gates.measured]")
    names = [*(item.name for item in fields(Gates)), *_OWN, "measured"]
    for name in table:
        if name not in names:
            raise ConfigError(f"unknown key 'gates.{name}'{nearest(name, names)} (known: {', '.join(names)})")
    own = build(JobGates, {name: value for name, value in table.items() if name in _OWN}, where="gates.")
    trained = {name: value for name, value in table.items() if name not in _OWN}
    held_out = next((domain.held_out for domain in spec.domains if domain.held_out), None)
    if held_out is None and any(limit is not None for limit in own.bounds.values()):
        raise ConfigError("gates on measured tasks need one: give held_out")
    gates: Gates | None = None
    if set(trained) - _SILENT:
        if "held_out" not in trained and held_out is None:
            raise ConfigError("gates: give held_out, of the spec or in [gates]")
        gates = read_gates({"held_out": held_out, **trained}, "[gates]")
    lowest = {name: parse(f"gates.measured.{name}", value, float) for name, value in method_bounds.items()}
    return replace(own, measured=lowest, train=gates)


def job_checks(
    gates: JobGates, start: Measured, student: Measured, teachers: Mapping[str, Measured], seed: int
) -> list[GateCheck]:
    """Check what the measurements of a job show; `teachers` by name."""
    checks: list[GateCheck] = []
    for name in student.tasks:
        if gates.max_truncation_rise is not None:
            rise = student.tasks[name].truncated - start.tasks[name].truncated
            checks.append(at_most("max_truncation_rise", f"cut answers on {name}", rise, gates.max_truncation_rise))
        if gates.max_domain_drop is not None:
            drop = student.gap(start, name, seed)
            checks.append(at_most("max_domain_drop", f"drop on {name}", drop.high, gates.max_domain_drop))
    for name, best in best_teachers(teachers).items():
        if gates.max_below_teacher is not None:
            gap = student.gap(best, name, seed)
            what = f"below the teacher on {name}"
            checks.append(at_most("max_below_teacher", what, gap.high, gates.max_below_teacher))
        if gates.min_recovered is not None:
            share = recovered(start, student, best, name)
            checks.append(at_least("min_recovered", f"share of the gain on {name}", share, gates.min_recovered))
    for name, limit in gates.measured.items():
        if name not in student.own:
            names = ", ".join(sorted(student.own)) or "none"
            raise ConfigError(f"gates.measured.{name}: the method measures no such number (known: {names})")
        checks.append(at_least(f"measured.{name}", name, student.own[name], limit))
    return checks
