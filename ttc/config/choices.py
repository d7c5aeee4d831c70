"""What was named on a command line or in a spec and checked, but not yet loaded: parts of a run, and strategies."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ttc.config.recipes import dump, label_of, split_model
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS, Registry
from ttc.config.signatures import bind, call
from ttc.core import Answer, Engine, Scorer, Verifier
from ttc.errors import ConfigError

DEFAULT_ENGINE, DEFAULT_SCORER = "embedded", "prm"
"""What runs the packaged model, and scores its steps."""


@dataclass(frozen=True, slots=True)
class PartChoice:
    """An engine, scorer or verifier that was named and checked, but not yet loaded."""

    kind: str
    name: str
    model: str | None
    factory: Callable[..., Any]
    params: Mapping[str, Any]

    @classmethod
    def of(cls, registry: Registry, spec: str, params: Mapping[str, object], model: str | None = None) -> PartChoice:
        """Choose the part called `spec`, NAME or NAME:MODEL, and check its parameters.

        Raises:
            ConfigError: an unknown name or parameter, a value that does not fit, or a model that it does not take.
        """
        name, inline = split_model(spec)
        if model is not None and inline is not None:
            raise ConfigError(f"the model is given twice: {spec!r} and {model!r}")
        model = inline if model is None else model
        factory = registry.load(name)
        if model is not None and "model" not in inspect.signature(factory).parameters:
            raise ConfigError(f"{registry.kind} {name} takes no model, got {model!r}")
        supply = {"engine": None, **({} if model is None else {"model": model})}
        arguments = bind(factory, params, supply=supply)
        return cls(registry.kind, name, model, factory, {k: v for k, v in arguments.items() if k not in supply})

    def create_engine(self) -> Engine:
        """Load the engine."""
        return cast("Engine", ENGINES.checked(self.name, self._create({})))

    def create_scorer(self, engine: Engine) -> Scorer:
        """Load the scorer; `engine` goes to scorers that ask for it."""
        return cast("Scorer", SCORERS.checked(self.name, self._create({"engine": engine})))

    def create_verifier(self) -> Verifier:
        """Start the verifier."""
        return cast("Verifier", VERIFIERS.checked(self.name, self._create({})))

    def _create(self, supply: Mapping[str, Any]) -> Any:
        model = {} if self.model is None else {"model": self.model}
        return call(self.factory, self.params, supply={**supply, **model})

    @property
    def label(self) -> str:
        """`name`, or `name:model`."""
        return self.name if self.model is None else f"{self.name}:{self.model}"


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """A strategy with its parameters checked; `label` tells it from the same strategy with others."""

    name: str
    label: str
    function: Callable[..., Awaitable[Answer]]
    params: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, params: Mapping[str, object], label: str | None = None) -> StrategyChoice:
        """Choose the strategy called `name` and check its parameters; raises ConfigError for what does not fit."""
        function = STRATEGIES.load(name)
        arguments = bind(function, params, supply={"scorer": None})
        own = {key: value for key, value in arguments.items() if key != "scorer"}
        return cls(name, label or label_of(name, params), function, own)

    @property
    def takes_scorer(self) -> bool:
        """Whether the strategy has a `scorer` parameter."""
        return "scorer" in inspect.signature(self.function).parameters

    @property
    def needs_scorer(self) -> bool:
        """Whether the strategy cannot run without a scorer."""
        parameter = inspect.signature(self.function).parameters.get("scorer")
        return parameter is not None and parameter.default is parameter.empty

    def bind(self, scorer: Scorer | None = None) -> Callable[..., Awaitable[Answer]]:
        """Return the strategy as a function of problem and session."""
        supply = {} if scorer is None else {"scorer": scorer}
        return functools.partial(self.function, **bind(self.function, self.params, supply=supply))

    def all_params(self) -> dict[str, Any]:
        """The parameters with the defaults of the strategy's signature filled in, as plain data."""
        keywords = [p for p in inspect.signature(self.function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        defaults = {p.name: p.default for p in keywords if p.default is not p.empty and p.name != "scorer"}
        return {name: dump(value) for name, value in {**defaults, **self.params}.items()}
