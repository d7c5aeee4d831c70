"""A job's specification, as a TOML file or flags: who learns what from whom, and what is good enough.

    method = "rejection"                 a function of distill/methods or of the entry-point group ttc.methods
    student = "runs/base/model"          a model folder, or a hub id
    form = "r1-zero"                     how the student is asked, written into its chat template: `train.recipe.adapt`
    teacher = "runs/teacher/model"       a folder; or a table, or several:
    [[teacher]]                          name, model, engine, options, strategy, scorer, domains
    task = "cipher:split=train"          what is learnt; held_out = "cipher:split=eval" measures it; or several:
    [domain.walks]                       task and held_out of one of them
    n = 4                                answers per problem and teacher
    max_unfit = 0.1                      the share of rows that the audit may leave out before it refuses the job
    ledgers = ["runs/other"]             jobs whose answers are taken over, where the same was asked of the same teacher
    seed = 1
    [rejection]                          the method's own fields
    [sampling]                           temperature, top_p, top_k, min_p, repetition_penalty, max_tokens
    [thinking]                           see `ttc.session.thinking.Thinking`
    [filters.repetition]                 a filter's fields; `repetition = false` drops it
    [select]                             rule, and its fields
    [mix]                                data: files of further rows; share: how much of the rows they may be
    [train]                              fields of the training stage, and epochs
    [eval]                               limit, retention: tasks that must not get worse
    [gates]                              what the student must show to be promoted: see `distill.plan.gates`

Reading refuses unknown keys by name and loads nothing. A student as its own teacher is a `teacher` without a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from distill.spec.registries import METHODS
from ttc.config.recipes import load_toml, merge
from ttc.config.signatures import bind
from ttc.config.values import at_least, at_most, build, check_seed, check_training_place, nearest, parse, within
from ttc.core import Sampling
from ttc.errors import ConfigError
from ttc.session.session import MAX_SAMPLES
from ttc.session.thinking import Thinking

MAX_UNFIT = 0.1
"""The largest share of rows that a job leaves out because they cannot be learnt as they are."""
_MEASURED = ("start", "student")
"""The names of the job's own two models in results, beside those of teachers."""
_WRITTEN = ("teacher", "task", "held_out", "domain")
"""Keys of a file that become the fields `teachers` and `domains`."""


@dataclass(frozen=True, slots=True)
class TeacherSpec:
    """Who answers. `model` None is the student itself; `domains` empty is all; `options` are the engine's."""

    name: str = "teacher"
    model: str | None = None
    engine: str = "embedded"
    strategy: str = "direct"
    scorer: str | None = None
    domains: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    scorer_options: Mapping[str, Any] = field(default_factory=dict)

    def teaches(self, domain: str) -> bool:
        """Whether it answers the problems of a domain."""
        return not self.domains or domain in self.domains


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """What is learnt and where it is measured, both NAME or NAME:KEY=VALUE,..."""

    name: str
    task: str
    held_out: str | None = None


@dataclass(frozen=True, slots=True)
class MixSpec:
    """Rows from elsewhere: files as `train.examples.rows` reads them, and the share of all rows they may be."""

    data: tuple[str, ...] = ()
    share: float = 0.1

    def __post_init__(self) -> None:
        """Refuse shares that leave no rows of the teacher."""
        if not 0 < self.share < 1:
            raise ConfigError(f"mix.share must be in (0, 1), got {self.share}")


@dataclass(frozen=True, slots=True)
class EvalSpec:
    """How the student is measured: most problems per task, and tasks that training must not have hurt.

    `teachers`: measure them too, on the held-out tasks of their domains and under their strategies.
    """

    limit: int = 256
    teachers: bool = True
    retention: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a limit below 1."""
        if self.limit < 1:
            raise ConfigError(f"eval.limit must be at least 1, got {self.limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """See the module docstring; a field that is a mapping is a table with keys of its own.

    `limit` is the most problems per domain. `smoke` problems are asked first, and all but `smoke_failures` of them must
    get an answer that passes the filters. `max_unfit` is the largest share of the rows that the audit may leave out.
    `shards` 0 generates in this process, n in n Ray actors. `waive` names pre-flight checks that only warn. `options`
    is the method's own table.
    """

    name: str
    method: str
    student: str
    seed: int
    n: int = 4
    limit: int | None = None
    verifier: str | None = None
    smoke: int = 16
    smoke_failures: int = 1
    max_unfit: float = MAX_UNFIT
    device: str = "cpu"
    threads: int = 1
    concurrency: int = 64
    shards: int = 0
    ledgers: tuple[str, ...] = ()
    form: str | None = None
    waive: tuple[str, ...] = ()
    teachers: tuple[TeacherSpec, ...]
    domains: tuple[DomainSpec, ...]
    thinking: Thinking = field(default_factory=Thinking)
    mix: MixSpec = field(default_factory=MixSpec)
    eval: EvalSpec = field(default_factory=EvalSpec)
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    filters: Mapping[str, Any] = field(default_factory=dict)
    select: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    gates: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers and names that mean nothing."""
        check_training_place("spec", self.device, self.threads)
        at_least("spec", 1, n=self.n, concurrency=self.concurrency, limit=self.limit)
        at_most("spec", MAX_SAMPLES, n=self.n, concurrency=self.concurrency)
        check_seed("spec", seed=self.seed)
        within("spec", 0, 1, max_unfit=self.max_unfit)
        at_least("spec", 0, smoke=self.smoke, smoke_failures=self.smoke_failures, shards=self.shards)
        names = [teacher.name for teacher in self.teachers]
        for name in _MEASURED:
            if name in names:
                raise ConfigError(
                    f"teacher.name: {name!r} is what results call a model of every job; give another name"
                )
        if len(set(names)) < len(names):
            raise ConfigError(f"two teachers have the same name ({', '.join(names)})")
        domains = [domain.name for domain in self.domains]
        for teacher in self.teachers:
            for name in teacher.domains:
                if name not in domains:
                    raise ConfigError(f"teacher {teacher.name}: no domain {name!r} (known: {', '.join(domains)})")
        self.sampling_of(Sampling())

    def sampling_of(self, task: Sampling) -> Sampling:
        """The task's sampling with the spec's fields laid over it; no seed, since every draw has its own."""
        if "seed" in self.sampling:
            raise ConfigError("sampling.seed: every draw has its own, made from the job's seed; set seed instead")
        return replace(build(Sampling, {**asdict(task), **self.sampling}, where="sampling."), seed=None)


