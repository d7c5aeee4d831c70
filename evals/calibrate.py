"""Calibration of the strategy `auto`: from a recorded pool of samples to accuracy for cost, by kind of problem.

Each problem's pool is put in many random orders; the first samples of an order are a pilot and tell its kind, the first
n are what an arm would have drawn. So curves hold exactly for the code that will run, without a model. Kinds that are
rare lean on all problems (`PRIOR` of them). What a plan is worth is cross-fitted: each half of the problems is spent by
the plan of the other half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evals.metrics import powers_of_two
from ttc import answers
from ttc.aggregate import aggregate
from ttc.allocation import Arm, Kind, Plan, allocate, kind_of, share_of
from ttc.core import Candidate, Record
from ttc.errors import ConfigError
from ttc.replay import Draw, pool_of
from ttc.selection import Select, choose

__all__ = ["Sampled", "fit", "read_pools", "spend", "worth"]

ORDERS = 16
PRIOR = 4.0
LEVELS = 8
CLASSES = "exact"
"""Answer kind of class names."""
RULES: tuple[Select, ...] = ("majority",)
SCORED_RULES: tuple[Select, ...] = ("majority", "weighted", "argmax")


@dataclass(frozen=True, slots=True)
class Sampled:
    """One problem's pool: its candidates, whether each is right, and what each cost in tokens.

    Finals are the names of their answer classes, so that a vote over them needs to read no answer again.
    """

    candidates: tuple[Candidate, ...]
    right: tuple[bool, ...]
    tokens: tuple[float, ...]


def read_pools(records: Sequence[Record]) -> list[Sampled]:
    """Return the pools of a run; raises ConfigError when its samples are no fair pool."""
    found = []
    for record in records:
        if record.answer is None:
            continue
        draws = pool_of(record)
        right = {c.path: v.correct for c, v in zip(record.answer.candidates, record.verdicts, strict=True)}
        names: dict[str, str] = {}
        candidates = tuple(_named(draw, record.problem.kind, names) for draw in draws.values())
        found.append(
            Sampled(
                candidates,
                tuple(right[candidate.path] for candidate in candidates),
                tuple(float(draw.num_tokens + draw.num_scored) for draw in draws.values()),
            )
        )
    if not found:
        raise ConfigError("the run holds no solved problem, so there is nothing to calibrate on")
    return found


def _named(draw: Draw, kind: str, names: dict[str, str]) -> Candidate:
    """The candidate with the name of its answer class for its answer, and the score that `auto` will see."""
    final = draw.candidate.final
    name = None if final is None else names.setdefault(answers.key(final, kind), f"class{len(names)}")
    return replace(draw.candidate, final=name, score=None if draw.score is None else aggregate(draw.score))


def fit(pools: Sequence[Sampled], *, pilot: int, seed: int, source: Mapping[str, object], prior: float = PRIOR) -> Plan:
    """Return the plan that the pools give; `pilot` samples tell the kind of a problem.

    The curve of a kind leans on that of all problems with the weight of `prior` problems.

    Raises:
        ConfigError: a pool is smaller than the pilot.
    """
    size = min(len(pool.candidates) for pool in pools)
    if not 1 < pilot <= size:
        raise ConfigError(f"pilot must be between 2 and the {size} samples that every problem has, got {pilot}")
    scored = all(c.score is not None for pool in pools for c in pool.candidates if c.final is not None)
    cuts = _cuts(pools, pilot) if scored else ()
    ladder = sorted({pilot, *(k for k in powers_of_two(size) if k > pilot)})
    rules = SCORED_RULES if scored else RULES
    rng = np.random.default_rng(seed)
    outcomes: dict[str, dict[tuple[Select, int], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    pooled: dict[tuple[Select, int], list[tuple[float, float]]] = defaultdict(list)
    for pool in pools:
        for _ in range(ORDERS):
            order = rng.permutation(len(pool.candidates))
            kind = kind_of([pool.candidates[i] for i in order[:pilot]], CLASSES, cuts)
            for n in ladder:
                taken = [int(i) for i in order[:n]]
                cost = sum(pool.tokens[i] for i in taken)
                for rule in rules:
                    seen = (cost, float(_is_right(pool, taken, rule)))
                    outcomes[kind][rule, n].append(seen)
                    pooled[rule, n].append(seen)
    total = len(pools) * ORDERS
    kinds = tuple(
        Kind(
            name,
            len(next(iter(arms.values()))) / total,
            tuple(_arm(rule, n, seen, pooled[rule, n], prior) for (rule, n), seen in sorted(arms.items())),
        )
        for name, arms in sorted(outcomes.items())
    )
    return Plan(pilot, cuts, kinds, round(sum(sum(pool.tokens) for pool in pools)), dict(source))


def worth(pools: Sequence[Sampled], tokens: float, *, pilot: int, seed: int) -> tuple[list[float], list[float]]:
    """Return for each problem the cross-fitted (expected accuracy, expected tokens) of spending by plan."""
    accuracy, spent = [0.0] * len(pools), [0.0] * len(pools)
    half = np.random.default_rng(seed).permutation(len(pools)) % 2
    for fold in (0, 1):
        plan = fit([p for p, h in zip(pools, half, strict=True) if h != fold], pilot=pilot, seed=seed, source={})
        places = [int(at) for at in np.flatnonzero(half == fold)]
        outcome = spend(plan, [pools[at] for at in places], tokens, seed=seed)
        for at, right, cost in zip(places, *outcome, strict=True):
            accuracy[at], spent[at] = right, cost
    return accuracy, spent


def spend(plan: Plan, pools: Sequence[Sampled], tokens: float, *, seed: int) -> tuple[list[float], list[float]]:
    """Return for each problem the (expected accuracy, expected tokens) of spending `tokens` by `plan`."""
    shares, rng = allocate(plan.kinds, tokens), np.random.default_rng(seed)
    accuracy, spent = [0.0] * len(pools), [0.0] * len(pools)
    for at, pool in enumerate(pools):
        for _ in range(ORDERS):
            order = [int(i) for i in rng.permutation(len(pool.candidates))]
            share = share_of(shares, kind_of([pool.candidates[i] for i in order[: plan.pilot]], CLASSES, plan.cuts))
            for arm, chance in ((share.arm, 1 - share.fraction), (share.more, share.fraction)):
                taken = order[: arm.n]
                accuracy[at] += chance * _is_right(pool, taken, arm.select) / ORDERS
                spent[at] += chance * sum(pool.tokens[i] for i in taken) / ORDERS
    return accuracy, spent


def _is_right(pool: Sampled, taken: Sequence[int], rule: Select) -> bool:
    chosen = choose([pool.candidates[i] for i in taken], CLASSES, rule)
    return chosen is not None and any(pool.right[i] for i in taken if pool.candidates[i].path == chosen.path)


def _cuts(pools: Sequence[Sampled], pilot: int) -> tuple[float, ...]:
    """Levels of the mean score with equal shares of the problems."""
    means = [float(np.mean([c.score for c in pool.candidates if c.score is not None] or [0.0])) for pool in pools]
    return tuple(float(cut) for cut in np.unique(np.quantile(means, [i / LEVELS for i in range(1, LEVELS)])))


def _arm(
    rule: Select, n: int, seen: list[tuple[float, float]], pooled: list[tuple[float, float]], weight: float
) -> Arm:
    """Mean cost and accuracy of a kind; with few problems the accuracy leans on that of all of them."""
    count, prior = len(seen) / ORDERS, float(np.mean([right for _, right in pooled]))
    accuracy = (count * float(np.mean([right for _, right in seen])) + weight * prior) / (count + weight)
    return Arm(rule, n, float(np.mean([cost for cost, _ in seen])), accuracy)
