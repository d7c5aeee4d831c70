"""Before and after as a table: per task the start, the student and its teachers, with intervals and paired gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distill.plan.gates import best_teacher, recovered
from distill.measure.measured import Measured
from evals.numbers.statistics import Interval

__all__ = ["HEAD", "Line", "compared", "recoveries", "share"]

HEAD = ("task", "who", "greedy % (95 %)", "sampled % (95 %)", "gain over the start", "tokens", "cut %")


@dataclass(frozen=True, slots=True)
class Line:
    """One model on one task; `cells` are texts under `HEAD`."""

    task: str
    who: str
    cells: tuple[str, ...]


def compared(measured: Mapping[str, Measured], seed: int) -> list[Line]:
    """Lines by task, the start first, then the student, then teachers."""
    start = measured["start"]
    lines = []
    for task in start.tasks:
        for who, found in measured.items():
            if task not in found.tasks:
                continue
            numbers = found.tasks[task]
            sampled = share(numbers.interval(seed, sampled=True)) if numbers.sampled else ""
            gain = "" if who == "start" else share(start.gap(found, task, seed), signed=True)
            cells = (task, who, share(numbers.interval(seed)), sampled, gain, f"{numbers.tokens:,.1f}",
                     f"{100 * numbers.truncated:.1f}")  # fmt: skip
            lines.append(Line(task, who, cells))
    return lines


def recoveries(measured: Mapping[str, Measured]) -> dict[str, float]:
    """Per task the share of the best teacher's gain over the start that the student has; NaN without such a gain."""
    teachers = {who: found for who, found in measured.items() if who not in ("start", "student")}
    found: dict[str, float] = {}
    for task in measured["start"].tasks:
        best = best_teacher(teachers, task)
        if best is not None and "student" in measured:
            found[task] = recovered(measured["start"], measured["student"], best, task)
    return found


def share(interval: Interval, *, signed: bool = False) -> str:
    """`56.9 (53.9 to 59.9)` in percent."""
    sign = "+" if signed else ""
    value, low, high = (100 * number for number in (interval.value, interval.low, interval.high))
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"
