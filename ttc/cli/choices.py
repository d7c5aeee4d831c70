"""What was named on a command line or in a spec and checked, but not yet loaded: parts of a run, and strategies."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ttc.config.registry import ENGINES, SCORERS, VERIFIERS, bind
from ttc.core import Answer, Engine, Problem, Scorer, Verifier

if TYPE_CHECKING:
    from ttc.session.session import Session

__all__ = ["PartChoice", "StrategyChoice"]


@dataclass(frozen=True, slots=True)
class PartChoice:
    """An engine, scorer or verifier that was named and checked, but not yet loaded."""

    kind: str
    name: str
    model: str | None
    factory: Callable[..., Any]
    params: Mapping[str, Any]

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
        return self.factory(**bind(self.factory, self.params, supply={**supply, **model}))

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

    @property
    def takes_scorer(self) -> bool:
        """Whether the strategy has a `scorer` parameter."""
        return "scorer" in inspect.signature(self.function).parameters

    @property
    def needs_scorer(self) -> bool:
        """Whether the strategy cannot run without a scorer."""
        found = inspect.signature(self.function).parameters.get("scorer")
        return found is not None and found.default is found.empty

    def bind(self, scorer: Scorer | None = None) -> Callable[[Problem, Session], Awaitable[Answer]]:
        """Return the strategy as a function of problem and session."""
        supply = {} if scorer is None else {"scorer": scorer}
        return functools.partial(self.function, **bind(self.function, self.params, supply=supply))
