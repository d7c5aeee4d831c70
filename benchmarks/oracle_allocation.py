"""The best possible allocation: by marginal gains over kinds of problems whose curves are known.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707); Snell et al. 2024 (allocation by difficulty). Steps
along the concave hull of every kind's curve of accuracy over tokens are taken in the order of their gain per token; the
last one that does not fit is taken for a fraction of the problems, so the budget is met on average and never exceeded
by plan. For concave curves this is the optimum. The strategy `auto` is measured against it: one kind for all problems
is the best uniform spending, a kind for each difficulty or each problem is an oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.allocation.calibrate import LADDER, DrawPool, is_right
from ttc.choosing.selection import Select
from ttc.errors import ConfigError

ORDERS = 16


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
        raise ConfigError(f"{tokens:g} tokens a problem do not pay the cheapest arms; it takes {tokens - left:.0f}")
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


def reached(kinds: Sequence[Kind], tokens: float) -> float:
    """Return the mean accuracy of the best allocation of `tokens` a problem."""
    found = allocate(kinds, tokens)
    return sum(
        kind.share * ((1 - f.fraction) * f.arm.accuracy + f.fraction * f.more.accuracy)
        for kind in kinds
        for f in [found[kind.name]]
    )


def curve(pools: Sequence[DrawPool], rules: Sequence[Select], *, seed: int) -> tuple[Arm, ...]:
    """Return the mean cost and accuracy of every rule at every rung, over random orders of the pools."""
    ladder = [n for n in LADDER if n <= min(len(pool.draws) for pool in pools)]
    rng = np.random.default_rng(seed)
    spent = np.zeros(len(ladder))
    right = np.zeros((len(ladder), len(rules)))
    for pool in pools:
        for _ in range(ORDERS):
            order = [int(i) for i in rng.permutation(len(pool.draws))]
            for at, n in enumerate(ladder):
                spent[at] += sum(pool.tokens[i] for i in order[:n])
                right[at] += [is_right(pool, order[:n], rule) for rule in rules]
    total = len(pools) * ORDERS
    return tuple(
        Arm(rule, n, float(spent[at]) / total, float(right[at, column]) / total)
        for at, n in enumerate(ladder)
        for column, rule in enumerate(rules)
    )