def read_spec(path: Path | None, settings: Mapping[str, object]) -> JobSpec:
    """Read a file (None: none) with dotted `settings` from the command line laid over it; see `parse_spec`.

    Errors in the file name the file; errors in the settings do not.
    """
    table = {} if path is None else load_toml(path.expanduser(), "job file")
    table.setdefault("name", "distillation" if path is None else path.stem)
    if isinstance(table.get("teacher"), str):
        table["teacher"] = {"model": table["teacher"]}
    try:
        return parse_spec(merge(table, settings))
    except ConfigError as exc:
        if path is None or (settings and _refusal(table) != str(exc)):  # then it is about the settings
            raise
        raise ConfigError(f"{path}: {exc}") from exc


def _refusal(table: Mapping[str, Any]) -> str:
    """The reason why a table alone is no spec; empty where it is one."""
    try:
        parse_spec(table)
    except ConfigError as exc:
        return str(exc)
    return ""


def parse_spec(table: Mapping[str, Any]) -> JobSpec:
    """Check a table and return it as a spec.

    Raises:
        ConfigError: an unknown or missing key, or a value that does not fit; names it.
    """
    method = table.get("method")
    if not isinstance(method, str):
        raise ConfigError(f"key 'method' is required (one of {', '.join(METHODS.names())})")
    factory = METHODS.load(method)
    own = method.replace("-", "_").rpartition(":")[2]
    apart = (own, *_WRITTEN)
    keys = [item.name for item in fields(JobSpec) if item.name not in ("teachers", "domains", "options")]
    for key in table:
        if key not in (*keys, *apart):
            names = [*keys, *apart]
            place = next((where for where, inside in _inside().items() if key in inside), None)
            hint = nearest(key, names) if place is None else f"; it belongs into a table: {place}.{key}"
            raise ConfigError(f"unknown key {key!r}{hint} (known: {', '.join(names)})")
    options = parse(own, table.get(own, {}), Mapping[str, Any])
    method_fields = bind(factory, options, supply={})
    written = {key: value for key, value in table.items() if key not in apart}
    teachers, domains = _teachers(table.get("teacher")), _domains(table)
    spec = build(JobSpec, {**written, "teachers": teachers, "domains": domains, "options": options})
    factory(**method_fields).check(spec)
    return spec


def _inside() -> dict[str, set[str]]:
    """By table of a spec the keys that people look for outside of it."""
    tables = {"sampling": Sampling, "eval": EvalSpec, "mix": MixSpec}
    own = {where: {item.name for item in fields(table)} for where, table in tables.items()}
    return own | {"train": {"steps", "epochs", "rows", "lr", "warmup", "lora", "prompts"}}


def _teachers(value: Any) -> tuple[TeacherSpec, ...]:
    """One folder, one table or several; none at all is an empty tuple."""
    if value is None:
        return ()
    tables = value if isinstance(value, list) else [{"model": value} if isinstance(value, str) else value]
    names = ["teacher"] if len(tables) == 1 else [f"teacher-{number}" for number in range(1, len(tables) + 1)]
    for name, table in zip(names, tables, strict=True):
        if not isinstance(table, Mapping):
            raise ConfigError(f"{name} must be a model folder or a table, got {table!r}")
        if table.get("model") == "":  # such as an unset variable of the shell
            raise ConfigError(f"{name}: model is empty: name a folder, or leave model out for the student itself")
    pairs = zip(names, tables, strict=True)
    return tuple(build(TeacherSpec, {"name": name, **table}, where="teacher.") for name, table in pairs)


def _domains(table: Mapping[str, Any]) -> tuple[DomainSpec, ...]:
    several = parse("domain", table.get("domain", {}), Mapping[str, Mapping[str, Any]])
    if ("task" in table) == bool(several):
        raise ConfigError("give either task (and held_out), or a table [domain.NAME] for each of several")
    if not several:
        single = {key: table[key] for key in ("task", "held_out") if key in table}
        return (build(DomainSpec, {"name": "task", **single}),)
    if "held_out" in table:
        raise ConfigError("held_out belongs into the tables [domain.NAME]")
    return tuple(build(DomainSpec, {"name": name, **own}, where=f"domain.{name}.") for name, own in several.items())
