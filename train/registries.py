"""What the training package can be extended with: one file, one function of its name.

    train/advantages/NAME.py     from the rewards of a batch to a weight per token
    train/losses/NAME.py         the policy-gradient term per token
    train/preferences/NAME.py    a loss over pairs or labelled completions
    train/shaping/NAME.py        one more part of the reward
    train/stages/NAME.py         one kind of step of a recipe
    train/environments/NAME.py   a task to be done with tools, and what it is rewarded for

A recipe names one with its parameters on one line, `NAME:KEY=VALUE,...`; `make` reads it.

Fields that several kinds of stage share are written once, as a frozen dataclass that a stage takes as a parameter:

    def sft(*, data: str | None = None, course: FitFields) -> Stage: ...

    kind = "sft"                 kind = "sft"
    data = "rows.jsonl"    or    data = "rows.jsonl"
    steps = 100                  course = {steps = 100}

The signature of the stage and the fields of the dataclass are the schema. A field is named by itself and goes to the
one dataclass that has it; a table called after the parameter says the same. Words for help are in the section `Args:`
of the class. A kind that wants another default says so in a subclass. Left out: shared fields with default factories.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from evals.task import Task
from evals.tasks import TASKS, load_task
from ttc.config.plugins import PluginShape
from ttc.config.recipes import parse_spec
from ttc.config.registry import VERIFIERS, Registry, bind
from ttc.config.signatures import Description, Parameter, describe
from ttc.config.values import nearest, parse, type_text
from ttc.core import Verifier
from ttc.errors import ConfigError

__all__ = [
    "ADVANTAGES",
    "ENVIRONMENTS",
    "LOSSES",
    "PREFERENCES",
    "SHAPING",
    "STAGES",
    "StageRegistry",
    "make",
    "make_task",
    "make_verifier",
]


class StageRegistry(Registry):
    """Kinds of stage; see the module."""

    __slots__ = ()

    def flat(self, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return `params` of the kind `name` with the tables of shared fields opened: every field by its own name.

        Raises:
            ConfigError: a table of something else, an unknown field in it, or a field given twice.
        """
        factory = self.load(name)
        opened: dict[str, Any] = {}
        for key, value in params.items():
            kind = _shared(factory).get(key.replace("-", "_"))
            if kind is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{name}: {key} is a table of fields ({', '.join(_fields(kind))}), got {value!r}")
            for field, item in {key: value}.items() if kind is None else value.items():
                if kind is not None and field not in _fields(kind):
                    raise ConfigError(f"{name}: {key} has no field {field!r}{nearest(field, list(_fields(kind)))}")
                if field in opened:
                    raise ConfigError(f"{name}: {field} is given twice")
                opened[field] = item
        return opened

    def check_fields(self, name: str, params: Mapping[str, Any]) -> None:
        """Raise ConfigError for a field that the kind `name` does not have, or a value that does not fit."""
        factory = self.load(name)
        hints = {field: item for kind in _shared(factory).values() for field, item in _fields(kind).items()}
        hints |= {field: item for field, item in _hints(factory).items() if field not in _shared(factory)}
        label, parameters = factory.__name__, inspect.signature(factory).parameters.values()
        is_open = any(item.kind is item.VAR_KEYWORD for item in parameters)
        for key, value in self.flat(name, params).items():
            field = key.replace("-", "_")
            if field not in hints and is_open:
                continue
            if field not in hints:
                hint = nearest(field, list(hints))
                raise ConfigError(f"{label} has no parameter {key!r}{hint} (it takes: {', '.join(hints)})")
            parse(f"{label}: {field}", value, hints[field])

    def create(self, name: str, params: Mapping[str, Any], *, supply: Mapping[str, Any]) -> Any:
        """Return the stage of these fields, flat or in tables; `supply` holds fields that are not read from text.

        Raises:
            ConfigError: as `Registry.create` does, the fields of the dataclasses included.
        """
        factory = self.load(name)
        shared, fields = _shared(factory), self.flat(name, params)
        self.check_fields(name, fields)
        values: dict[str, Any] = {}
        for group, kind in shared.items():
            values[group] = _made(factory.__name__, kind, fields, supply)
        shared_names = {field for kind in shared.values() for field in _fields(kind)}
        own = {key: value for key, value in fields.items() if key.replace("-", "_") not in shared_names}
        rest = {key: value for key, value in supply.items() if key not in shared_names}
        return super().create(name, {**own, **values}, supply=rest)

    def describe(self, name: str) -> Description:
        """Return what the kind `name` says of itself, every shared field like one of its own."""
        factory, own = self.load(name), super().describe(name)
        parameters: list[Parameter] = []
        for parameter in own.parameters:
            kind = _shared(factory).get(parameter.name)
            parameters += [parameter] if kind is None else _described(kind)
        return dataclasses.replace(own, parameters=tuple(parameters))


def _shared(factory: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of `factory` that are dataclasses which it must be given, by name."""
    parameters = inspect.signature(factory).parameters.values()
    named = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY and item.default is item.empty]
    hints = _hints(factory)
    return {name: hints[name] for name in named if dataclasses.is_dataclass(hints.get(name))}


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The types of a stage's own parameters."""
    parameters = inspect.signature(factory).parameters.values()
    names = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
    try:
        hints = typing.get_type_hints(factory)
    except NameError:  # one that exists for type checkers only: such a stage has no shared fields
        hints = {}
    return {name: hints.get(name, Any) for name in names}


def _fields(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _made(label: str, kind: Any, fields: Mapping[str, Any], supply: Mapping[str, Any]) -> Any:
    """The dataclass of those `fields` and of `supply` that it has."""
    hints = _fields(kind)
    plain = {key.replace("-", "_"): value for key, value in fields.items()}
    values = {name: parse(f"{label}: {name}", plain[name], hint) for name, hint in hints.items() if name in plain}
    values |= {name: value for name, value in supply.items() if name in hints}
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in values:
            raise ConfigError(f"{label} needs {field.name!r} ({type_text(hints[field.name])}), which was not given")
    return kind(**values)


def _described(kind: Any) -> list[Parameter]:
    """The fields of a dataclass as parameters, with the words of the nearest class that has some."""
    classes: list[Any] = [base for base in reversed(kind.__mro__) if dataclasses.is_dataclass(base)]
    docs = {item.name: item.doc for base in classes for item in describe("", "", base).parameters if item.doc}
    hints = _fields(kind)
    return [
        Parameter(
            name=field.name,
            type=type_text(hints[field.name]),
            required=field.default is dataclasses.MISSING,
            default=None if field.default is dataclasses.MISSING else field.default,
            doc=docs.get(field.name, ""),
        )
        for field in dataclasses.fields(kind)
    ]


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
STAGES = StageRegistry(
    "stage", "train.stages", "ttc.stages", PluginShape(("train.base.stage:Stage",), supplied=("health",))
)


def make(registry: Registry, spec: str) -> Any:
    """Return what the function named by `spec` makes; raises ConfigError for an unknown name or parameter."""
    name, options = parse_spec(spec)
    return registry.create(name, options, supply={})


def make_task(spec: str) -> Task:
    """Return the task named by `spec`, with its parameters."""
    name, options = parse_spec(spec)
    factory: Callable[..., Task] = load_task(name)
    task: Task = TASKS.checked(name, factory(**bind(factory, options, supply={})))
    return task


def make_verifier(task: Task) -> Verifier:
    """Return the verifier of a task."""
    check = task.check
    verifier: Verifier = VERIFIERS.create(check.verifier, check.params, supply={})
    return verifier
