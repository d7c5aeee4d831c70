"""What a student must show to be promoted: the gates of `train.measure.gates`, and those that only a job can check.

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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from distill.spec.measured import Measured
from distill.spec.spec import JobSpec
from evals.numbers.gates import GateCheck, at_least, at_most
from train.measure.gates import Gates, read_gates
from train.measure.gates import gates as train_gates
from ttc.config.registry import bind
from ttc.config.values import nearest
from ttc.errors import ConfigError

__all__ = ["JobGates", "best_teacher", "job_checks", "job_gates", "read_job_gates", "recovered"]


@dataclass(frozen=True, slots=True)
class JobGates:
    """See `job_gates`; `train` are the gates that `train.promote.gate` measures, None without any."""

    train: Gates | None
    max_truncation_rise: float | None
    max_below_teacher: float | None
    max_domain_drop: float | None
    min_recovered: float | None
    measured: Mapping[str, float]


def job_gates(
    *,
    max_truncation_rise: float | None = None,
    max_below_teacher: float | None = None,
    max_domain_drop: float | None = None,
    min_recovered: float | None = None,
) -> dict[str, float | None]:
    """Declare what only a job can check.

    Args:
        max_truncation_rise: most that the share of cut answers may rise on a measured task.
        max_below_teacher: most that the upper end of the paired gap to the best teacher may be.
        max_domain_drop: most that the upper end of the paired drop on a measured task may be.
        min_recovered: least share of the best teacher's gain over the start that the student has.
    """
    given = {
        "max_truncation_rise": max_truncation_rise,
        "max_below_teacher": max_below_teacher,
        "max_domain_drop": max_domain_drop,
        "min_recovered": min_recovered,
    }
    for name, value in given.items():
        if value is not None and not -1 <= value <= 1:
            raise ConfigError(f"gates.{name} must be in [-1, 1], got {value}")
    return given


def read_job_gates(spec: JobSpec) -> JobGates | None:
    """Split and bind the table [gates]; None without one. Raises ConfigError naming the field."""
    if not spec.gates:
        return None
    table = dict(spec.gates)
    own_names, train_names = list(signature(job_gates).parameters), list(signature(train_gates).parameters)
    measured = table.pop("measured", {})
    if not isinstance(measured, Mapping):
        raise ConfigError("gates.measured must be a table [gates.measured]")
    bounds = {name: _number(f"gates.measured.{name}", value) for name, value in measured.items()}
    for name in table:
        if name not in own_names + train_names:
            known = [*train_names, *own_names, "measured"]
            raise ConfigError(f"unknown key 'gates.{name}'{nearest(name, known)} (known: {', '.join(known)})")
    own = job_gates(**bind(job_gates, {k: v for k, v in table.items() if k in own_names}, supply={}))
    rest: dict[str, Any] = {k: v for k, v in table.items() if k in train_names}
    needs_tasks = any(value is not None for value in own.values())
    held_out = next((domain.held_out for domain in spec.domains if domain.held_out), None)
    if needs_tasks and held_out is None:
        raise ConfigError("gates on measured tasks need one: give held_out")
    found: Gates | None = None
    if set(rest) - {"held_out", "limit", "max_drop", "max_canary_drop"}:
        if "held_out" not in rest and held_out is None:
            raise ConfigError("gates: give held_out, of the spec or in [gates]")
        found = read_gates({"held_out": held_out, **rest}, "[gates]")
    return JobGates(found, measured=bounds, **own)


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
    for name, best in _best(teachers).items():
        if gates.max_below_teacher is not None:
            gap = student.gap(best, name, seed)
            checks.append(at_most("max_below_teacher", f"below the teacher on {name}", gap.high,
                                   gates.max_below_teacher))  # fmt: skip
        if gates.min_recovered is not None:
            share = recovered(start, student, best, name)
            checks.append(at_least("min_recovered", f"share of the gain on {name}", share, gates.min_recovered))
    for name, bound in gates.measured.items():
        if name not in student.own:
            known = ", ".join(sorted(student.own)) or "none"
            raise ConfigError(f"gates.measured.{name}: the method measures no such number (known: {known})")
        checks.append(at_least(f"measured.{name}", name, student.own[name], bound))
    return checks


def recovered(start: Measured, student: Measured, teacher: Measured, task: str) -> float:
    """Share of the teacher's gain over the start that the student has, greedy; NaN where there was no gain."""
    before, best = start.tasks[task].accuracy, teacher.tasks[task].accuracy
    return (student.tasks[task].accuracy - before) / (best - before) if best > before else math.nan


def _best(teachers: Mapping[str, Measured]) -> dict[str, Measured]:
    """The most accurate teacher of each task."""
    best: dict[str, Measured] = {}
    for found in teachers.values():
        for name, task in found.tasks.items():
            if name not in best or task.accuracy > best[name].tasks[name].accuracy:
                best[name] = found
    return best


def _number(name: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError as exc:
        raise ConfigError(f"{name} must be a number, got {value!r}") from exc


def best_teacher(teachers: Mapping[str, Measured], task: str) -> Measured | None:
    """The most accurate teacher of a task; None when none was measured on it."""
    return _best(teachers).get(task)
