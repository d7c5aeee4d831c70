"""The extension points of the training package: one file with one function of its name.

    train/advantages/NAME.py     from the rewards of a batch to a weight per token
    train/losses/NAME.py         the policy-gradient term per token
    train/preferences/NAME.py    a loss over pairs or labelled completions
    train/shaping/NAME.py        one more part of the reward
    train/stages/NAME.py         one kind of step of a recipe
    train/environments/NAME.py   a task to be done with tools, and what it is rewarded for

A recipe names one with its parameters on one line, `NAME:KEY=VALUE,...`; `make` reads it.

Fields that several kinds of stage share are written once, as a frozen dataclass that a stage takes as a parameter
(`ttc.config.signatures`); a recipe sets each separately:

    def sft(*, data: str | None = None, course: FitFields) -> Stage: ...        data = "rows.jsonl"
                                                                                steps = 100

A kind with another default overrides it in a subclass.
"""

from __future__ import annotations

import os
from typing import Any

from evals.data.sources import DATA
from evals.task import TASKS, Task, load_task
from ttc.config.plugins import PluginShape
from ttc.config.recipes import parse_spec
from ttc.config.registry import VERIFIERS, Registry
from ttc.config.signatures import call
from ttc.core import Verifier
from ttc.errors import ConfigError, RecordError

ADVANTAGES = Registry("advantage", "train.advantages", "ttc.advantages", PluginShape(("train.update.terms:Advantage",)))
ENVIRONMENTS = Registry(
    "environment", "train.environments", "ttc.environments", PluginShape(("train.rollouts.environment:Environment",))
)
LOSSES = Registry("loss", "train.losses", "ttc.losses", PluginShape(("train.update.terms:Loss",)))
PREFERENCES = Registry(
    "preference loss",
    "train.preferences",
    "ttc.preferences",
    PluginShape(("train.examples.pairs:PairLoss", "train.examples.pairs:LabelledLoss")),
)
SHAPING = Registry("shaping", "train.shaping", "ttc.shaping", PluginShape(("train.rollouts.rewards:Shaping",)))
STAGES = Registry("stage", "train.stages", "ttc.stages", PluginShape(("train.base.stage:Stage",), supplied=("health",)))


def make(registry: Registry, spec: str) -> Any:
    """Return what the function named by `spec` makes; raises ConfigError for an unknown name or parameter."""
    name, options = parse_spec(spec)
    return registry.create(name, options, supply={})


def make_task(spec: str) -> Task:
    """Return the task named by `spec`, with its parameters; its rows come from the folder TTC_DATA, if that is set."""
    name, options = parse_spec(spec)
    supply = {"data": os.environ[DATA]} if os.environ.get(DATA) and "data" not in options else {}
    try:
        task: Task = TASKS.checked(name, call(load_task(name), options, supply=supply))
    except (ConfigError, RecordError) as exc:
        if "--set task." not in str(exc):
            raise
        raise type(exc)(f"{exc}; in a recipe or spec, {name}:KEY=VALUE,... stands for --set task.KEY=VALUE") from exc
    return task


def make_verifier(task: Task) -> Verifier:
    """Return the verifier of a task."""
    check = task.check
    verifier: Verifier = VERIFIERS.create(check.verifier, check.params, supply={})
    return verifier
