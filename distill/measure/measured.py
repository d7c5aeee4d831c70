"""What was measured of one model, task by task, and how two of them compare, problem by problem.

A task is measured greedily and sampled, with equal seeds for every model, so that differences are paired. A teacher is
measured as it teaches: under its strategy, whose answers are the greedy column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evals.numbers.statistics import Interval, mean_interval, paired_interval

__all__ = ["Measured", "TaskNumbers"]


@dataclass(frozen=True, slots=True)
class TaskNumbers:
    """Right answers in the order of the problems (greedy, and sampled where it was), and means over the greedy ones.

    `tokens` is what an answer cost: generated, judged and newly scored; `length` that of the answer itself.
    """

    right: tuple[bool, ...]
    sampled: tuple[bool, ...]
    tokens: float
    length: float
    truncated: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return sum(self.right) / len(self.right)

    def interval(self, seed: int, *, sampled: bool = False) -> Interval:
        """Accuracy with its 95 % interval."""
        values = [float(value) for value in (self.sampled if sampled else self.right)]
        return mean_interval(values, range(len(values)), seed=seed)


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: numbers by task, and a method's own numbers."""

    tasks: Mapping[str, TaskNumbers]
    own: Mapping[str, float] = field(default_factory=dict)

    def gap(self, other: Measured, task: str, seed: int, *, sampled: bool = False) -> Interval:
        """How much better `other` is on a task, problem by problem, with its 95 % interval."""
        first, second = self.tasks[task], other.tasks[task]
        mine, theirs = (first.sampled, second.sampled) if sampled else (first.right, second.right)
        return paired_interval([float(v) for v in mine], [float(v) for v in theirs], range(len(mine)), seed=seed)
