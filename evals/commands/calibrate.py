"""`ttc calibrate RUN...`: fit the plan of the strategy `auto` to recorded runs.

No model is needed.

    ttc eval --strategy best_of_n --n 64 --limit 300 --problems-seed 1 --out runs/pool     a pool, once
    ttc calibrate runs/pool --out plan.json                               what each state is worth
    ttc eval --strategy auto --set plan=plan.json --set tokens=1500       spend 1,500 tokens a problem, on average

A pool is a run of majority; of best_of_n, if auto is to use the scorer as well; or of tree with policy=dvts (or with
islands=M of a policy that grows level by level), whose independent parts auto then draws. With pools of several
strategies on the same problems, the plan picks among the strategies by budget; with a run of one sample a problem at
temperature 0, it begins with the greedy answer. The table says what the plan is worth at several budgets, cross-fitted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.allocation.calibrate import Pools, fit, halves, read_pools, routes, worth
from evals.numbers.statistics import mean_interval
from evals.numbers.summary import cluster_of
from evals.run_folder import CONTENTS, digest, read_run
from ttc.allocation.plan import Plan, questions_of, save_plan, weights_in
from ttc.cli.parts import check_writable
from ttc.config.values import at_least, check_seed, counted
from ttc.errors import ConfigError

ROWS, MARGIN = 12, 1.02
"""Rows of the table. Each has twice the tokens of the one before; the first is a little above the cheapest answer."""
MIN_POOLS = 4
"""Two problems, or two clusters of problems, in each half."""


def register(subparsers: Any) -> None:
    """Add `ttc calibrate`."""
    parser = subparsers.add_parser("calibrate", description=__doc__)
    parser.add_argument("sources", type=Path, nargs="+", metavar="RUN", help="run folders of one strategy each")
    parser.add_argument("--out", type=Path, default=Path("plan.json"), metavar="FILE", help="default: plan.json")
    parser.add_argument("--pilot", type=int, default=1, help="draws that every problem gets (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random orders (default: 0)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the plan and print what it is worth; returns 0."""
    check_seed("calibrate", seed=args.seed)
    at_least("calibrate", 1, pilot=args.pilot)
    if args.out.is_dir():
        raise ConfigError(f"--out {args.out} is a folder; name a file: --out {args.out / 'plan.json'}")
    check_writable("--out", args.out.parent)
    runs = [read_pools(source) for source in args.sources]
    recorded = [read_run(source) for source in args.sources]
    configs = [run.config for run in recorded]
    records = [record for run in recorded for record in run.records]
    clusters = {record.problem.id: cluster_of(record) for record in records}
    weights = {sha for config in configs for sha in weights_in(config.get(CONTENTS) or {})}
    source = {
        "runs": [digest(config) for config in configs],
        "weights": sorted(weights),
        "drawn": [{name: config.get(name) for name in ("sampling", "thinking")} for config in configs],
        "problems": sorted(questions_of(record.problem for record in records)),
    }
    plan = fit(runs, pilot=args.pilot, seed=args.seed, source=source)
    save_plan(plan, args.out)
    _tell(args.out, plan, runs, clusters, pilot=args.pilot, seed=args.seed)
    return 0


def _tell(out: Path, plan: Plan, runs: Sequence[Pools], clusters: Mapping[str, str], *, pilot: int, seed: int) -> None:
    """Print what the plan holds and what it is worth; `clusters` are those of all problems of the runs."""
    problems = routes(runs)[0].by_id
    states = sum(len(rung) for route in plan.routes for rung in route.rungs)
    print(
        f"{counted(len(problems), 'problem')}, {counted(len(plan.routes), 'route')}, {counted(states, 'state')}, "
        f"{counted(plan.spent, 'token')} of calibration: {out}"
    )
    if len(problems) < len(clusters):
        left_out = counted(len(clusters) - len(problems), "problem")
        print(f"  left out: {left_out} that failed or are not in all of these runs", file=sys.stderr)
    if len({clusters[name] for name in problems}) < MIN_POOLS:
        few = f"fewer than {MIN_POOLS} problems, variants of one counted once"
        print(f"  {few}: what the plan is worth cannot be cross-fitted", file=sys.stderr)
        return
    least = max(half.first for half, _ in halves(runs, seed=seed, pilot=pilot))
    most = max(pools.spent for pools in routes(runs)) / len(problems)
    for tokens in (MARGIN * least * 2**i for i in range(ROWS)):
        if tokens > MARGIN**2 * most:
            break
        right, spent = worth(runs, tokens, pilot=pilot, seed=seed)
        accuracy = mean_interval(right, [clusters[name] for name in problems], seed=seed)
        print(
            f"  tokens={tokens:7.0f}  accuracy {100 * accuracy.value:.1f} % "
            f"({100 * accuracy.low:.1f} to {100 * accuracy.high:.1f}), {sum(spent) / len(spent):.0f} tokens spent"
        )
