"""How much of the oracle allocation's gain the strategy `auto` gets, on the simulated reasoner with known difficulty.

    python -m benchmarks.allocator --json benchmarks/results/allocator.json

For each seed a pool of problems of all five levels is sampled for the calibration and another for the test. At equal
mean tokens on the test pool, the expected accuracy of: one arm for all problems (uniform: the best mixture of two), the
plan (auto, whose calibration never saw the test pool), and two oracles. `difficulty` knows the true difficulty of every
problem and spends by its expected curve; `hindsight` spends by the curve of the very samples that are drawn, which
nobody could know beforehand. A gain is over what the pilot alone gives; shares are the plan's gain over an oracle's,
with 95 % bootstraps over seeds; the calibration's own tokens stand beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulated_effects import is_right
from evals.calibrate import Sampled, fit, spend
from ttc import answers
from ttc.allocation import Arm, Kind, allocate
from ttc.core import Message, Problem, Sampling
from ttc.engines.simulated import simulated
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.selection import Select
from ttc.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.majority import majority

PILOT, N = 4, 32
MULTIPLES = (1.5, 2.0)
DRAWS = 1000


def sample(num: int, seed: int, scored: bool) -> list[Sampled]:
    """Draw N samples of so many problems, a fifth of each level."""
    asked = [
        Problem(
            f"{seed}-{i}", (Message("user", f"What is quantity {i} of batch {seed} at level {1 + i % 5}?"),), "number"
        )
        for i in range(num)
    ]
    scorer = simulated_scorer(preset="good")
    strategy = functools.partial(best_of_n, scorer=scorer, n=N) if scored else functools.partial(majority, n=N)

    async def go() -> list[Sampled]:
        found = []
        for problem in asked:
            answer = await solve(
                problem, engine=simulated(), strategy=strategy, seed=seed, sampling=Sampling(max_tokens=4096)
            )
            each = answer.usage.tokens / max(sum(c.num_tokens for c in answer.candidates), 1)
            names: dict[str, str] = {}
            found.append(
                Sampled(
                    tuple(
                        c
                        if c.final is None
                        else _with_final(c, names.setdefault(answers.key(c.final, "number"), f"class{len(names)}"))
                        for c in answer.candidates
                    ),
                    tuple(is_right(problem, c.final) for c in answer.candidates),
                    tuple(c.num_tokens * each for c in answer.candidates),
                )
            )
        return found

    return asyncio.run(go())


def _with_final(candidate: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(candidate, final=name)


def bounds(pools: list[Sampled], tokens: float, seed: int) -> dict[str, float]:
    """Accuracy at so many tokens a problem by knowledge: of nothing, of the difficulty, of the samples themselves."""
    each = [_curve([pool], seed + at) for at, pool in enumerate(pools)]
    levels = [_curve(pools[level::5], seed) for level in range(5)]
    return {
        "uniform": _value([Kind("all", 1.0, _curve(pools, seed))], tokens),
        "difficulty": _value([Kind(str(i), 0.2, arms) for i, arms in enumerate(levels)], tokens),
        "hindsight": _value([Kind(str(i), 1 / len(pools), arms) for i, arms in enumerate(each)], tokens),
    }


def _curve(pools: list[Sampled], seed: int) -> tuple[Arm, ...]:
    """Mean cost and accuracy of each arm over whole pools."""
    sums: dict[tuple[Select, int], list[float]] = {}
    for kind in fit(pools, pilot=PILOT, seed=seed, source={}, prior=0.0).kinds:
        for arm in kind.arms:
            row = sums.setdefault((arm.select, arm.n), [0.0, 0.0])
            row[0] += kind.share * arm.tokens
            row[1] += kind.share * arm.accuracy
    return tuple(Arm(select, n, tokens, accuracy) for (select, n), (tokens, accuracy) in sums.items())


def _value(kinds: list[Kind], tokens: float) -> float:
    found = allocate(kinds, tokens)
    return sum(
        kind.share * ((1 - f.fraction) * f.arm.accuracy + f.fraction * f.more.accuracy)
        for kind in kinds
        for f in [found[kind.name]]
    )


def main() -> None:
    """Run all seeds and print, or save, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--calibration", type=int, default=300, help="problems of the calibration pool")
    parser.add_argument("--test", type=int, default=150, help="problems of the test pool")
    parser.add_argument("--json", type=Path, help="where to save the result")
    args = parser.parse_args()
    rows = []
    for scored in (False, True):
        for multiple in MULTIPLES:
            table = []
            for seed in range(args.seeds):
                train, test = _pools(args.calibration, args.test, seed, scored)
                plan = fit(train, pilot=PILOT, seed=seed, source={})
                base = float(np.mean([np.mean(pool.tokens) for pool in test])) * PILOT
                right, spent = spend(plan, test, base * multiple, seed=seed)
                known = bounds(test, float(np.mean(spent)), seed)
                floor, reached = bounds(test, base * 1.03, seed)["uniform"], float(np.mean(right))
                shares = {name: (reached - floor) / (known[name] - floor) for name in ("difficulty", "hindsight")}
                figures = {"pilot": floor, **known, "auto": reached, "tokens": float(np.mean(spent))}
                table.append({"seed": seed, **figures, "shares": shares, "calibration_tokens": plan.spent})
            row = {"scorer": scored, "budget_in_pilots": multiple, "seeds": table}
            row |= {f"share_of_{name}": _interval([r["shares"][name] for r in table]) for name in shares}
            rows.append(row)
            mean = {name: float(np.mean([r[name] for r in table])) for name in figures}
            print(f"{'scored' if scored else 'votes'} x{multiple}: ", end="")
            print(", ".join(f"{name} {value:.3f}" for name, value in mean.items() if name != "tokens"), end="; ")
            print({name: row[f"share_of_{name}"] for name in shares}, flush=True)
            if args.json:
                args.json.write_text(
                    json.dumps({"problems": vars(args) | {"json": None}, "rows": rows}, indent=1) + "\n"
                )


def _interval(shares: list[float]) -> dict[str, float]:
    rng = np.random.default_rng(0)
    means = [float(np.mean(rng.choice(shares, len(shares)))) for _ in range(DRAWS)]
    low, high = (round(float(q), 3) for q in np.quantile(means, [0.025, 0.975]))
    return {"value": round(float(np.mean(shares)), 3), "low": low, "high": high}


@functools.cache
def _pools(calibration: int, test: int, seed: int, scored: bool) -> tuple[list[Sampled], list[Sampled]]:
    return sample(calibration, 1000 + seed, scored), sample(test, 2000 + seed, scored)


if __name__ == "__main__":
    main()
