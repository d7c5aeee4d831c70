"""Calibration of the strategy `auto`: from a recorded pool of samples to a table of states (`ttc.planning`).

Each problem's pool is put in many random orders; the first samples of an order are what a run would have drawn by a
rung of the ladder, so the table holds exactly for the code that will run, without a model. States that few problems
reached lean on the states of their name at all rungs (`PRIOR` problems of them). What a plan is worth is cross-fitted:
each half of the problems is spent by the plan of the other half. `by_consensus` makes pools whose answers are held
against their own consensus in place of a key: that is how a run without a calibration learns from itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evals.sampled import CLASSES, Sampled, named, plain, read_pools
from ttc.errors import ConfigError
from ttc.planning import Plan, State, follow, state_of
from ttc.selection import Select, choose
from ttc.voting import vote

__all__ = [
    "CLASSES",
    "Sampled",
    "by_consensus",
    "fit",
    "halves",
    "is_right",
    "named",
    "plain",
    "read_pools",
    "spend",
    "worth",
]

ORDERS = 8
PRIOR = 2.0
LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
"""Shares of all samples that score less than each cut."""
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
RULES: tuple[Select, ...] = ("majority",)
SCORED_RULES: tuple[Select, ...] = ("weighted", "argmax", "majority")


def by_consensus(pools: Sequence[Sampled]) -> list[Sampled]:
    """Return the pools with the answer that all their samples vote for (by score, where scored) taken as right."""
    found = []
    for pool in pools:
        scored = any(c.score is not None for c in pool.candidates)
        leader = vote(pool.candidates, CLASSES, lambda c: c.score) if scored else vote(pool.candidates, CLASSES)
        final = None if leader is None else leader.final
        found.append(replace(pool, right=tuple(c.final is not None and c.final == final for c in pool.candidates)))
    return found


@dataclass(slots=True)
class _Seen:
    """What the orders that came by a state showed."""

    count: int = 0
    tokens: float = 0.0
    right: dict[Select, float] = field(default_factory=lambda: defaultdict(float))
    leads: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def accuracy(self, rule: Select, parent: _Seen | None, prior: float) -> float:
        """The share that was right, leaning on the parent's."""
        count = self.count / ORDERS
        own = self.right[rule] / ORDERS
        return own / count if parent is None else (own + prior * parent.right[rule] / parent.count) / (count + prior)


def fit(
    pools: Sequence[Sampled],
    *,
    seed: int,
    source: Mapping[str, object],
    pilot: int = 1,
    width: int = 1,
    prior: float = PRIOR,
) -> Plan:
    """Return the plan that the pools give, of draws of that width; every problem gets at least `pilot` of them.

    Raises:
        ConfigError: a pool is smaller than the pilot.
    """
    size = min(len(pool.draws) for pool in pools)
    if not 1 <= pilot <= size:
        raise ConfigError(f"pilot must be between 1 and the {size} draws that every problem has, got {pilot}")
    scored = all(c.score is not None for pool in pools for c in pool.candidates if c.final is not None)
    cuts = _cuts(pools) if scored else ()
    ladder = tuple(sorted({pilot, *(n for n in LADDER if pilot < n <= size)}))
    rules = SCORED_RULES if scored else RULES
    rng = np.random.default_rng(seed)
    rungs: list[dict[str, _Seen]] = [defaultdict(_Seen) for _ in ladder]
    first = 0.0
    for pool in pools:
        for _ in range(ORDERS):
            order = [int(i) for i in rng.permutation(len(pool.draws))]
            first += sum(pool.tokens[i] for i in order[: ladder[0]])
            _walk(pool, order, ladder, cuts, rules, rungs)
    total = len(pools) * ORDERS
    states = tuple(_states(rung, _parents(rungs, rules), rules, total, prior) for rung in rungs)
    spent = round(sum(sum(pool.tokens) for pool in pools))
    return Plan(ladder, width, cuts, first / total, states, spent, dict(source))


def _walk(
    pool: Sampled,
    order: Sequence[int],
    ladder: Sequence[int],
    cuts: Sequence[float],
    rules: Sequence[Select],
    rungs: Sequence[dict[str, _Seen]],
) -> None:
    """Enter one order of one pool into the states of all rungs."""
    before: _Seen | None = None
    for rung, n in enumerate(ladder):
        taken = order[:n]
        name = state_of(pool.of(taken), CLASSES, cuts)
        here = rungs[rung][name]
        here.count += 1
        for rule in rules:
            here.right[rule] += is_right(pool, taken, rule)
        if before is not None:
            before.leads[name] += 1
            before.tokens += sum(pool.tokens[i] for i in order[ladder[rung - 1] : n])
        before = here


