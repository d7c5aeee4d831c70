"""What stages that learn from rows have in common: how long, how fast, what is held out, what watches.

A kind names its rows and its update; `Fit` (`train.offline.epochs`) runs them at this pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train.base.fields import Fields
from train.base.health import Rule, configured
from train.base.optimiser import Schedule
from train.offline.epochs import Pace
from ttc.errors import ConfigError

__all__ = ["Course"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course(Fields):
    """Fields of a stage that passes over rows; refused when it is made if they cannot be.

    Args:
        steps: updates.
        lr: highest learning rate.
        rows: examples per update.
        held_out_share: share of prompts that are held out and measured.
        warmup: steps over which the rate rises.
        decay: let the rate fall to 0.
        eval_every: steps between held-out measurements.
        save_every: steps between checkpoints.
        health: changes of health rules by name.
    """

    steps: int
    lr: float
    rows: int = 32
    held_out_share: float = 0.1
    warmup: int = 0
    decay: bool = True
    eval_every: int = 20
    save_every: int = 50
    health: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse a share, a pace, a rate or a rule that cannot be."""
        if not 0 < self.held_out_share < 1:
            raise ConfigError(f"held_out_share must be in (0, 1), got {self.held_out_share}")
        _ = self.pace, self.schedule, self.rules

    @property
    def pace(self) -> Pace:
        """Steps, and rows of each."""
        return Pace(self.steps, self.rows, self.eval_every, self.save_every)

    @property
    def schedule(self) -> Schedule:
        """The learning rate by step."""
        return Schedule(self.lr, self.steps, self.warmup, self.decay)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The health rules."""
        return configured(self.health or {})
