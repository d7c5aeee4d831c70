"""`ttc calibrate RUN`: fit the plan of the strategy `auto` to a recorded run; needs no model.

    ttc eval --strategy best_of_n --n 64 --limit 300 --out runs/pool      a pool, once
    ttc calibrate runs/pool --out plan.json                               what each state is worth
    ttc eval --strategy auto --set plan=plan.json --set tokens=1500       spend 1,500 tokens a problem, on average

The pool is a run of majority, of best_of_n where auto is to use the scorer as well, or of tree with policy=dvts, whose
subtrees auto then draws. The table says what the plan is
worth at several budgets, cross-fitted, beside the vote of equally many samples for every problem.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from evals.calibrate import fit, halves, read_pools, worth
from evals.run import digest, read_run
from evals.statistics import mean_interval
from ttc.planning import save_plan

BUDGETS = (1, 2, 4, 8, 16)
"""Rows of the table, in samples a problem."""
MIN_POOLS = 4
"""Two problems in each half."""


def register(subparsers: Any) -> None:
    """Add `ttc calibrate`."""
    parser = subparsers.add_parser(
        "calibrate",
        help="fit the plan of the strategy auto to a recorded run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="RUN", help="a folder of one strategy that ttc eval wrote")
    parser.add_argument("--out", type=Path, default=Path("plan.json"), metavar="FILE", help="default: plan.json")
    parser.add_argument("--pilot", type=int, default=1, help="draws that every problem gets (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random orders (default: 0)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the plan and print what it is worth; returns 0."""
    pools, width = read_pools(args.source)
    source = {"run": digest(read_run(args.source).config)}
    plan = fit(pools, pilot=args.pilot, width=width, seed=args.seed, source=source)
    save_plan(plan, args.out)
    states = sum(len(rung) for rung in plan.rungs)
    print(f"{len(pools)} problems, {states} states, {plan.spent:,} tokens of calibration: {args.out}")
    if len(pools) < MIN_POOLS:
        print(f"  fewer than {MIN_POOLS} problems: what the plan is worth cannot be cross-fitted", file=sys.stderr)
        return 0
    one = plan.first / plan.ladder[0]
    least = max(half.first for half, _ in halves(pools, seed=args.seed, pilot=args.pilot))
    for samples in BUDGETS:
        if not plan.ladder[0] <= samples <= plan.ladder[-1]:
            continue
        tokens = 1.02 * max(one * samples, least)
        right, spent = worth(pools, tokens, pilot=args.pilot, seed=args.seed)
        found = mean_interval(right, range(len(right)), seed=args.seed)
        print(
            f"  tokens={tokens:7.0f}  accuracy {100 * found.value:.1f} % "
            f"({100 * found.low:.1f} to {100 * found.high:.1f}), {sum(spent) / len(spent):.0f} tokens spent"
        )
    return 0