def _parents(rungs: Sequence[Mapping[str, _Seen]], rules: Sequence[Select]) -> dict[str, _Seen]:
    """The states of each name, over all rungs."""
    parents: dict[str, _Seen] = defaultdict(_Seen)
    for rung in rungs:
        for name, seen in rung.items():
            parents[name].count += seen.count
            for rule in rules:
                parents[name].right[rule] += seen.right[rule]
    return parents


def _states(
    rung: Mapping[str, _Seen], parents: Mapping[str, _Seen], rules: Sequence[Select], total: int, prior: float
) -> dict[str, State]:
    return {
        name: State(
            visits=seen.count / total,
            tokens=seen.tokens / seen.count,
            accuracy={rule: seen.accuracy(rule, parents[name], prior) for rule in rules},
            leads={other: count / seen.count for other, count in sorted(seen.leads.items())},
        )
        for name, seen in sorted(rung.items())
    }


def worth(pools: Sequence[Sampled], tokens: float, *, seed: int, pilot: int = 1) -> tuple[list[float], list[float]]:
    """Return for each problem the cross-fitted (expected accuracy, expected tokens) of spending by plan.

    Raises:
        ConfigError: `tokens` do not pay for the first samples of either half.
    """
    accuracy, spent = [0.0] * len(pools), [0.0] * len(pools)
    for plan, places in halves(pools, seed=seed, pilot=pilot):
        outcome = spend(plan, [pools[at] for at in places], tokens, seed=seed)
        for at, right, cost in zip(places, *outcome, strict=True):
            accuracy[at], spent[at] = right, cost
    return accuracy, spent


def halves(pools: Sequence[Sampled], *, seed: int, pilot: int = 1) -> list[tuple[Plan, list[int]]]:
    """Return the plan of each half of the pools, with the places of the pools of the other half."""
    half = np.random.default_rng(seed).permutation(len(pools)) % 2
    parts = [[int(at) for at in np.flatnonzero(half == fold)] for fold in (0, 1)]
    return [
        (fit([pools[at] for at in own], pilot=pilot, seed=seed, source={}), other)
        for own, other in (parts[::-1], parts)
    ]


def spend(plan: Plan, pools: Sequence[Sampled], tokens: float, *, seed: int) -> tuple[list[float], list[float]]:
    """Return for each problem the (expected accuracy, expected tokens) of spending `tokens` by `plan`."""
    mixture, rng = follow(plan, tokens), np.random.default_rng(seed)
    accuracy, spent = [0.0] * len(pools), [0.0] * len(pools)
    for at, pool in enumerate(pools):
        for _ in range(ORDERS):
            order = [int(i) for i in rng.permutation(len(pool.draws))]
            for policy, chance in ((mixture.lean, 1 - mixture.fraction), (mixture.rich, mixture.fraction)):
                if chance:
                    taken, rule = _follow(plan, policy.go, pool, order)
                    accuracy[at] += chance * is_right(pool, taken, rule) / ORDERS
                    spent[at] += chance * sum(pool.tokens[i] for i in taken) / ORDERS
    return accuracy, spent


def _follow(
    plan: Plan, go: Sequence[frozenset[str]], pool: Sampled, order: Sequence[int]
) -> tuple[Sequence[int], Select]:
    """Return the samples that a policy draws in this order, and the rule that it answers by."""
    for rung, n in enumerate(plan.ladder):
        taken = order[:n]
        name = plan.known(rung, state_of(pool.of(taken), CLASSES, plan.cuts))
        if name not in go[rung]:
            break
    return taken, plan.select(rung, name)


def is_right(pool: Sampled, taken: Sequence[int], rule: Select) -> bool:
    """Whether the rule picks a right candidate among those taken."""
    chosen = choose(pool.of(taken), CLASSES, rule)
    places = (i for draw in taken for i in pool.draws[draw])
    return chosen is not None and any(pool.right[i] for i in places if pool.candidates[i].path == chosen.path)


def _cuts(pools: Sequence[Sampled]) -> tuple[float, ...]:
    """Scores that the shares of `LEVELS` of all samples stay below."""
    scores = [c.score for pool in pools for c in pool.candidates if c.score is not None]
    return tuple(float(cut) for cut in np.unique(np.quantile(scores, LEVELS)))
