"""The measurements of one model, task by task, and how it compares with others, problem by problem.

A task is measured greedily and sampled, with equal seeds for every model, so that differences are paired. A teacher is
measured as it teaches: under its strategy, whose answers are the greedy column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evals.numbers.statistics import Interval, mean_interval, paired_interval
from ttc.config.values import counted

HEAD = ("task", "who", "greedy % (95 %)", "sampled % (95 %)", "gain over the start", "tokens", "cut %")


@dataclass(frozen=True, slots=True)
class TaskNumbers:
    """Right answers in the order of the problems (greedy, and sampled where it was), and means over the greedy ones.

    `tokens` is what an answer cost: generated, judged and newly scored; `length` that of the answer itself. `unjudged`
    answers got no verdict and do not count as right. `groups` gives variants of one thing the same number; empty where
    every problem is its own.
    """

    right: tuple[bool, ...]
    sampled: tuple[bool, ...]
    tokens: float
    length: float
    truncated: float
    unjudged: int = 0
    groups: tuple[int, ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return sum(self.right) / len(self.right)

    def interval(self, seed: int, *, sampled: bool = False) -> Interval:
        """Accuracy with its 95 % interval."""
        values = [float(value) for value in (self.sampled if sampled else self.right)]
        return mean_interval(values, self.groups or range(len(values)), seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Plain data; right and wrong as a text of 1 and 0."""
        bits = {name: "".join("01"[value] for value in getattr(self, name)) for name in ("right", "sampled")}
        means = {"tokens": self.tokens, "length": self.length, "truncated": self.truncated}
        variants = {"groups": list(self.groups)} if self.groups else {}
        return {**bits, **means, "unjudged": self.unjudged, **variants}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskNumbers:
        """What `to_json` wrote."""
        right, sampled = (tuple(bit == "1" for bit in data[name]) for name in ("right", "sampled"))
        unjudged = data.get("unjudged", 0)  # older results do not say
        groups = tuple(data.get("groups", ()))
        return cls(right, sampled, data["tokens"], data["length"], data["truncated"], unjudged, groups)


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: numbers by task, and a method's own numbers."""

    tasks: Mapping[str, TaskNumbers]
    own: Mapping[str, float] = field(default_factory=dict)

    def gap(self, other: Measured, task: str, seed: int) -> Interval:
        """How much better `other` is on a task with greedy answers, paired by problem, with its 95 % interval."""
        own, others = ([float(value) for value in model.tasks[task].right] for model in (self, other))
        return paired_interval(own, others, self.tasks[task].groups or range(len(own)), seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the result file."""
        return {"tasks": {name: task.to_json() for name, task in self.tasks.items()}, "own": dict(self.own)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """What `to_json` wrote."""
        return cls({name: TaskNumbers.from_json(task) for name, task in data["tasks"].items()}, data["own"])


def compared(models: Mapping[str, Measured], seed: int) -> list[tuple[str, ...]]:
    """Rows of texts under `HEAD`, by task, the start first, then the student, then teachers."""
    start = models["start"]
    return [
        (task, who, *_cells(model, start, task, seed, with_gain=who != "start"))
        for task in start.tasks
        for who, model in models.items()
        if task in model.tasks
    ]


def unjudged_lines(models: Mapping[str, Measured]) -> list[str]:
    """Lines on answers without a verdict, by model and task."""
    return [
        f"{who}: {counted(task.unjudged, 'answer')} on {name} without a verdict, counted as wrong"
        for who, model in models.items()
        for name, task in model.tasks.items()
        if task.unjudged
    ]


def _cells(model: Measured, start: Measured, task: str, seed: int, *, with_gain: bool) -> tuple[str, ...]:
    numbers = model.tasks[task]
    sampled_text = share(numbers.interval(seed, sampled=True)) if numbers.sampled else ""
    gain = share(start.gap(model, task, seed), signed=True) if with_gain else ""
    return share(numbers.interval(seed)), sampled_text, gain, f"{numbers.tokens:,.1f}", f"{100 * numbers.truncated:.1f}"


def recoveries(models: Mapping[str, Measured]) -> dict[str, float]:
    """Per task, the share of the best teacher's gain over the start that the student reached; NaN without a gain."""
    best = best_teachers({who: model for who, model in models.items() if who not in ("start", "student")})
    if "student" not in models:
        return {}
    start, student = models["start"], models["student"]
    return {task: recovered(start, student, best[task], task) for task in start.tasks if task in best}


def best_teachers(teachers: Mapping[str, Measured]) -> dict[str, Measured]:
    """The most accurate teacher of each task."""
    best: dict[str, Measured] = {}
    for teacher in teachers.values():
        for name, task in teacher.tasks.items():
            if name not in best or task.accuracy > best[name].tasks[name].accuracy:
                best[name] = teacher
    return best


def recovered(start: Measured, student: Measured, teacher: Measured, task: str) -> float:
    """Share of the teacher's greedy gain over the start that the student reached; NaN without a gain."""
    before, best = start.tasks[task].accuracy, teacher.tasks[task].accuracy
    return (student.tasks[task].accuracy - before) / (best - before) if best > before else math.nan


def share(interval: Interval, *, signed: bool = False) -> str:
    """`56.9 (53.9 to 59.9)` in percent."""
    sign = "+" if signed else ""
    value, low, high = (100 * number for number in (interval.value, interval.low, interval.high))
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"
