"""The points of `benchmarks.frontier`: a strategy with its parameters, its tokens per problem, and its right answers.

Votes and selections are exact expectations over all subsets of a recorded pool, or means over random orders of it;
actual runs are in `benchmarks.frontier_arms`. Tokens are those generated and, with a scorer, scored.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from evals.allocation.calibrate import LADDER, DrawPool, Pools, fit, is_right, spend
from evals.numbers.metrics import Vote, best_at_k, majority_at_k, weighted_at_k
from evals.numbers.statistics import mean_interval, paired_interval
from ttc.core import Message, Problem, Sampling
from ttc.replay import RecordedDraw, replay
from ttc.strategies.adaptive import adaptive
from ttc.strategies.majority import majority

SIZES = (1, 2, 4, 8, 16, 32, 64)
DEPTH, FIRST = 2, 4
"""Calibration pools are `DEPTH` times as deep as the budget; a draw that takes over `FIRST` budgets is left out."""
CALIBRATED, RUN = 50, 1000
"""Problems of a calibration, and problems that share its cost."""
ORDERS, SPLITS = 8, 4
CAP = 40
SEED = 2026
ABSENT = math.nan


@dataclass(frozen=True)
class Spot:
    """One point of the figure; `right` by problem, NaN where it was not run."""

    strategy: str
    label: str
    tokens: float
    right: Sequence[float]
    kind: str

    def has(self, at: int) -> bool:
        """Whether it was run on problem `at`."""
        return not math.isnan(self.right[at])

    def take(self, rows: Sequence[int]) -> list[float]:
        """Right answers of some problems."""
        return [self.right[at] for at in rows]

    def row(self, found: Mapping[str, float]) -> dict[str, Any]:
        """For the saved result."""
        return {"strategy": self.strategy, "label": self.label, "kind": self.kind, "tokens": self.tokens, **found}


def replayed(pools: Sequence[DrawPool]) -> list[Spot]:
    """Votes and selections at every size, and the stopping rules, from the pool."""
    votes = [
        [Vote(c.final, r, c.score if c.final else None) for c, r in zip(p.candidates, p.right, strict=True)]
        for p in pools
    ]
    rng = np.random.default_rng(SEED)
    rules: dict[str, Callable[[Sequence[Vote], int], float]] = {
        "majority": majority_at_k,
        "best_of_n": best_at_k,
        "best_of_n, weighted": lambda pool, k: weighted_at_k(pool, k, rng, 200)[0],
    }
    plain = float(np.mean([np.mean([c.num_tokens for c in pool.candidates]) for pool in pools]))
    scored = float(np.mean([np.mean(pool.tokens) for pool in pools]))
    spots = [
        Spot(name, f"n={k}", k * (plain if name == "majority" else scored), [rule(pool, k) for pool in votes], "vote")
        for name, rule in rules.items()
        for k in SIZES
    ]
    for threshold in (0.8, 0.9, 0.95):
        found = in_orders(pools, functools.partial(adaptive, n=SIZES[-1], threshold=threshold))
        spots.append(Spot("adaptive", f"{threshold}", float(np.mean(found.tokens)), found.right, "vote"))
    return spots


@dataclass(frozen=True)
class Orders:
    """Means over random orders, by problem."""

    right: list[float]
    tokens: list[float]


def in_orders(pools: Sequence[DrawPool], strategy: Any) -> Orders:
    """Replay a strategy without a scorer over random orders of each pool."""
    rng = np.random.default_rng(SEED)

    async def one(pool: DrawPool, order: Sequence[int]) -> tuple[float, float]:
        draws = {
            number: RecordedDraw(replace(pool.candidates[i], path=(number,)), pool.candidates[i].num_tokens, 0, None, 0)
            for number, i in enumerate(order)
        }
        problem = Problem("p", (Message("user", "p"),), "exact")
        answer = await replay(problem, draws, strategy, seed=SEED, sampling=Sampling(max_tokens=1 << 20))
        right = {c.final: r for c, r in zip(pool.candidates, pool.right, strict=True)}
        return float(answer.final is not None and right[answer.final]), float(answer.usage.tokens)

    async def all_of(pool: DrawPool) -> tuple[float, float]:
        found = [await one(pool, [int(i) for i in rng.permutation(len(pool.candidates))]) for _ in range(ORDERS)]
        right, tokens = np.mean(found, axis=0)
        return float(right), float(tokens)

    async def go() -> list[tuple[float, float]]:
        return [await all_of(pool) for pool in pools]

    found = asyncio.run(go())
    return Orders([right for right, _ in found], [tokens for _, tokens in found])


def searched(islands: Pools, name: str) -> list[Spot]:
    """Weighted votes over the leaves of 1, 2, 4, ... islands, over random orders of them."""
    rng, trees, width = np.random.default_rng(SEED), list(islands.by_id.values()), islands.kind.width
    sizes = [k for k in SIZES if k <= islands.depth]
    orders = [[pool.order(rng) for _ in range(ORDERS * SPLITS)] for pool in trees]
    return [
        Spot(
            name,
            f"n={k * width}",
            float(np.mean([k * np.mean(pool.tokens) for pool in trees])),
            [
                float(np.mean([is_right(pool, order[:k], "weighted") for order in each]))
                for pool, each in zip(trees, orders, strict=True)
            ],
            "search",
        )
        for k in sizes
    ]


def auto_spots(name: str, runs: Sequence[Pools], sample: float) -> list[Spot]:
    """Auto at the tokens of 1, 2, 4, ... samples a problem: each half of the problems by the plan of the other.

    Averaged over splits. A calibration is `CALIBRATED` problems of the other half.
    """
    names = list(runs[0].by_id)
    spots = []
    for size in SIZES:
        right, tokens = dict.fromkeys(names, 0.0), 0.0
        for seed in range(SPLITS):
            halves = np.array_split(np.random.default_rng(SEED + seed).permutation(len(names)), 2)
            for here, others in (halves, halves[::-1]):
                known = [names[at] for at in others[:CALIBRATED]]
                tested = [names[at] for at in here]
                deep = _affordable(runs, known, size * sample)
                plan = fit([run.only(known) for run in deep], seed=seed, source={})
                played = [run.only(tested) for run in deep]
                found = spend(plan, played, max(size * sample, plan.first), seed=seed)
                for problem, value, cost in zip(tested, *found, strict=True):
                    right[problem] += value / SPLITS
                    tokens += cost / SPLITS / len(names)
                tokens += plan.spent / RUN / 2 / SPLITS
        spots.append(Spot(name, f"n={size}", tokens, list(right.values()), "auto"))
    return spots


def _affordable(runs: Sequence[Pools], known: Sequence[str], budget: float) -> list[Pools]:
    """The runs that are worth calibrating at that budget, and as deep as is; the first run always."""
    found: list[Pools] = []
    for run in runs:
        each = run.only(known).spent / len(known) / run.depth
        if not found or each <= FIRST * budget:
            found.append(run.first(max((n for n in LADDER if n <= min(DEPTH * budget / each, run.depth)), default=1)))
    return found


def spread(spot: Spot, names: Sequence[str], every: Sequence[str]) -> Spot:
    """The spot of the problems `names` over `every` problem, NaN where it was not run."""
    known = dict(zip(names, spot.right, strict=True))
    return replace(spot, right=[known.get(name, ABSENT) for name in every])


def adaptive_half(pools: Sequence[DrawPool]) -> dict[str, Any]:
    """Adaptive stopping against a vote of as many as it may draw, on the half of the problems that is easier.

    A problem is easy by the share of its samples that is right.
    """
    ease = [sum(pool.right) / len(pool.right) for pool in pools]
    easy = [pools[int(at)] for at in np.argsort(ease, kind="stable")[len(pools) - len(pools) // 2 :]]
    fixed = in_orders(easy, functools.partial(majority, n=CAP))
    rows: dict[str, Any] = {
        "problems": len(easy),
        "majority_of": CAP,
        "accuracy": asdict(mean_interval(fixed.right, range(len(easy)), seed=SEED)),
        "tokens": float(np.mean(fixed.tokens)),
    }
    for threshold in (0.9, 0.95, 0.99):
        found = in_orders(easy, functools.partial(adaptive, n=CAP, threshold=threshold))
        rows[f"threshold {threshold}"] = {
            "saves": float(np.mean(fixed.tokens) / np.mean(found.tokens)),
            "difference": asdict(paired_interval(fixed.right, found.right, range(len(easy)), seed=SEED)),
        }
    return rows
