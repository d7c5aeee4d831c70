"""Choices: parts of a run and strategies that were named and checked, but not yet loaded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ttc.concurrent import stopped_at_once
from ttc.config.recipes import dump, label_of, parse_spec, section, split_model
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS, Registry
from ttc.config.signatures import bind, call, strategy_options
from ttc.core import Answer, Engine, Problem, Scorer, Strategy, Verifier
from ttc.errors import ConfigError, missing_extra

DEFAULT_ENGINE, DEFAULT_SCORER = "embedded", "prm"
"""What runs the packaged model, and scores its steps."""
ENDPOINT = "openai"
"""The engine of a --base-url."""


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
        option, is_option, _ = (inline or "").partition("=")
        if is_option and option in inspect.signature(factory).parameters:
            what = registry.kind
            raise ConfigError(f"{what} {name}: what follows the colon is a model; for an option: --set {what}.{inline}")
        if model is not None and "model" not in inspect.signature(factory).parameters:
            raise ConfigError(f"{registry.kind} {name} takes no model, got {model!r}: ttc list {registry.kind}s")
        supply = {"engine": None, **({} if model is None else {"model": model})}
        arguments = bind(factory, params, supply=supply, label=f"{registry.kind} {name}")
        return cls(registry.kind, name, model, factory, {k: v for k, v in arguments.items() if k not in supply})

    def create_engine(self) -> Engine:
        """Load the engine."""
        return cast("Engine", ENGINES.checked(self.name, self._create({})))

    def create_scorer(self, engine: Engine | None) -> Scorer:
        """Load the scorer; `engine` goes to scorers that ask for it."""
        return cast("Scorer", SCORERS.checked(self.name, self._create({"engine": engine})))

    def create_verifier(self) -> Verifier:
        """Start the verifier."""
        return cast("Verifier", VERIFIERS.checked(self.name, self._create({})))

    def _create(self, supply: Mapping[str, Any]) -> Any:
        model = {} if self.model is None else {"model": self.model}
        try:
            with stopped_at_once():
                return call(self.factory, self.params, supply={**supply, **model})
        except ImportError as exc:
            raise missing_extra(exc) from exc

    @property
    def label(self) -> str:
        """`name`, or `name:model`."""
        return self.name if self.model is None else f"{self.name}:{self.model}"


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """A strategy with checked parameters; `label` distinguishes it from the same strategy with others.

    `inner` are its options that are strategies themselves: `best_of_n:n=4,of=refine,of.rounds=1`.
    """

    name: str
    label: str
    function: Callable[..., Awaitable[Answer]]
    params: Mapping[str, Any]
    inner: Mapping[str, StrategyChoice] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, params: Mapping[str, object], label: str | None = None) -> StrategyChoice:
        """Choose the strategy called `name` and check its parameters; raises ConfigError for what does not fit."""
        function = STRATEGIES.load(name)
        plain, inner = _parted(name, strategy_options(function), params)
        arguments = bind(function, plain, supply={"scorer": None, **inner})
        own = {key: value for key, value in arguments.items() if key != "scorer" and key not in inner}
        return cls(name, label or label_of(name, params), function, own, inner)

    @classmethod
    def of_function(cls, strategy: Strategy, params: Mapping[str, object]) -> StrategyChoice:
        """Choose a strategy given as a Python function; raises ConfigError if its form or a parameter does not fit.

        Bound callables (a partial, a callable object) take no further parameters.
        """
        plain: Any = strategy
        while isinstance(plain, functools.partial):
            plain = plain.func
        name = str(getattr(plain, "__name__", type(plain).__name__))
        STRATEGIES.shape.check_function(f"strategy {name}", strategy)
        if not inspect.isfunction(strategy):
            if params:
                raise ConfigError(f"{', '.join(params)}: strategy {name} is bound already: bind these with it")
            return cls(name, name, _as_function(strategy), {})
        arguments = bind(strategy, params, supply={"scorer": None})
        own = {key: value for key, value in arguments.items() if key != "scorer"}
        return cls(name, label_of(name, params), strategy, own)

    @property
    def functions(self) -> list[Callable[..., Awaitable[Answer]]]:
        """The strategy's function and those of the strategies in it."""
        return [self.function, *(each for choice in self.inner.values() for each in choice.functions)]

    @property
    def takes_scorer(self) -> bool:
        """Whether the strategy, or one in it, has a `scorer` parameter."""
        return any("scorer" in inspect.signature(function).parameters for function in self.functions)

    @property
    def needs_scorer(self) -> bool:
        """Whether the strategy, or one in it, cannot run without a scorer."""
        parameters = [inspect.signature(function).parameters.get("scorer") for function in self.functions]
        return any(each is not None and each.default is each.empty for each in parameters)

    def bind(self, scorer: Scorer | None = None) -> Callable[..., Awaitable[Answer]]:
        """Return the strategy as a function of problem and session; inner strategies get the same scorer."""
        supply: dict[str, object] = {name: choice.bind(scorer) for name, choice in self.inner.items()}
        supply |= {} if scorer is None else {"scorer": scorer}
        return functools.partial(self.function, **bind(self.function, self.params, supply=supply))

    def all_params(self) -> dict[str, Any]:
        """The parameters with the signature's defaults filled in, as plain data; those of inner strategies dotted."""
        keywords = [p for p in inspect.signature(self.function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        defaults = {p.name: p.default for p in keywords if p.default is not p.empty and p.name != "scorer"}
        own = {name: dump(value) for name, value in {**defaults, **self.params}.items()}
        for name, choice in self.inner.items():
            own |= {name: choice.name} | {f"{name}.{key}": value for key, value in choice.all_params().items()}
        return own


def _as_function(strategy: Strategy) -> Callable[..., Awaitable[Answer]]:
    """A callable as a plain function without parameters of its own."""

    async def bound(problem: Problem, session: Any) -> Answer:
        return await strategy(problem, session)

    return bound


def _parted(
    owner: str, options: Sequence[str], params: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, StrategyChoice]]:
    """Separate the settings of options that are strategies (`of=NAME`, `of.KEY=VALUE`, a table) from all others."""
    by_option = {option: {k: v for k, v in params.items() if k.partition(".")[0] == option} for option in options}
    choices = {option: _chosen(f"{owner}.{option}", option, by_option[option]) for option in options}
    inner = {option: choice for option, choice in choices.items() if choice is not None}
    return {k: v for k, v in params.items() if k.partition(".")[0] not in inner}, inner


def _chosen(where: str, option: str, params: Mapping[str, object]) -> StrategyChoice | None:
    """The strategy that an option names; None if it names none or already holds a function."""
    value, own = params.get(option), section(params, option)
    if isinstance(value, Mapping):
        own = {**value, **own}
        value = own.pop("strategy", None)
    if isinstance(value, str) and value.lower() != "none":
        name, inline = parse_spec(value)
        try:
            return StrategyChoice.of(name, {**inline, **own})
        except ConfigError as exc:
            raise ConfigError(f"{where}: {exc}") from exc
    if own:
        raise ConfigError(f"{where}: {', '.join(own)} without a strategy: name it, as in {option}=refine")
    return None
