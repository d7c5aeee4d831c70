"""Calibration of the strategy `auto`: from recorded pools of draws to a plan (`ttc.allocation.table`).

Each problem's pool is put in many random orders; the first draws of an order are what a run would have drawn by a rung
of the ladder, so the table holds exactly for the code that will run, without a model. States that few problems reached
lean on the states of their name at all rungs (`PRIOR` problems of them). Every run of pools is a route of the plan; a
run of greedy answers opens all others and is a route of its own, and a scored run of plain samples is two, with and
without its scorer. What a plan is worth is cross-fitted: each half of the problems is spent by the plan of the other
half. `by_consensus` makes pools whose answers are held against their own consensus in place of a key: that is how a run
without a calibration learns from itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evals.allocation.sampled import CLASSES, DrawPool, Pools, opened, unscored
from ttc.allocation.policy import follow, state_of
from ttc.allocation.table import Plan, Route, State
from ttc.choosing.selection import Select, choose
from ttc.choosing.voting import vote
from ttc.errors import ConfigError

ORDERS = 8
PRIOR = 2.0
LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
"""Shares of all samples that score less than each cut."""
FEW, COARSE = 200, (0.3, 0.6, 0.9)
"""With fewer problems than that, fine levels leave too few in a state: what looks best in one is chance."""
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
RULES: tuple[Select, ...] = ("majority",)
SCORED_RULES: tuple[Select, ...] = ("weighted", "argmax", "majority")


def by_consensus(pool: DrawPool) -> DrawPool:
    """Return the pool with the answer that all its samples vote for (by score, where scored) taken as right."""
    scored = any(c.score is not None for c in pool.candidates)
    leader = vote(pool.candidates, CLASSES, lambda c: c.score) if scored else vote(pool.candidates, CLASSES)
    final = None if leader is None else leader.final
    return replace(pool, right=tuple(c.final is not None and c.final == final for c in pool.candidates))


@dataclass(slots=True)
class _Seen:
    """What the orders that came by a state showed."""

    count: int = 0
    tokens: float = 0.0
    right: dict[Select, float] = field(default_factory=lambda: defaultdict(float))
    leads: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def accuracy(self, rule: Select, parent: _Seen, prior: float) -> float:
        """The share that was right, leaning on the parent's."""
        own = self.right[rule] / ORDERS
        return (own + prior * parent.right[rule] / parent.count) / (self.count / ORDERS + prior)


def routes(runs: Sequence[Pools], *, pilot: int = 1) -> list[Pools]:
    """Return the pools of every way of drawing that the runs tell of, over the problems that are in all of them.

    Only those with `pilot` draws of every problem: the greedy answer alone is one.

    Raises:
        ConfigError: no problem is in all runs, there are several runs of greedy answers, only some runs are scored, or
            no pool is as deep as the pilot.
    """
    cold = [run for run in runs if run.kind.greedy]
    if len(cold) > 1:
        raise ConfigError("name one run of greedy answers at most")
    names = [name for name in runs[0].by_id if all(name in run.by_id for run in runs)]
    if not names:
        raise ConfigError("the runs hold no problem in common; calibrate on runs of the same task, level and limit")
    warm = [run for run in runs if not run.kind.greedy]
    pool_sets = [*([opened(cold[0], run) for run in warm] if cold else warm), *cold]
    pool_sets += [unscored(run) for run in pool_sets if run.kind.scored and not run.kind.search]
    deep = [pools for pools in (run.only(names) for run in pool_sets) if pools.depth >= pilot]
    if pilot < 1 or not deep:
        raise ConfigError(f"pilot must be >= 1, and at most the draws that every problem has, got {pilot}")
    return deep


def fit(
    runs: Sequence[Pools], *, seed: int, source: Mapping[str, object], pilot: int = 1, prior: float = PRIOR
) -> Plan:
    """Return the plan that recorded runs give, a route for each of `routes`; every problem gets at least `pilot` draws.

    Raises:
        ConfigError: what `routes` raises.
    """
    pool_sets = routes(runs, pilot=pilot)
    fitted_routes = tuple(fit_route(pools, seed=seed, pilot=pilot, prior=prior) for pools in pool_sets)
    # Greedy answers open many routes, and samples stand in two, but every draw was paid for once.
    names = list(pool_sets[0].by_id)
    return Plan(fitted_routes, sum(run.only(names).spent for run in runs), dict(source))


def fit_route(pools: Pools, *, seed: int, pilot: int = 1, prior: float = PRIOR) -> Route:
    """Return one way of drawing: its ladder, and the states that the pools were in at each rung."""
    each = list(pools.by_id.values())
    cuts = _cuts(each) if pools.kind.scored else ()
    steps = (1, *(1 + n for n in LADDER)) if pools.kind.greedy else LADDER
    ladder = tuple(sorted({pilot, *(n for n in steps if pilot < n <= pools.depth)}))
    rules = SCORED_RULES if pools.kind.scored else RULES
    rng = np.random.default_rng(seed)
    rungs: list[dict[str, _Seen]] = [defaultdict(_Seen) for _ in ladder]
    first = 0.0
    for pool in each:
        for _ in range(ORDERS):
            order = pool.order(rng)
            first += pool.cost(order[: ladder[0]])
            _walk(pool, order, ladder, cuts, rules, rungs)
    total = len(each) * ORDERS
    # One rule for the route: the best of several in every state would often be best by chance.
    best = max(rules, key=lambda rule: sum(visits.right[rule] for rung in rungs for visits in rung.values()))
    states = tuple(_states(rung, _parents(rungs, (best,)), (best,), total, prior) for rung in rungs)
    return Route(pools.kind, ladder, cuts, first / total, states)


