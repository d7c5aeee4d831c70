"""Carry out what health rules ask for: say so, lower the rate, roll back, stop.

Every loop of this package acts through this one function, so an alarm means the same everywhere. `skip` needs nothing
here: the optimiser leaves out an update that is not finite by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from train.base.alarm_file import AlarmFile
from train.base.checkpoint import Checkpoints
from train.base.health import Alarm
from train.base.optimiser import Optimiser

__all__ = ["act"]


def act(
    alarms: Sequence[Alarm],
    model: Any,
    optimiser: Optimiser,
    checkpoints: Checkpoints,
    log: Callable[[str], None],
    file: AlarmFile | None = None,
) -> str:
    """Act on `alarms` in order; returns why the run must stop, or nothing."""
    stopped = ""
    for alarm in alarms:
        if file is not None:
            file.append(alarm)
        log(alarm.text())
        if alarm.rule.action == "lower_rate":
            optimiser.scale *= 0.5
        if alarm.rule.action == "roll_back":
            _roll_back(model, optimiser, checkpoints)
        if alarm.rule.action == "stop":
            stopped = f"health rule {alarm.rule.name}: {alarm.rule.why}"
    return stopped


def _roll_back(model: Any, optimiser: Optimiser, checkpoints: Checkpoints) -> None:
    """Take the weights of the last checkpoint, with half the learning rate; counters go on."""
    scale = optimiser.scale
    found = checkpoints.load(model)
    if found is not None:
        optimiser.load(found[0])
    optimiser.scale = scale * 0.5
