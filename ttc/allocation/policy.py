"""Deciding how to draw and when to stop: the policy that spends a budget best by the table of a calibration.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707), with the marginal gain looked up at every step
rather than once. A problem takes one of the plan's routes (`ttc.allocation.table`), a ladder of numbers of draws. At
each rung its draws put it into a state: the share of the leading answer and its margin; with a scorer, how good the
best one is and whether the votes agree with it.

A price is put on one token. Backward induction (Bellman 1957) then tells from which states it is worth going on, and so
which route is worth most. The price is chosen such that this spends the budget. Where the budget lies between two
prices, a share of the problems follows the richer policy: it is met on average, and a budget between two routes is
spent on the best mixture of them.

A state forgets which rungs lie behind it (a Markov approximation). Left out: leaving a route for another on the way,
and routes that think longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ttc.allocation.table import Plan, Route
from ttc.choosing.selection import choose
from ttc.choosing.voting import Key, tally, vote
from ttc.core import Candidate
from ttc.errors import ConfigError

__all__ = ["Climb", "Mixture", "StoppingPolicy", "follow", "mix", "policy_at", "state_of"]

SHARES, MARGINS = 8, 6
MAX_PRICE, MIN_PRICE, HALVINGS = 1.0, 1e-8, 48
"""Prices of a token, in right answers, between which the one is looked for."""


@dataclass(frozen=True, slots=True)
class Climb:
    """What is best on one route: by rung, the states to go on from and the tokens still to be spent from each."""

    go: tuple[frozenset[str], ...]
    ahead: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class StoppingPolicy:
    """The best policy at one price: the place of the route to take, and what is best on each route."""

    route: int
    climbs: tuple[Climb, ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Two policies of neighbouring prices; a share `fraction` of the problems follows the richer one."""

    lean: StoppingPolicy
    rich: StoppingPolicy
    fraction: float

    def pick(self, u: float) -> StoppingPolicy:
        """The policy of a problem whose dice, in [0, 1), show `u`."""
        return self.rich if u < self.fraction else self.lean


def state_of(candidates: Sequence[Candidate], key: Key, cuts: Sequence[float]) -> str:
    """Name the state that some samples put a problem into: small whole numbers, joined by points."""
    votes = tally(candidates, key)
    first, second = votes[0] if votes else 0.0, votes[1] if len(votes) > 1 else 0.0
    share = round(SHARES * first / max(len(candidates), 1))
    margin = min(int(2 * (first - second) / math.sqrt(first + second)), MARGINS) if first else 0
    if not cuts:
        return f"{share}.{margin}"
    best = choose(candidates, key, "argmax")
    if best is None or best.score is None or best.final is None:
        return "0.0.0"
    weights = tally(candidates, key, lambda candidate: candidate.score)
    leader = vote(candidates, key, lambda candidate: candidate.score)
    agree = leader is not None and key(leader.final or "") == key(best.final)
    level = 1 + sum(best.score >= cut for cut in cuts)
    return f"{level}.{int(4 * weights[0] / max(math.fsum(weights), 1e-12))}.{1 + agree}"


def policy_at(plan: Plan, price: float) -> StoppingPolicy:
    """Return the policy that gains most when a token costs `price` right answers."""
    climbs = [_climb(route, price) for route in plan.routes]
    nets = [net for _, net in climbs]
    return StoppingPolicy(nets.index(max(nets)), tuple(climb for climb, _ in climbs))


def _climb(route: Route, price: float) -> tuple[Climb, float]:
    """What is best on a route, and what it is worth, less its tokens, before the first draw."""
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
    """Return the mixture that spends `tokens` by plan; `spends` tells what a policy would.

    More than the richest policy can use is left over; less than the leanest one takes, it takes all the same.
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
