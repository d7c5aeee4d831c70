"""The points of `benchmarks.frontier`: a strategy with its parameters, its tokens a problem, and who was right.

What votes or selects is an exact expectation over all subsets of a recorded pool, or a mean over random orders of it;
what is run for real is in `benchmarks.frontier_arms`. Tokens are those generated and, with a scorer, scored.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from evals.calibrate import LADDER, Sampled, fit, is_right, spend
from evals.metrics import Vote, best_at_k, majority_at_k, weighted_at_k
from evals.statistics import mean_interval, paired_interval
from ttc.core import Message, Problem, Sampling
from ttc.replay import Draw, replay
from ttc.strategies.adaptive import adaptive
from ttc.strategies.majority import majority

SIZES = (1, 2, 4, 8, 16, 32, 64)
BUDGETS = (1, 2, 4, 8, 16, 32)
"""Of auto, in draws a problem; it takes up to all of a pool where it pays."""
DEPTH = 4
"""Calibration pools are so many times as deep as the budget."""
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


def replayed(pools: Sequence[Sampled]) -> list[Spot]:
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


def in_orders(pools: Sequence[Sampled], strategy: Any) -> Orders:
    """Replay a strategy without a scorer over random orders of each pool."""
    rng = np.random.default_rng(SEED)

    async def one(pool: Sampled, order: Sequence[int]) -> tuple[float, float]:
        draws = {
            number: Draw(replace(pool.candidates[i], path=(number,)), pool.candidates[i].num_tokens, 0, None, 0)
            for number, i in enumerate(order)
        }
        problem = Problem("p", (Message("user", "p"),), "exact")
        answer = await replay(problem, draws, strategy, seed=SEED, sampling=Sampling(max_tokens=1 << 20))
        right = {c.final: r for c, r in zip(pool.candidates, pool.right, strict=True)}
        return float(answer.final is not None and right[answer.final]), float(answer.usage.tokens)

    async def all_of(pool: Sampled) -> tuple[float, float]:
        found = [await one(pool, [int(i) for i in rng.permutation(len(pool.candidates))]) for _ in range(ORDERS)]
        right, tokens = np.mean(found, axis=0)
        return float(right), float(tokens)

    async def go() -> list[tuple[float, float]]:
        return [await all_of(pool) for pool in pools]

    found = asyncio.run(go())
    return Orders([right for right, _ in found], [tokens for _, tokens in found])


def searched(trees: Sequence[Sampled], width: int) -> list[Spot]:
    """Weighted votes over the leaves of 1, 2, 4, ... subtrees, over random orders of them."""
    rng = np.random.default_rng(SEED)
    sizes = [k for k in SIZES if k <= min(len(pool.draws) for pool in trees)]
    orders = [[[int(i) for i in rng.permutation(len(p.draws))] for _ in range(ORDERS * SPLITS)] for p in trees]
    return [
        Spot(
            "tree, dvts",
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


def auto_spots(pools: Sequence[Sampled], width: int) -> list[Spot]:
    """Auto at every budget, in draws: each half of the problems by the plan of the other, averaged over splits.

    The pools of a calibration are `CALIBRATED` problems of the other half, as deep as the budget can pay for. A budget
    of one draw needs none.
    """
    most = min(len(pool.draws) for pool in pools)
    name = "auto" if width == 1 else "auto, subtrees"
    spots = []
    for budget in (b for b in BUDGETS if b <= most and (width > 1 or b < most)):
        deep = max(n for n in LADDER if n <= min(DEPTH * budget, most)) if budget > 1 else 1
        right, tokens, charged = [0.0] * len(pools), [0.0] * len(pools), 0.0
        for seed in range(SPLITS):
            halves = np.array_split(np.random.default_rng(SEED + seed).permutation(len(pools)), 2)
            for places, others in (halves, halves[::-1]):
                plan = fit([_first(pools[at], deep) for at in others[:CALIBRATED]], seed=seed, width=width, source={})
                charged += plan.spent / 2 / SPLITS if budget > 1 else 0.0
                outcome = spend(plan, [pools[at] for at in places], budget * plan.first, seed=seed)
                for at, value, cost in zip(places, *outcome, strict=True):
                    right[at] += value / SPLITS
                    tokens[at] += cost / SPLITS
        spots.append(Spot(name, f"n={budget * width}", float(np.mean(tokens)) + charged / RUN, right, "auto"))
    return spots


def _first(pool: Sampled, n: int) -> Sampled:
    """The first draws of a pool."""
    return replace(pool, draws=pool.draws[:n], tokens=pool.tokens[:n])


def spread(spot: Spot, names: Sequence[str], every: Sequence[str]) -> Spot:
    """The spot of the problems `names` over `every` problem, NaN where it was not run."""
    known = dict(zip(names, spot.right, strict=True))
    return replace(spot, right=[known.get(name, ABSENT) for name in every])


def adaptive_half(pools: Sequence[Sampled]) -> dict[str, Any]:
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