def _walk(
    pool: DrawPool,
    order: Sequence[int],
    ladder: Sequence[int],
    cuts: Sequence[float],
    rules: Sequence[Select],
    rungs: Sequence[dict[str, _Seen]],
) -> None:
    """Enter one order of one pool into the states of all rungs."""
    before: _Seen | None = None
    for rung, n in enumerate(ladder):
        prefix = order[:n]
        name = state_of(pool.of(prefix), CLASSES, cuts)
        here = rungs[rung][name]
        here.count += 1
        for rule in rules:
            here.right[rule] += is_right(pool, prefix, rule)
        if before is not None:
            before.leads[name] += 1
            before.tokens += pool.cost(order[ladder[rung - 1] : n])
        before = here


def _parents(rungs: Sequence[Mapping[str, _Seen]], rules: Sequence[Select]) -> dict[str, _Seen]:
    """The states of each name, over all rungs."""
    parents: dict[str, _Seen] = defaultdict(_Seen)
    for rung in rungs:
        for name, visits in rung.items():
            parents[name].count += visits.count
            for rule in rules:
                parents[name].right[rule] += visits.right[rule]
    return parents


def _states(
    rung: Mapping[str, _Seen], parents: Mapping[str, _Seen], rules: Sequence[Select], total: int, prior: float
) -> dict[str, State]:
    return {
        name: State(
            visits=visits.count / total,
            tokens=visits.tokens / visits.count,
            accuracy={rule: visits.accuracy(rule, parents[name], prior) for rule in rules},
            leads={other: count / visits.count for other, count in sorted(visits.leads.items())},
        )
        for name, visits in sorted(rung.items())
    }


def worth(runs: Sequence[Pools], tokens: float, *, seed: int, pilot: int = 1) -> tuple[list[float], list[float]]:
    """Return for each problem the cross-fitted (expected accuracy, expected tokens) of spending by plan.

    Raises:
        ConfigError: `tokens` do not pay for the first samples of either half.
    """
    outcomes: dict[str, tuple[float, float]] = {}
    for plan, names in halves(runs, seed=seed, pilot=pilot):
        outcome = spend(plan, [run.only(names) for run in runs], tokens, seed=seed)
        outcomes.update(zip(names, zip(*outcome, strict=True), strict=True))
    here = [outcomes[name] for name in routes(runs)[0].by_id]
    return [right for right, _ in here], [tokens_used for _, tokens_used in here]


def halves(runs: Sequence[Pools], *, seed: int, pilot: int = 1) -> list[tuple[Plan, list[str]]]:
    """Return the plan of each half of the problems, with the names of the problems of the other half."""
    names = list(routes(runs)[0].by_id)
    half = np.random.default_rng(seed).permutation(len(names)) % 2
    parts = [[names[at] for at in np.flatnonzero(half == fold)] for fold in (0, 1)]
    return [
        (fit([run.only(own) for run in runs], pilot=pilot, seed=seed, source={}), other)
        for own, other in (parts[::-1], parts)
    ]


def spend(plan: Plan, runs: Sequence[Pools], tokens: float, *, seed: int) -> tuple[list[float], list[float]]:
    """Return for each problem of the runs the (expected accuracy, expected tokens) of spending `tokens` by `plan`.

    The runs are of the kinds that the plan was fitted to, in the same order.
    """
    mixture, rng = follow(plan, tokens), np.random.default_rng(seed)
    pool_sets = routes(runs, pilot=plan.routes[0].ladder[0])
    accuracy, costs = [0.0] * len(pool_sets[0].by_id), [0.0] * len(pool_sets[0].by_id)
    for policy, chance in ((mixture.lean, 1 - mixture.fraction), (mixture.rich, mixture.fraction)):
        if not chance:
            continue
        route, go = plan.routes[policy.route], policy.climbs[policy.route].go
        for at, pool in enumerate(pool_sets[policy.route].by_id.values()):
            for _ in range(ORDERS):
                prefix, rule = _follow(route, go, pool, pool.order(rng))
                accuracy[at] += chance * is_right(pool, prefix, rule) / ORDERS
                costs[at] += chance * pool.cost(prefix) / ORDERS
    return accuracy, costs


def _follow(
    route: Route, go: Sequence[frozenset[str]], pool: DrawPool, order: Sequence[int]
) -> tuple[Sequence[int], Select]:
    """Return the draws that a policy takes in this order, and the rule that it answers by."""
    for rung, n in enumerate(route.ladder):
        prefix = order[:n]
        name = route.known(rung, state_of(pool.of(prefix), CLASSES, route.cuts))
        if name not in go[rung]:
            break
    return prefix, route.select(rung, name)


def is_right(pool: DrawPool, taken: Sequence[int], rule: Select) -> bool:
    """Whether the rule picks a right candidate among those taken."""
    choice = choose(pool.of(taken), CLASSES, rule)
    places = (i for draw in taken for i in pool.draws[draw])
    return choice is not None and any(pool.right[i] for i in places if pool.candidates[i].path == choice.path)


def _cuts(pools: Sequence[DrawPool]) -> tuple[float, ...]:
    """Scores that some shares of all samples stay below."""
    scores = [c.score for pool in pools for c in pool.candidates if c.score is not None] or [0.0]
    return tuple(float(level) for level in np.unique(np.quantile(scores, LEVELS if len(pools) >= FEW else COARSE)))
