"""A plan of the strategy `auto`: the results of a calibration, their file, and the best policy for a budget.

A route is one way to spend tokens on a problem: a kind of draw (plain samples, or islands of a tree search, possibly
after a greedy answer) and a ladder of numbers of draws. At each rung the draws so far put a problem into a state; the
table has how often an answer given there is right, and to which states the next draws lead. A plan is fitted in
`evals.allocation.calibrate` and persisted as JSON.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707), with the marginal gain looked up at every step
rather than once. A state is the share of the leading answer and its margin; with a scorer, how good the best one is and
whether the votes agree with it.

A token has a price. Backward induction (Bellman 1957) then gives the states from which it is worth continuing, and so
which route is worth most. The price is chosen such that this spends the budget. Where the budget lies between two
prices, a share of the problems follows the richer policy, so that the budget is met on average and the best mixture of
two routes is used. A state does not remember the earlier rungs (a Markov approximation). Left out: changing routes on
the way, and routes that think longer.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ttc.answers import same_class
from ttc.choosing.selection import Key, Select, by_score, choose, tally, vote
from ttc.core import Candidate, Problem
from ttc.durable import replace_text
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DrawKind:
    """What one draw is: a plain sample, or an island of a tree search with the parameters `search` of `tree`.

    `width` samples live in a draw at once. With `greedy`, draw 0 is the greedy answer. Without `scored`, no scorer is
    used and answers are voted on.
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

    `visits` is the share of problems that pass through it when all continue to the top, `tokens` the cost of the next
    rung (0 at the top), `accuracy` that of stopping here, by rule, `leads` the shares of the next rung's states.
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
    """The result of a calibration: its routes, and its own cost in tokens (`spent`)."""

    routes: tuple[Route, ...]
    spent: int
    source: Mapping[str, Any]

    @property
    def scored(self) -> bool:
        """Whether some route uses a scorer."""
        return any(route.kind.scored for route in self.routes)

    @property
    def first(self) -> float:
        """Tokens of the first rung of the cheapest route, the least that a problem takes."""
        return min(route.first for route in self.routes)


def _distance(one: str, other: str) -> int:
    return sum(abs(int(a) - int(b)) for a, b in zip(one.split("."), other.split("."), strict=True))


def save_plan(plan: Plan, path: pathlib.Path) -> None:
    """Write a plan as JSON."""
    replace_text(path, json.dumps(asdict(plan), indent=1) + "\n")


def plan_of(data: Mapping[str, Any]) -> Plan:
    """Make a plan from its JSON object; a missing or wrong field raises KeyError, TypeError or ValueError."""
    routes = tuple(_route(route) for route in data["routes"])
    if not routes:
        raise ValueError("it has no routes")
    return Plan(routes, int(data["spent"]), dict(data["source"]))


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
            f"auto: plan {path!r} cannot be read ({type(exc).__name__}: {exc}); make one with: "
            f"ttc calibrate RUN --out {path}"
        ) from exc


def weights_in(contents: Mapping[str, str]) -> set[str]:
    """The digests of the sampling model's weights, among the named digests of a run (`ttc.identity.digests`)."""
    return {digest for name, digest in contents.items() if name.startswith("weights of model ")}


def questions_of(problems: Iterable[Problem]) -> set[str]:
    """Digests of questions, by which a plan recognises the problems that it was calibrated on."""
    texts = (json.dumps([[message.role, message.content] for message in problem.messages]) for problem in problems)
    return {hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts}


SHARES, MARGINS = 8, 6
MAX_PRICE, MIN_PRICE, HALVINGS = 1.0, 1e-8, 48
"""Prices of a token, in right answers, between which the one is looked for."""


