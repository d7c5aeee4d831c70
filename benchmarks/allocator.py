"""Share of an oracle allocation's gain that `auto` reaches, on the simulated reasoner with known difficulty.

    python -m benchmarks.allocator --json benchmarks/results/allocator.json

For each seed a pool of problems of all five levels is sampled for the calibration and another for the test. Compared at
equal mean tokens on the test pool is the expected accuracy of one arm for all problems (uniform: the best mixture of
two), the plan (auto, whose calibration never saw the test pool), and two oracles. `difficulty` uses the true level of
every problem and that level's curve; `hindsight` uses every single problem's own curve, averaged over orders of the
samples actually drawn, which cannot be known beforehand.

A gain is over one sample a problem, the least that any allocation spends (`share`), and more strictly over the best
uniform spending of equal tokens (`share_above_uniform`). Shares are auto's gain over an oracle's, with 95 % bootstraps
over seeds; the calibration's own tokens are listed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.oracle_allocation import Arm, Kind, curve, reached
from evals.allocation.calibrate import RULES, SCORED_RULES, DrawPool, Pools, fit_route, named, plain, spend
from ttc.allocation.plan import DrawKind as Draws
from ttc.allocation.plan import Plan
from ttc.core import Answer, Message, Problem, Sampling
from ttc.engines.simulated import simulated, truth
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.majority import majority

N = 32
SAMPLES = (4, 8)
"""Budgets, in samples a problem."""
DRAWS = 2000
LEVELS = 5


def sample(num: int, seed: int, scored: bool) -> list[DrawPool]:
    """Draw N samples of so many problems, a fifth of each level."""
    asked = [
        Problem(
            f"{seed}-{i}",
            (Message("user", f"What is quantity {i} of batch {seed} at level {1 + i % LEVELS}?"),),
            "number",
        )
        for i in range(num)
    ]
    scorer = simulated_scorer(preset="good")
    strategy = functools.partial(best_of_n, scorer=scorer, n=N) if scored else functools.partial(majority, n=N)

    async def go() -> list[DrawPool]:
        engine, sampling = simulated(), Sampling(max_tokens=4096)
        return [
            _pool(problem, await solve(problem, engine=engine, strategy=strategy, seed=seed, sampling=sampling))
            for problem in asked
        ]

    return asyncio.run(go())


def _pool(problem: Problem, answer: Answer) -> DrawPool:
    """The samples of one answer; what scoring cost is shared out by length."""
    each = answer.usage.tokens / max(sum(c.num_tokens for c in answer.candidates), 1)
    right = tuple(c.final == truth(problem.messages[0].content) for c in answer.candidates)
    cost = tuple(c.num_tokens * each for c in answer.candidates)
    return plain(named(answer.candidates, problem.kind), right, cost)


def _run(pools: list[DrawPool], scored: bool) -> Pools:
    return Pools(Draws(scored=scored), {str(at): pool for at, pool in enumerate(pools)})


def kinds(pools: list[DrawPool], scored: bool, seed: int) -> dict[str, list[Kind]]:
    """What is known of the problems: nothing, their levels, or each one's own curve."""
    rules = SCORED_RULES if scored else RULES
    groups = {
        "uniform": [pools],
        "difficulty": [pools[level::LEVELS] for level in range(LEVELS)],
        "hindsight": [[pool] for pool in pools],
    }
    made: dict[str, list[Kind]] = {}
    for name, parts in groups.items():
        curves: list[tuple[Arm, ...]] = [curve(part, rules, seed=seed + at) for at, part in enumerate(parts)]
        made[name] = [Kind(str(at), 1 / len(parts), arms) for at, arms in enumerate(curves)]
    return made


def measure(train: list[DrawPool], test: list[DrawPool], scored: bool, seed: int) -> list[Any]:
    """One seed: a row per budget."""
    # One route, so that auto and the oracles spend on the same arms.
    plan = Plan((fit_route(_run(train, scored), seed=seed),), _run(train, scored).spent, {})
    known = kinds(test, scored, seed)
    one = float(np.mean([np.mean(pool.tokens) for pool in test]))
    floor = max(arm.accuracy for arm in known["uniform"][0].arms if arm.n == 1)
    rows = []
    for samples in SAMPLES:
        right, spent = spend(plan, [_run(test, scored)], one * samples, seed=seed)
        tokens, auto = float(np.mean(spent)), float(np.mean(right))
        bound = {name: reached(parts, tokens) for name, parts in known.items()}
        oracles = ("difficulty", "hindsight")
        rows.append(
            {
                "seed": seed,
                "one_sample": floor,
                **bound,
                "auto": auto,
                "tokens": tokens,
                "calibration_tokens": plan.spent,
                "share": {name: (auto - floor) / (bound[name] - floor) for name in oracles},
                "share_above_uniform": {
                    name: (auto - bound["uniform"]) / (bound[name] - bound["uniform"]) for name in oracles
                },
            }
        )
    return rows


def main() -> None:
    """Run all seeds and print, or save, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--calibration", type=int, default=600, help="problems of the calibration pool")
    parser.add_argument("--test", type=int, default=300, help="problems of the test pool")
    parser.add_argument("--json", type=Path, help="where to save the result")
    args = parser.parse_args()
    rows = []
    for scored in (False, True):
        tables = [
            measure(sample(args.calibration, 1000 + seed, scored), sample(args.test, 2000 + seed, scored), scored, seed)
            for seed in range(args.seeds)
        ]
        for at, samples in enumerate(SAMPLES):
            rows.append(_summary([table[at] for table in tables], scored, samples))
    if args.json:
        args.json.write_text(json.dumps({"problems": vars(args) | {"json": None}, "rows": rows}, indent=1) + "\n")


def _summary(table: list[Any], scored: bool, samples: int) -> dict[str, Any]:
    """The seeds of one budget together; printed."""
    row: dict[str, Any] = {"scorer": scored, "samples": samples, "seeds": table}
    for measure_of in ("share", "share_above_uniform"):
        row[measure_of] = {name: _interval([r[measure_of][name] for r in table]) for name in table[0][measure_of]}
    mean = {name: float(np.mean([r[name] for r in table])) for name in table[0] if isinstance(table[0][name], float)}
    print(f"{'scored' if scored else 'votes'}, {samples} samples: ", end="")
    print(", ".join(f"{name} {value:.3f}" for name, value in mean.items() if name != "tokens"))
    for measure_of in ("share", "share_above_uniform"):
        print(f"    {measure_of}: {row[measure_of]}", flush=True)
    return row


def _interval(shares: list[float]) -> dict[str, float]:
    rng = np.random.default_rng(0)
    means = [float(np.mean(rng.choice(shares, len(shares)))) for _ in range(DRAWS)]
    low, high = (round(float(q), 3) for q in np.quantile(means, [0.025, 0.975]))
    return {"value": round(float(np.mean(shares)), 3), "low": low, "high": high}


if __name__ == "__main__":
    main()
