"""Calibration of the strategy `auto`: from recorded pools of draws to a plan (`ttc.allocation.plan`).

A draw is a plain sample, or an island of a search that consists of independent ones (the subtrees of DVTS are such).
`read_pools` reads from a run which draws are right, what each cost, and the answer class of each. A run with one greedy
answer per problem can go in front of the pools of other runs: it becomes their draw 0.

Each problem's pool is shuffled many times. The first draws of an order are what a run would have drawn at that rung of
the ladder, so the table describes exactly what the code will do, without a model. A state that few problems reached is
smoothed towards the states of its name at all rungs, with the weight of `PRIOR` problems. Each run of pools is one
route of the plan. A run of greedy answers is a route of its own and also comes first on all others; a scored run of
plain samples is two routes, with and without its scorer. What a plan is worth is cross-fitted: each half of the
problems follows the plan fitted on the other half, and the problems of a cluster stay in one half. `by_consensus`
judges the answers of a pool by their own consensus instead of a key, which is how a run without a calibration learns
from itself.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from evals.numbers.summary import cluster_of
from evals.run_folder import read_run
from ttc import answers
from ttc.allocation.plan import DrawKind, Plan, Route, State, follow, state_of
from ttc.answers.keys import UNIT_MARK
from ttc.choosing.selection import Key, Select, aggregate, by_score, choose, vote
from ttc.core import Candidate, Record
from ttc.errors import ConfigError
from ttc.replay import RecordedDraw, pool_of

CLASSES: Key = str
"""The key of a class name: the name itself, since `named` has read the answers."""


@dataclass(frozen=True, slots=True)
class DrawPool:
    """One problem's pool: its draws (indices of candidates, cost in tokens), and which candidates are right.

    A plain sample is a draw of one candidate, an island one of its leaves. Finals are the names of their answer
    classes, so a vote over them does not parse answers again. A greedy answer, if there is one, is draw 0. `cluster`
    names the problems that are weighed together; None: this one alone.
    """

    candidates: tuple[Candidate, ...]
    right: tuple[bool, ...]
    draws: tuple[tuple[int, ...], ...]
    tokens: tuple[float, ...]
    greedy: bool = False
    cluster: str | None = None

    def of(self, taken: Sequence[int]) -> list[Candidate]:
        """The candidates of some draws."""
        return [self.candidates[i] for draw in taken for i in self.draws[draw]]

    def order(self, rng: np.random.Generator) -> list[int]:
        """A random order of the draws, as a run could have drawn them: the greedy answer stays first."""
        fixed = int(self.greedy)
        return [*range(fixed), *(fixed + int(i) for i in rng.permutation(len(self.draws) - fixed))]

    def cost(self, taken: Sequence[int]) -> float:
        """Tokens of some draws."""
        return sum(self.tokens[draw] for draw in taken)

    def first(self, n: int) -> DrawPool:
        """The pool of its first n draws."""
        return replace(self, draws=self.draws[:n], tokens=self.tokens[:n])


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of the problems of a run, by their ids; all draws are of one kind."""

    kind: DrawKind
    by_id: Mapping[str, DrawPool]

    def only(self, names: Sequence[str]) -> Pools:
        """The pools of some problems, in that order."""
        return replace(self, by_id={name: self.by_id[name] for name in names})

    def first(self, n: int) -> Pools:
        """The pools of the first n draws of each problem."""
        return replace(self, by_id={name: pool.first(n) for name, pool in self.by_id.items()})

    @property
    def depth(self) -> int:
        """Draws that every problem has."""
        return min(len(pool.draws) for pool in self.by_id.values())

    @property
    def spent(self) -> int:
        """Tokens that all draws took."""
        return round(sum(sum(pool.tokens) for pool in self.by_id.values()))


def plain(candidates: Sequence[Candidate], right: Sequence[bool], tokens: Sequence[float]) -> DrawPool:
    """Return a pool of plain samples; finals are already names."""
    return DrawPool(tuple(candidates), tuple(right), tuple((i,) for i in range(len(candidates))), tuple(tokens))


def read_pools(folder: Path) -> Pools:
    """Return the pools of a run folder.

    Raises:
        ConfigError: its samples are no fair pool, or it is a search that does not consist of independent islands.
    """
    run = read_run(folder)
    records = [record for record in run.records if record.answer is not None]
    if not records:
        raise ConfigError(f"{folder} holds no solved problem, so there is nothing to calibrate on")
    kind = _kind(folder, run.config, records)
    read: Callable[[Record], DrawPool] = _samples if not kind.search else lambda record: _islands(record, kind.width)
    return Pools(kind, {record.problem.id: replace(read(record), cluster=cluster_of(record)) for record in records})


