"""Spending a budget by marginal gain: from curves of accuracy for cost to what each kind of problem gets.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707); Snell et al. 2024 (allocation by difficulty). A
curve is known for each kind (a `Plan` holds them, `ttc calibrate` fits them). Steps along the concave hull of every
curve are bought in the order of their gain per token; the last one that does not fit is bought for a share of the
problems, so the budget is met on average and never exceeded by plan. For concave curves this is the optimum.

A kind is what a few pilot samples tell: how many of them agree, and, where a scorer is used, how it likes them.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ttc.core import Candidate
from ttc.errors import ConfigError
from ttc.selection import Select
from ttc.voting import tally

__all__ = ["Arm", "Kind", "Plan", "Share", "allocate", "hull", "kind_of", "load_plan", "save_plan", "share_of"]


@dataclass(frozen=True, slots=True)
class Arm:
    """What can be bought: `n` samples in all and a rule of selection; what it costs and gives on average."""

    select: Select
    n: int
    tokens: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its share of all, and its arms."""

    name: str
    share: float
    arms: tuple[Arm, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a calibration found. `cuts` divide the pilot's mean score into levels; none without a scorer.

    `spent` is what the calibration itself cost, in tokens.
    """

    pilot: int
    cuts: tuple[float, ...]
    kinds: tuple[Kind, ...]
    spent: int
    source: Mapping[str, Any]

    @property
    def scored(self) -> bool:
        """Whether a scorer is part of it."""
        return bool(self.cuts)


@dataclass(frozen=True, slots=True)
class Share:
    """What a kind gets: `arm`, or `more` for a share `fraction` of its problems."""

    arm: Arm
    more: Arm
    fraction: float


def hull(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms on the upper concave hull of accuracy over tokens, cheapest first; no arm that gains nothing."""
    best: list[Arm] = []
    for arm in sorted(arms, key=lambda arm: (arm.tokens, -arm.accuracy, arm.n)):
        if best and arm.accuracy <= best[-1].accuracy:
            continue
        while len(best) > 1 and _slope(best[-2], best[-1]) <= _slope(best[-1], arm):
            best.pop()
        best.append(arm)
    return best


def allocate(kinds: Sequence[Kind], tokens: float) -> dict[str, Share]:
    """Share out `tokens` a problem, on average, among the kinds.

    Raises:
        ConfigError: not even the cheapest arm of every kind fits.
    """
    hulls = {kind.name: hull(kind.arms) for kind in kinds}
    shares = {kind.name: kind.share for kind in kinds}
    left = tokens - sum(shares[name] * arms[0].tokens for name, arms in hulls.items())
    if left < -1e-9:
        raise ConfigError(f"auto: {tokens:g} tokens a problem do not pay for its pilot; it takes {tokens - left:.0f}")
    found = {name: Share(arms[0], arms[0], 0.0) for name, arms in hulls.items()}
    steps = [(name, i) for name, arms in hulls.items() for i in range(1, len(arms))]
    steps.sort(key=lambda step: (-_slope(hulls[step[0]][step[1] - 1], hulls[step[0]][step[1]]), step))
    for name, i in steps:
        before, after = hulls[name][i - 1], hulls[name][i]
        price = shares[name] * (after.tokens - before.tokens)
        if price <= left:
            found[name], left = Share(after, after, 0.0), left - price
            continue
        found[name] = Share(before, after, max(left, 0.0) / price)
        break
    return found


def _slope(before: Arm, after: Arm) -> float:
    cost = after.tokens - before.tokens
    return (after.accuracy - before.accuracy) / cost if cost > 0 else float("inf")


def kind_of(pilot: Sequence[Candidate], kind: str, cuts: Sequence[float]) -> str:
    """Name the kind of a problem by its pilot samples: votes of the leading answer, and level of the mean score."""
    votes = tally(pilot, kind)
    leading = round(votes[0]) if votes else 0
    if not cuts:
        return f"{leading} agree"
    scores = [candidate.score for candidate in pilot if candidate.score is not None]
    mean = sum(scores) / len(scores) if scores else 0.0
    return f"{leading} agree, score level {sum(mean >= cut for cut in cuts)}"


def share_of(shares: Mapping[str, Share], name: str) -> Share:
    """Return what a kind gets; one that the calibration never saw gets that of the kind beside it in order."""
    ordered = sorted(shares)
    at = min(sum(known < name for known in ordered), len(ordered) - 1)
    return shares.get(name) or shares[ordered[at]]


def save_plan(plan: Plan, path: pathlib.Path) -> None:
    """Write a plan as JSON."""
    path.write_text(json.dumps(asdict(plan), indent=1) + "\n", encoding="utf-8")


def load_plan(path: str) -> Plan:
    """Read a plan; raises ConfigError naming what is wrong with the file."""
    try:
        data = json.loads(pathlib.Path(path).expanduser().read_text(encoding="utf-8"))
        kinds = tuple(
            Kind(row["name"], float(row["share"]), tuple(Arm(**arm) for arm in row["arms"])) for row in data["kinds"]
        )
        return Plan(int(data["pilot"]), tuple(data["cuts"]), kinds, int(data["spent"]), data["source"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"auto: plan {path!r} cannot be read ({type(exc).__name__}: {exc}); make one with: ttc calibrate RUN"
        ) from exc
