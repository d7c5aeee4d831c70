"""The loop of offline stages: batches of a fixed data set in mixed order, one update each, watched by health rules.

A kind of stage provides its rows and its update; `FitFields` are the fields that all of them share: length, learning
rate, held-out share, health rules. Which rows a step takes is a pure function of (seed, step): every epoch is its own
permutation. A checkpoint holds the rest, so a killed run resumes bit for bit on one CPU, with the same build of torch
and number of threads. Cost: the updates. Left out: weighting or mixing of data sets, which the rows decide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.base.checkpoint import Checkpoints
from train.base.health import AlarmFile, Health, HealthRule, act, configured
from train.base.optimiser import Optimiser, Schedule
from train.base.stage import ALL_KEPT, Setting, kept, time_left
from train.update.batch import rows_at
from ttc.concurrent import Reminder
from ttc.config.values import counted
from ttc.errors import ConfigError
from ttc.records import LineFile


def fit(
    model: Any,
    optimiser: Optimiser,
    num_rows: int,
    update: Callable[[Sequence[int]], dict[str, float]],
    evaluate: Callable[[], dict[str, float]],
    course: FitFields,
    setting: Setting,
) -> tuple[dict[str, float], str]:
    """Run to the end or until a rule stops it; returns the last finite value of every metric, and why it stopped.

    `update(rows)` takes one optimiser step on the rows of these numbers and returns metrics; `evaluate()` measures the
    held-out rows.

    Raises:
        TrainingError: a loss, a gradient's norm or a weight is not finite; checkpoints are from before that.
        Interrupted: a signal asked for an end; the updates until then are kept.
    """
    if course.rows > num_rows:
        setting.log(f"rows={course.rows}, but the data has only {counted(num_rows, 'row')}: an update repeats some")
    health = Health(course.rules)
    world = setting.world
    checkpoints = Checkpoints(setting.folder / "checkpoints", setting.log, writes=world.main)
    step, stopped = 0, ""
    last: dict[str, float] = {}
    checkpoint = checkpoints.resume(model)
    if checkpoint is not None:
        optimiser.load(checkpoint[0])
        health.load(checkpoint[1]["health"])
        step = int(checkpoint[1]["step"])
        stopped, last = checkpoint[1].get("stopped", ""), checkpoint[1].get("last", {})  # older ones have neither
        setting.log(f"resumed at step {step}")

    def state() -> dict[str, Any]:
        return {"health": health.state(), "stopped": stopped, "last": _plain(last)}

    with (
        LineFile(setting.own / "metrics.jsonl") as metrics,
        AlarmFile(setting.own / "alarms.jsonl") as alarms,
        setting.stop.heeded(ALL_KEPT),
    ):
        if step == 0:
            last = evaluate()
            health.not_finite(last, 0)
            metrics.write({"step": 0, **_plain(last)}, sync=False)
        start, first, reminder = time.perf_counter(), step, Reminder()
        while step < course.steps and not stopped:
            if world.any(setting.stop.asked):
                checkpoints.keep(step, model, optimiser.state(), state())
                raise setting.stop.interrupted(kept(step, setting))
            began = time.perf_counter()
            numbers = update(rows_at(step, course.rows, num_rows, setting.seed))
            step += 1
            numbers["lr"] = optimiser.rate
            numbers["update_s"] = time.perf_counter() - began
            measures = step % course.eval_every == 0 or step == course.steps
            if measures:
                numbers |= evaluate()
            if reminder.due() or measures:
                left = time_left((time.perf_counter() - start) / (step - first) * (course.steps - step))
                setting.log(f"step {step} of {course.steps}: {_told(numbers)}{left}")
            numbers = world.agree(numbers)
            saves = step % course.save_every == 0 or step == course.steps
            numbers["not_finite"] = health.not_finite(numbers, step, not saves or optimiser.sound())
            metrics.write({"step": step, **_plain(numbers)}, sync=False)
            stopped = act(health.check(numbers, step), model, optimiser, checkpoints, setting.log, alarms)
            last |= numbers
            if saves or stopped:
                checkpoints.save(step, model, optimiser.state(), state())
    return _plain(last), stopped


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _told(metrics: dict[str, float]) -> str:
    names = [name for name in metrics if name.startswith("held_out") or name == "loss"]
    return ", ".join(f"{name.replace('_', ' ')} {metrics[name]:.4g}" for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFields:
    """Fields of a stage that passes over rows, checked when they are made.

    Args:
        steps: updates.
        lr: highest learning rate.
        rows: examples, pairs or solutions per update.
        held_out_share: share of prompts that are held out and measured; 0 trains on all rows and measures none.
        warmup: steps over which the rate rises.
        decay: let the rate fall to 0.
        eval_every: steps between held-out measurements, which are made at both ends too.
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
        """Refuse an impossible share, interval, rate or rule."""
        if not 0 <= self.held_out_share < 1:
            raise ConfigError(f"held_out_share must be at least 0 and below 1, got {self.held_out_share}")
        for name in ("steps", "rows", "eval_every", "save_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        _ = self.schedule, self.rules

    @property
    def schedule(self) -> Schedule:
        """The learning rate by step."""
        return Schedule(self.lr, self.steps, self.warmup, self.decay)

    @property
    def rules(self) -> tuple[HealthRule, ...]:
        """The health rules."""
        return configured(self.health or {})
