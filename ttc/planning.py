"""Deciding when to stop sampling: a table of what a calibration saw, and the policy that spends a budget best by it.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707), with the marginal gain looked up at every step
rather than once: a problem climbs a ladder of numbers of samples, and at each rung its samples put it into a state
(the share of the leading answer and its margin; with a scorer, how good the best one is and whether the votes agree
with it). A `Plan` knows of each state how often an answer given there is right, and where the next samples lead. For a
price of one token, backward induction (Bellman 1957) tells which states are worth going on from; the price is the one
at which that spends the budget. Between two prices a share of the problems follows the richer policy, so the budget is
met on average and not exceeded by plan.

A state forgets which rungs lie behind it (a Markov approximation). Standard library only: the plan is fitted in
`evals.calibrate` and persisted as JSON. Left out: rungs that think longer, and mixtures of samples and subtrees.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ttc import answers
from ttc.core import Candidate
from ttc.errors import ConfigError
from ttc.selection import Select, choose
from ttc.voting import tally, vote

__all__ = [
    "Mixture",
    "Plan",
    "Policy",
    "State",
    "follow",
    "load_plan",
    "mix",
    "plan_of",
    "policy_at",
    "save_plan",
    "state_of",
]

SHARES, MARGINS = 8, 6
MAX_PRICE, MIN_PRICE, HALVINGS = 1.0, 1e-8, 48
"""Prices of a token, in right answers, between which the one is looked for."""


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
class Plan:
    """What a calibration found: the ladder, the tokens of its first rung, and the states of each rung.

    The ladder counts draws: plain samples, or, with a `width` above 1, subtrees of that width (DVTS). `cuts` divide
    scores into levels; none without a scorer. `spent` is what the calibration itself cost, in tokens.
    """

    ladder: tuple[int, ...]
    width: int
    cuts: tuple[float, ...]
    first: float
    rungs: tuple[Mapping[str, State], ...]
    spent: int
    source: Mapping[str, Any]

    @property
    def scored(self) -> bool:
        """Whether a scorer is part of it."""
        return bool(self.cuts)

    def known(self, rung: int, name: str) -> str:
        """Return `name`, or the nearest state that the calibration saw at this rung."""
        here = self.rungs[rung]
        return name if name in here else min(here, key=lambda other: (_distance(name, other), other))

    def select(self, rung: int, name: str) -> Select:
        """The rule to answer by in a state."""
        return self.rungs[rung][self.known(rung, name)].select


@dataclass(frozen=True, slots=True)
class Policy:
    """The best policy at one price: by rung, the states to go on from and the tokens still to be spent from each."""

    go: tuple[frozenset[str], ...]
    ahead: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Two policies of neighbouring prices; a share `fraction` of the problems follows the richer one."""

    lean: Policy
    rich: Policy
    fraction: float

    def pick(self, u: float) -> Policy:
        """The policy of a problem whose dice, in [0, 1), show `u`."""
        return self.rich if u < self.fraction else self.lean


def state_of(candidates: Sequence[Candidate], kind: str, cuts: Sequence[float]) -> str:
    """Name the state that some samples put a problem into: small whole numbers, joined by points."""
    votes = tally(candidates, kind)
    first, second = votes[0] if votes else 0.0, votes[1] if len(votes) > 1 else 0.0
    share = round(SHARES * first / max(len(candidates), 1))
    margin = min(int(2 * (first - second) / math.sqrt(first + second)), MARGINS) if first else 0
    if not cuts:
        return f"{share}.{margin}"
    best = choose(candidates, kind, "argmax")
    if best is None or best.score is None or best.final is None:
        return "0.0.0"
    weights = tally(candidates, kind, lambda candidate: candidate.score)
    leader = vote(candidates, kind, lambda candidate: candidate.score)
    agree = leader is not None and answers.key(leader.final or "", kind) == answers.key(best.final, kind)
    level = 1 + sum(best.score >= cut for cut in cuts)
    return f"{level}.{int(4 * weights[0] / max(math.fsum(weights), 1e-12))}.{1 + agree}"


def policy_at(plan: Plan, price: float) -> Policy:
    """Return the policy that gains most when a token costs `price` right answers."""
    go: list[frozenset[str]] = []
    ahead: list[Mapping[str, float]] = []
    value: dict[str, float] = {}
    for states in reversed(plan.rungs):
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
    return Policy(tuple(reversed(go)), tuple(reversed(ahead)))


def mix(plan: Plan, tokens: float, spends: Callable[[Policy], float]) -> Mixture:
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
        ConfigError: not even the first rung fits.
    """
    if tokens < plan.first * 0.999:
        raise ConfigError(
            f"auto: {tokens:g} tokens a problem do not pay for its first samples; it takes {plan.first:.0f}"
        )
    start = plan.rungs[0]
    return mix(
        plan,
        tokens - plan.first,
        lambda policy: math.fsum(state.visits * policy.ahead[0][name] for name, state in start.items()),
    )


def _distance(one: str, other: str) -> int:
    return sum(abs(int(a) - int(b)) for a, b in zip(one.split("."), other.split("."), strict=True))


def save_plan(plan: Plan, path: pathlib.Path) -> None:
    """Write a plan as JSON."""
    path.write_text(json.dumps(asdict(plan), indent=1) + "\n", encoding="utf-8")


def plan_of(data: Mapping[str, Any]) -> Plan:
    """Make a plan of its JSON object; what is missing or wrong raises KeyError, TypeError or ValueError."""
    rungs = tuple({name: State(**state) for name, state in rung.items()} for rung in data["rungs"])
    first, spent = float(data["first"]), int(data["spent"])
    ladder, width = tuple(data["ladder"]), int(data["width"])
    return Plan(ladder, width, tuple(data["cuts"]), first, rungs, spent, data["source"])


def load_plan(path: str) -> Plan:
    """Read a plan; raises ConfigError naming what is wrong with the file."""
    try:
        return plan_of(json.loads(pathlib.Path(path).expanduser().read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"auto: plan {path!r} cannot be read ({type(exc).__name__}: {exc}); make one with: ttc calibrate RUN"
        ) from exc