def _kind(folder: Path, config: Mapping[str, Any], records: Sequence[Record]) -> DrawKind:
    """The kind of the draws of a run."""
    params = dict(config["params"])
    scored = config.get("scorer") is not None
    if config["strategy"] != "tree":
        cold = params.get("temperature", config["sampling"]["temperature"])
        cold = config["sampling"]["temperature"] if cold is None else cold
        return DrawKind(scored=scored, greedy=cold == 0)
    n, islands = int(params.pop("n")), int(params.pop("islands", 1))
    params.pop("select")
    if islands == 1 and params["policy"] == "dvts":
        islands, rest = divmod(n, int(params["beam_width"]))
        islands = 0 if rest else islands
    stopped_early = any(record.answer.stop_cause != "done" for record in records if record.answer is not None)
    if not islands or (islands == 1 and params["policy"] != "dvts") or stopped_early:
        raise ConfigError(
            f"{folder}: of searches, only tree with islands of its own (islands=4, or policy=dvts with n a multiple of "
            "beam_width) and no budget can calibrate"
        )
    return DrawKind(width=n // islands, scored=True, search=params)


def opened(greedy: Pools, pools: Pools) -> Pools:
    """Return the pools with the greedy answer of each problem as their draw 0; problems that have both.

    Raises:
        ConfigError: no problem is in both runs, or only one of them was scored.
    """
    shared = {name: pool for name, pool in pools.by_id.items() if name in greedy.by_id}
    if not shared or greedy.kind.scored != pools.kind.scored:
        raise ConfigError(
            "the run of greedy answers must hold the problems of the other runs, and a scorer where they have one: "
            "ttc eval --strategy best_of_n:n=1 --temperature 0"
        )
    by_id = {name: _before(greedy.by_id[name], pool) for name, pool in shared.items()}
    return Pools(replace(pools.kind, greedy=True), by_id)


def _before(opening: DrawPool, pool: DrawPool) -> DrawPool:
    """One problem's greedy answer, then its draws."""
    moved = tuple(tuple(i + 1 for i in draw) for draw in pool.draws)
    first = replace(opening.candidates[0], path=(-1,))
    return DrawPool(
        (first, *pool.candidates),
        (opening.right[0], *pool.right),
        ((0,), *moved),
        (opening.tokens[0], *pool.tokens),
        greedy=True,
        cluster=pool.cluster,
    )


def unscored(pools: Pools) -> Pools:
    """Return the pools of plain samples as if there were no scorer: cheaper, and only voted on."""
    return Pools(replace(pools.kind, scored=False), {name: _unscored(pool) for name, pool in pools.by_id.items()})


def _unscored(pool: DrawPool) -> DrawPool:
    return replace(
        pool,
        candidates=tuple(replace(c, score=None) for c in pool.candidates),
        tokens=tuple(float(pool.candidates[draw[0]].num_tokens) for draw in pool.draws),
    )


def _samples(record: Record) -> DrawPool:
    draws = pool_of(record)
    right = _verdicts(record)
    candidates = named([_scored(draw) for draw in draws.values()], record.problem.kind)
    return plain(
        candidates,
        [right[candidate.path] for candidate in candidates],
        [float(draw.num_tokens + draw.num_scored) for draw in draws.values()],
    )


def _islands(record: Record, width: int) -> DrawPool:
    """The islands of a search as draws; scored tokens are shared out by generated ones."""
    answer = record.answer
    if answer is None:
        raise ConfigError(f"problem {record.problem.id!r} failed")
    lengths: dict[int, float] = defaultdict(float)
    for event in answer.trace:
        if event.kind == "generate":
            lengths[event.path[0] // width] += event.data["num_tokens"]
    each = answer.usage.tokens / max(sum(lengths.values()), 1)
    places: dict[int, list[int]] = {number: [] for number in sorted(lengths)}
    for at, candidate in enumerate(answer.candidates):
        places[candidate.path[0] // width].append(at)
    right = _verdicts(record)
    return DrawPool(
        named(answer.candidates, record.problem.kind),
        tuple(right[candidate.path] for candidate in answer.candidates),
        tuple(tuple(leaves) for leaves in places.values()),
        tuple(each * lengths[number] for number in places),
    )


def _verdicts(record: Record) -> dict[tuple[int, ...], bool]:
    candidates = () if record.answer is None else record.answer.candidates
    return {c.path: verdict.correct for c, verdict in zip(candidates, record.verdicts, strict=True)}


def _scored(draw: RecordedDraw) -> Candidate:
    """The candidate with the score that `auto` will see."""
    return replace(draw.candidate, score=None if draw.score is None else aggregate(draw.score))


def named(candidates: Sequence[Candidate], kind: str) -> tuple[Candidate, ...]:
    """Return the candidates with names of their answer classes for their answers; equal ones in all runs."""
    return tuple(c if c.final is None else replace(c, final=_class(answers.key(c.final, kind))) for c in candidates)


def _class(key: str) -> str:
    number, mark, unit = key.partition(UNIT_MARK)
    return "class" + hashlib.blake2b(number.encode(), digest_size=8).hexdigest() + mark + unit


# -- plans -------------------------------------------------------------------------------------------------------------
ORDERS = 8
PRIOR = 2.0
LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
"""Shares of all samples that score less than each cut."""
FEW, COARSE = 200, (0.3, 0.6, 0.9)
"""With fewer problems, fine levels leave so few in a state that what looks best there is chance."""
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
RULES: tuple[Select, ...] = ("majority",)
SCORED_RULES: tuple[Select, ...] = ("weighted", "argmax", "majority")


def by_consensus(pool: DrawPool) -> DrawPool:
    """Return the pool with the answer that all its samples vote for (by score, where scored) taken as right."""
    scored = any(c.score is not None for c in pool.candidates)
    leader = (vote(pool.candidates, CLASSES, by_score) if scored else None) or vote(pool.candidates, CLASSES)
    final = None if leader is None else leader.final
    return replace(pool, right=tuple(c.final is not None and c.final == final for c in pool.candidates))


@dataclass(slots=True)
class _Seen:
    """What was seen of one state, over all orders that passed through it."""

    count: int = 0
    tokens: float = 0.0
    right: dict[Select, float] = field(default_factory=lambda: defaultdict(float))
    leads: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def accuracy(self, rule: Select, parent: _Seen) -> float:
        """The share that was right, smoothed towards the parent's."""
        own = self.right[rule] / ORDERS
        return (own + PRIOR * parent.right[rule] / parent.count) / (self.count / ORDERS + PRIOR)


def routes(runs: Sequence[Pools], *, pilot: int = 1) -> list[Pools]:
    """Return the pools of every way of drawing that the runs contain, over the problems that all of them share.

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


def fit(runs: Sequence[Pools], *, seed: int, source: Mapping[str, object], pilot: int = 1) -> Plan:
    """Return the plan that recorded runs give, a route for each of `routes`; every problem gets at least `pilot` draws.

    Raises:
        ConfigError: what `routes` raises.
    """
    pool_sets = routes(runs, pilot=pilot)
    fitted_routes = tuple(fit_route(pools, seed=seed, pilot=pilot) for pools in pool_sets)
    # Greedy answers come first on many routes, and samples stand on two, but each draw was paid for once.
    names = list(pool_sets[0].by_id)
    return Plan(fitted_routes, sum(run.only(names).spent for run in runs), dict(source))


def fit_route(pools: Pools, *, seed: int, pilot: int = 1) -> Route:
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
    parents = _parents(rungs, best)
    states = tuple(_states(rung, parents, best, total) for rung in rungs)
    return Route(pools.kind, ladder, cuts, first / total, states)


def _walk(
    pool: DrawPool,
    order: Sequence[int],
    ladder: Sequence[int],
    cuts: Sequence[float],
    rules: Sequence[Select],
    rungs: Sequence[dict[str, _Seen]],
) -> None:
    """Count one order of one pool in the states that it passes at each rung."""
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


def _parents(rungs: Sequence[Mapping[str, _Seen]], rule: Select) -> dict[str, _Seen]:
    """The states of each name, over all rungs."""
    parents: dict[str, _Seen] = defaultdict(_Seen)
    for rung in rungs:
        for name, visits in rung.items():
            parents[name].count += visits.count
            parents[name].right[rule] += visits.right[rule]
    return parents


def _states(rung: Mapping[str, _Seen], parents: Mapping[str, _Seen], rule: Select, total: int) -> dict[str, State]:
    return {
        name: State(
            visits=visits.count / total,
            tokens=visits.tokens / visits.count,
            accuracy={rule: visits.accuracy(rule, parents[name])},
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
    """Return the plan of each half of the problems, with the names of the problems of the other half.

    Clusters go, in random order, to the half that has fewer problems so far, so that there must be two of them.
    """
    parts = _parted(routes(runs)[0], seed)
    return [
        (fit([run.only(own) for run in runs], pilot=pilot, seed=seed, source={}), other)
        for own, other in (parts[::-1], parts)
    ]


def _parted(pools: Pools, seed: int) -> tuple[list[str], list[str]]:
    """The names of the problems of two halves, in order; those of a cluster in one."""
    clusters: dict[str, list[str]] = defaultdict(list)
    for name, pool in pools.by_id.items():
        clusters[name if pool.cluster is None else pool.cluster].append(name)
    ranks = np.random.default_rng(seed).permutation(len(clusters))
    own, other = set[str](), set[str]()
    for _, members in sorted(zip(ranks, clusters.values(), strict=True)):
        (own if len(own) <= len(other) else other).update(members)
    return [name for name in pools.by_id if name in own], [name for name in pools.by_id if name in other]


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
    candidates = pool.of(taken)
    choice = choose(candidates, CLASSES, rule) or vote(candidates, CLASSES)
    places = (i for draw in taken for i in pool.draws[draw])
    return choice is not None and any(pool.right[i] for i in places if pool.candidates[i].path == choice.path)


def _cuts(pools: Sequence[DrawPool]) -> tuple[float, ...]:
    """Scores that some shares of all samples stay below."""
    scores = [c.score for pool in pools for c in pool.candidates if c.score is not None] or [0.0]
    return tuple(float(level) for level in np.unique(np.quantile(scores, LEVELS if len(pools) >= FEW else COARSE)))
