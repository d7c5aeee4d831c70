"""A plan of the strategy `auto`: what a calibration saw, as a table of states for each way of drawing, and its file.

A route is one way to spend tokens on a problem: a kind of draw (plain samples, or islands of a tree search, perhaps
opened by the greedy answer) and a ladder of how many of them. At each rung the draws so far put a problem into a state;
the table knows how often an answer given there is right and where the next draws lead. `ttc.allocation.policy` decides
by it. Standard library only: a plan is fitted in `evals.allocation.calibrate` and persisted as JSON.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ttc.choosing.selection import Select
from ttc.durable import replace_text
from ttc.errors import ConfigError

__all__ = ["DrawKind", "Plan", "Route", "State", "load_plan", "plan_of", "save_plan"]


@dataclass(frozen=True, slots=True)
class DrawKind:
    """What one draw is: a plain sample, or an island of a tree search with the parameters `search` of `tree`.

    `width` samples live in a draw at once. With `greedy`, draw 0 is the greedy answer. Without `scored` no scorer is
    asked, and answers are voted on.
    """

    width: int = 1
    scored: bool = False
    greedy: bool = False
    search: Mapping[str, Any] = field(default_factory=dict)

    def longest(self, max_tokens: int) -> int:
        """Tokens that one draw and its scoring take at most."""
        return max_tokens * self.width * (1 + self.scored)


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a state at one rung.

    `visits` is the share of problems that come by when all go on to the top; `tokens` what the next rung takes from
    here (0 at the top); `accuracy` by rule, of stopping here; `leads` the shares of the states of the next rung.
    """

    visits: float
    tokens: float
    accuracy: Mapping[Select, float]
    leads: Mapping[str, float]

    @property
    def select(self) -> Select:
        """The rule that is right most often here; the first of equals."""
        return max(self.accuracy, key=lambda rule: self.accuracy[rule])


@dataclass(frozen=True, slots=True)
class Route:
    """A kind of draw, a ladder of numbers of them, the tokens of its first rung, and the states of each rung.

    `cuts` divide scores into levels; none without a scorer.
    """

    kind: DrawKind
    ladder: tuple[int, ...]
    cuts: tuple[float, ...]
    first: float
    rungs: tuple[Mapping[str, State], ...]

    def known(self, rung: int, name: str) -> str:
        """Return `name`, or the nearest state that the calibration saw at this rung."""
        here = self.rungs[rung]
        return name if name in here else min(here, key=lambda other: (_distance(name, other), other))

    def select(self, rung: int, name: str) -> Select:
        """The rule to answer by in a state."""
        return self.rungs[rung][self.known(rung, name)].select


@dataclass(frozen=True, slots=True)
class Plan:
    """What a calibration found: its routes, and what it cost itself, in tokens (`spent`)."""

    routes: tuple[Route, ...]
    spent: int
    source: Mapping[str, Any]

    @property
    def scored(self) -> bool:
        """Whether some route asks a scorer."""
        return any(route.kind.scored for route in self.routes)

    @property
    def first(self) -> float:
        """Tokens of the first rung of the cheapest route: a problem takes no less."""
        return min(route.first for route in self.routes)


def _distance(one: str, other: str) -> int:
    return sum(abs(int(a) - int(b)) for a, b in zip(one.split("."), other.split("."), strict=True))


def save_plan(plan: Plan, path: pathlib.Path) -> None:
    """Write a plan as JSON."""
    replace_text(path, json.dumps(asdict(plan), indent=1) + "\n")


def plan_of(data: Mapping[str, Any]) -> Plan:
    """Make a plan of its JSON object; what is missing or wrong raises KeyError, TypeError or ValueError."""
    routes = tuple(_route(route) for route in data["routes"])
    if not routes:
        raise ValueError("it has no routes")
    return Plan(routes, int(data["spent"]), data["source"])


def _route(data: Mapping[str, Any]) -> Route:
    return Route(
        kind=DrawKind(**data["kind"]),
        ladder=tuple(data["ladder"]),
        cuts=tuple(data["cuts"]),
        first=float(data["first"]),
        rungs=tuple({name: State(**state) for name, state in rung.items()} for rung in data["rungs"]),
    )


def load_plan(path: str) -> Plan:
    """Read a plan; raises ConfigError naming what is wrong with the file."""
    try:
        return plan_of(json.loads(pathlib.Path(path).expanduser().read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"auto: plan {path!r} cannot be read ({type(exc).__name__}: {exc}); make one with: ttc calibrate RUN"
        ) from exc
