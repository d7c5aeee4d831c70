"""What a run is made of, how long it is, and the counters that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from train.base.alarm_file import AlarmFile
from train.base.checkpoint import Checkpoints
from train.base.health import Alarm, Health
from train.base.rollout import Collector
from train.base.rollout_file import RolloutFile
from train.base.world import ALONE, World
from train.rollouts.frontier import Frontier
from train.rollouts.held_out import HeldOut
from train.rollouts.rewards import Rewarder
from train.rollouts.sync import Syncer
from train.update.update import Updater
from ttc.records import LineFile

__all__ = ["Parts", "Plan", "State"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how wide: `steps` updates of `prompts` groups each.

    A step with too few groups that carry a signal draws at most `refills` more rounds. Held-out accuracy is measured
    every `eval_every` steps and at the end; a checkpoint is written every `save_every`. `until` ends the run early once
    greedy held-out accuracy reaches it. `max_staleness` and `buffer` are for the asynchronous loop.
    """

    steps: int
    prompts: int
    refills: int = 0
    eval_every: int = 10
    save_every: int = 50
    until: float | None = None
    mask_truncated: bool = False
    max_staleness: int = 1
    buffer: int = 2


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a run is made of."""

    sampler: Frontier
    collector: Collector
    rewarder: Rewarder
    updater: Updater
    syncer: Syncer
    held_out: HeldOut
    health: Health
    checkpoints: Checkpoints
    metrics: LineFile
    rollouts: RolloutFile | None
    pad_id: int
    log: Callable[[str], None]
    alarms: list[Alarm] = field(default_factory=list)
    alarm_file: AlarmFile | None = None
    held_out_file: LineFile | None = None
    world: World = ALONE


@dataclass(slots=True)
class State:
    """Counters that a checkpoint keeps; `stopped` is why the run ends early."""

    step: int = 0
    best: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    stopped: str = ""

    def going(self, plan: Plan) -> bool:
        """Whether another step is due."""
        return self.step < plan.steps and not self.stopped
