"""What a trained model must show before it replaces another: the table `[gates]` of a recipe.

    [gates]
    held_out = "cipher:split=eval"       a task, NAME or NAME:KEY=VALUE,...
    min_accuracy = 0.9                   the lower end of its 95 % interval
    retention = ["cipher:key=1"]         tasks that training must not have hurt
    max_drop = 0.02

Only named gates apply. Bounds on accuracy are on the unfavourable end of an interval, so too few problems fail a gate
instead of passing it by luck.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from train.registries import make_task
from ttc.config.values import build
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of a recipe: the fields of its table [gates].

    Args:
        held_out: the task whose accuracy, length, divergence and cost are measured, greedily.
        limit: most problems of each task.
        min_accuracy: least lower end of the accuracy's interval.
        min_gain: least lower end of the paired gain over the model at the start.
        retention: tasks on which the model must not be worse than at the start.
        max_drop: most that the upper end of the paired drop on a retention task may be.
        canaries: a task whose prompts must never have been trained on, and whose accuracy must not drop.
        max_canary_drop: as max_drop, for the canaries.
        max_length: most tokens of an answer, on average.
        max_kl: most divergence from the model at the start, nats per token of sampled answers.
        max_mflops: most millions of FLOPs per answer.
        max_seconds: most seconds that training took, all stages that count them together.
        reviews: a JSON-lines file of traces that people reviewed; see `train.promote.gate`.
        min_reviews: least different traces of this very model among them.
        min_accepted: least lower end of the share of reviews that accept.
        safety: tasks of which every case must be answered as its verifier demands, greedily and sampled.
        reward_model: trained reward models that say which of two answers is preferred: stages of the run, or folders.
        min_win_rate: least lower end of how often the answer is preferred to that of the model at the start.
    """

    held_out: str
    limit: int = 256
    min_accuracy: float | None = None
    min_gain: float | None = None
    retention: tuple[str, ...] = ()
    max_drop: float = 0.02
    canaries: str | None = None
    max_canary_drop: float = 0.02
    max_length: float | None = None
    max_kl: float | None = None
    max_mflops: float | None = None
    max_seconds: float | None = None
    reviews: str | None = None
    min_reviews: int = 20
    min_accepted: float = 0.9
    safety: tuple[str, ...] = ()
    reward_model: tuple[str, ...] = ()
    min_win_rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible bounds and unknown tasks."""
        for name in ("min_accuracy", "max_drop", "max_canary_drop"):
            self._check_range(name, 0.0, 1.0)
        self._check_range("min_gain", -1.0, 1.0)
        for name in ("max_length", "max_kl", "max_mflops", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"gates.{name} must be above 0, got {value}")
        if self.limit < 1:
            raise ConfigError(f"gates.limit must be at least 1, got {self.limit}")
        reviews, accepted = self.min_reviews, self.min_accepted
        if reviews < 1 or not 0 <= accepted <= 1:
            raise ConfigError(f"gates: needs min_reviews >= 1 and min_accepted in [0, 1]: {reviews}, {accepted}")
        if (self.min_win_rate is None) == bool(self.reward_model) or not 0 <= (self.min_win_rate or 0.0) <= 1:
            raise ConfigError("gates: min_win_rate, in [0, 1], and reward_model go together")
        for spec in (self.held_out, *self.retention, *self.safety, *((self.canaries,) if self.canaries else ())):
            make_task(spec)

    def _check_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"gates.{name} must be in [{low:g}, {high:g}], got {value}")


_READ_WITH = {
    "max_drop": "retention", "max_canary_drop": "canaries", "min_reviews": "reviews", "min_accepted": "reviews",
}  # fmt: skip
"""Bounds that say nothing without the field beside them."""


def read_gates(table: object, where: str) -> Gates:
    """Bind a table of a recipe; raises ConfigError naming a wrong field, for an unused bound, or without any gate."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: gates must be a table [gates]")
    declared = build(Gates, table, where="gates.")
    for name, owner in _READ_WITH.items():
        if name in table and not getattr(declared, owner):
            raise ConfigError(f"{where}: gates.{name} is read with gates.{owner} alone: name one, or leave {name} out")
    silent = {"held_out", "limit", "max_drop", "max_canary_drop", "min_reviews", "min_accepted", "reward_model"}
    names = [field.name for field in fields(Gates) if field.name not in silent]
    if all(getattr(declared, name) in (None, ()) for name in names):
        named = ", ".join(names)
        raise ConfigError(f"{where}: [gates] holds no gate; name at least one of {named}")
    return declared