@dataclass(frozen=True, slots=True)
class Climb:
    """The best policy on one route: by rung, the states to continue from and the tokens still to be spent from each."""

    go: tuple[frozenset[str], ...]
    ahead: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class StoppingPolicy:
    """The best policy at one price: the index of the route to take, and the best policy on each route."""

    route: int
    climbs: tuple[Climb, ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Two policies of neighbouring prices; a share `fraction` of the problems follows the richer one."""

    lean: StoppingPolicy
    rich: StoppingPolicy
    fraction: float

    def pick(self, u: float) -> StoppingPolicy:
        """The policy of a problem whose random number in [0, 1) is `u`."""
        return self.rich if u < self.fraction else self.lean


def state_of(candidates: Sequence[Candidate], key: Key, cuts: Sequence[float]) -> str:
    """Name the state that some samples put a problem into: small whole numbers, joined by dots."""
    votes = tally(candidates, key)
    first, second = votes[0] if votes else 0.0, votes[1] if len(votes) > 1 else 0.0
    share = round(SHARES * first / max(len(candidates), 1))
    margin = min(int(2 * (first - second) / math.sqrt(first + second)), MARGINS) if first else 0
    if not cuts:
        return f"{share}.{margin}"
    best = choose(candidates, key, "argmax")
    if best is None or best.score is None or best.final is None:
        return "0.0.0"
    weights = tally(candidates, key, by_score)
    leader = vote(candidates, key, by_score)
    agree = leader is not None and same_class(key(leader.final or ""), key(best.final))
    level = 1 + sum(best.score >= cut for cut in cuts)
    lead = weights[0] / max(math.fsum(weights), 1e-12) if weights else 0.0
    return f"{level}.{int(4 * lead)}.{1 + agree}"


def policy_at(plan: Plan, price: float) -> StoppingPolicy:
    """Return the policy that gains most when a token costs `price` right answers."""
    climbs = [_climb(route, price) for route in plan.routes]
    nets = [net for _, net in climbs]
    return StoppingPolicy(nets.index(max(nets)), tuple(climb for climb, _ in climbs))


def _climb(route: Route, price: float) -> tuple[Climb, float]:
    """The best policy on a route, and its worth before the first draw, less the price of its tokens."""
    go: list[frozenset[str]] = []
    ahead: list[Mapping[str, float]] = []
    value: dict[str, float] = {}
    for states in reversed(route.rungs):
        stops = {name: max(state.accuracy.values()) for name, state in states.items()}
        goes = {
            name: math.fsum(share * value[other] for other, share in state.leads.items()) - price * state.tokens
            for name, state in states.items()
            if state.leads
        }
        on = frozenset(name for name in goes if goes[name] > stops[name] + 1e-12)
        costs = {
            name: state.tokens + math.fsum(share * ahead[-1][other] for other, share in state.leads.items())
            if name in on
            else 0.0
            for name, state in states.items()
        }
        value = {name: goes[name] if name in on else stops[name] for name in states}
        go.append(on)
        ahead.append(costs)
    start = math.fsum(state.visits * value[name] for name, state in route.rungs[0].items())
    return Climb(tuple(reversed(go)), tuple(reversed(ahead))), start - price * route.first


def mix(plan: Plan, tokens: float, spends: Callable[[StoppingPolicy], float]) -> Mixture:
    """Return the mixture that is expected to spend `tokens`; `spends` gives a policy's expectation.

    Tokens beyond the richest policy are left over; the leanest one is used even if it takes more than `tokens`.
    """
    low, high = math.log(MIN_PRICE), math.log(MAX_PRICE)
    rich, lean = policy_at(plan, MIN_PRICE), policy_at(plan, MAX_PRICE)
    if spends(rich) <= tokens:
        return Mixture(rich, rich, 1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        here = policy_at(plan, math.exp(middle))
        if spends(here) <= tokens:
            lean, high = here, middle
        else:
            rich, low = here, middle
    least, most = spends(lean), spends(rich)
    return Mixture(lean, rich, min(max((tokens - least) / (most - least), 0.0), 1.0) if most > least else 0.0)


def follow(plan: Plan, tokens: float) -> Mixture:
    """Return the mixture for problems like the calibration's, at `tokens` each on average.

    Raises:
        ConfigError: not even the cheapest first rung fits.
    """
    if tokens < plan.first * 0.999:
        raise ConfigError(
            f"auto: {tokens:g} tokens a problem do not pay for its first samples; it takes {plan.first:.0f}"
        )
    return mix(plan, tokens, lambda policy: _spends(plan.routes[policy.route], policy.climbs[policy.route]))


def _spends(route: Route, climb: Climb) -> float:
    """Mean tokens of a problem that takes a route from its start."""
    return route.first + math.fsum(state.visits * climb.ahead[0][name] for name, state in route.rungs[0].items())
