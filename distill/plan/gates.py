"""What a student must show to be promoted: the gates of `train.measure.gates`, and those that only a job can check.

    [gates]
    min_gain = 0.0                   fields of train.measure.gates; held_out is the first domain's where it is not given
    max_truncation_rise = 0.01       share of cut answers, after minus before, on every measured task
    max_below_teacher = 0.05         upper end of the paired gap to the best teacher, on every measured domain
    max_domain_drop = 0.02           upper end of the paired drop on every domain and retention task
    min_recovered = 0.5              share of the teacher strategy's gain over the start that the student has

    [gates.measured]                 lower bounds on a method's own numbers, such as obedience
    obedience = 0.99

Bounds on right answers apply to the unfavourable end of an interval, so too few problems fail a gate instead of passing
it by luck; cut answers, the share of a gain and a method's numbers are compared as measured. A job without gates is
never promoted. A stop-token share below 100 %, or a training problem that is also measured, stops a job long before its
gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from distill.measure.measured import Measured, best_teachers, recovered
from distill.spec.spec import JobSpec
from evals.numbers.gates import GateCheck, at_least, at_most
from train.measure.gates import Gates, read_gates
from ttc.config.values import build, nearest, parse
from ttc.errors import ConfigError

_SILENT = frozenset({"held_out", "limit", "max_drop", "max_canary_drop"})
"""Fields of `train`'s gates that only say how the others are measured."""


@dataclass(frozen=True, slots=True)
class JobGates:
    """Gates that only a job can check; None: no such gate.

    `train` holds the gates that `train.promote.gate` measures, None without any; `measured` bounds a method's numbers.
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
_BESIDE_TEACHERS = ("max_below_teacher", "min_recovered")


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
    compared = [name for name in _BESIDE_TEACHERS if getattr(own, name) is not None]
    if compared and not spec.eval.teachers:
        raise ConfigError(
            f"gates.{compared[0]} compares with the teachers, and none is measured: set eval.teachers = true"
        )
    measured = [domain.name for domain in spec.domains if domain.held_out is not None]
    if compared and not any(teacher.teaches(name) for teacher in spec.teachers for name in measured):
        raise ConfigError(
            f"gates.{compared[0]} compares with the teachers, and none of their domains is measured: give one held_out"
        )
    if "max_drop" in trained and not trained.get("retention"):
        raise ConfigError(
            "gates.max_drop bounds the drop on the tasks of gates.retention, and it names none; max_domain_drop bounds "
            "it on those of eval.retention"
        )
    gates: Gates | None = None
    if set(trained) - _SILENT:
        if "held_out" not in trained and held_out is None:
            raise ConfigError("gates: give held_out, of the spec or in [gates]")
        gates = read_gates({"held_out": held_out, **trained}, "[gates]")
        _check_there("gates.reviews", () if gates.reviews is None else (gates.reviews,))
        _check_there("gates.reward_model", gates.reward_model)
    elif trained:
        name = next(iter(trained))
        raise ConfigError(
            f"gates.{name} only sets how gates such as min_gain are measured, and there is no such gate: add one, or "
            f"leave {name} out"
        )
    lowest = {name: parse(f"gates.measured.{name}", value, float) for name, value in method_bounds.items()}
    return replace(own, measured=lowest, train=gates)


def check_numbers(gates: JobGates, names: Sequence[str], method: str) -> None:
    """Refuse a bound on a number that the method does not measure, before a job pays for anything."""
    for name in gates.measured:
        if name not in names:
            known = f" (known: {', '.join(names)})" if names else ""
            raise ConfigError(f"gates.measured.{name}: {method} measures no such number{nearest(name, names)}{known}")


def _check_there(name: str, places: Sequence[str]) -> None:
    """Refuse a missing file or folder before a job pays for anything, not when it is read at the end."""
    for place in places:
        if not Path(place).expanduser().exists():
            raise ConfigError(f"{name}: {place} does not exist; the gate could only fail at the end")


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
