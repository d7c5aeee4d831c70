"""`NAME:KEY=VALUE,...` in a recipe: one registered function and its parameters on one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evals.task import Task
from evals.tasks import TASKS, load_task
from train.registries import SHAPING
from train.rollouts.rewards import Part
from ttc.config.registry import VERIFIERS, Registry, bind
from ttc.config.specs import parse_spec
from ttc.core import Verifier
from ttc.errors import ConfigError

__all__ = ["make", "make_task", "make_verifier", "shaping_part"]


def make(registry: Registry, spec: str) -> Any:
    """Return what the function named by `spec` makes; raises ConfigError for an unknown name or parameter."""
    name, given = parse_spec(spec)
    return registry.create(name, given, supply={})


def make_task(spec: str) -> Task:
    """Return the task named by `spec`, with its parameters."""
    name, given = parse_spec(spec)
    factory: Callable[..., Task] = load_task(name)
    task: Task = TASKS.checked(name, factory(**bind(factory, given, supply={})))
    return task


def make_verifier(task: Task) -> Verifier:
    """Return the verifier of a task."""
    check = task.check
    verifier: Verifier = VERIFIERS.create(check.verifier, check.params, supply={})
    return verifier


def shaping_part(spec: str) -> Part:
    """Return a shaping part: `length:weight=0.5,start=20`; the weight is the recipe's, the rest the function's."""
    name, given = parse_spec(spec)
    text = given.pop("weight", None)
    if text is None:
        raise ConfigError(f"shaping {name!r} has no weight: write {name}:weight=0.5")
    try:
        weight = float(str(text))
    except ValueError as exc:
        raise ConfigError(f"shaping {name}: weight must be a number, got {text!r}") from exc
    return Part(name, weight, SHAPING.create(name, given, supply={}))
