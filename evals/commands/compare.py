"""`ttc compare RUN RUN...`: paired tests between runs.

They compare the problems that the runs share. No model is needed.

    ttc compare runs/first                     all strategies of one evaluation
    ttc compare runs/majority runs/tree        the second minus the first
    ttc compare runs/seed1 runs/seed2          strategies over both seeds, where the runs differ by nothing else

Each line is second minus first in points of accuracy, with its 95 % interval, the exact McNemar p-value, the same after
Holm's correction over all lines, and how much the second spent of the first's tokens and FLOPs. With clusters or
several seeds, both use the effective number of pairs: so many independent pairs would vary as much.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.numbers.compare import RunComparison, Side, compare_all
from evals.numbers.seeds import SummarisedRun, by_seeds
from evals.numbers.summary import IDENTITY, SUMMARY, counted_apart, read_summary, total_usage
from evals.report.runs import labels
from evals.run_folder import CONTENTS, Run, read_run
from ttc.config.values import check_seed, counted


def register(subparsers: Any) -> None:
    """Add `ttc compare`."""
    parser = subparsers.add_parser("compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder that ttc eval wrote (its --out)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the intervals (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON line per comparison instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every comparison; returns 0."""
    check_seed("compare", seed=args.seed)
    runs = _over_seeds([run for folder in args.runs for run in _runs(folder)])
    names = labels([entry for entry, _ in runs])
    full = [
        name if names.count(name) == 1 else f"{name} on {entry['task']}"
        for name, (entry, _) in zip(names, runs, strict=True)
    ]
    sides = [Side(name, records) for name, (_, records) in zip(full, runs, strict=True)]
    note = counted_apart([entry for entry, _ in runs])
    if note:
        print(note, file=sys.stderr)
    comparisons = compare_all(sides, seed=args.seed)
    for comparison in comparisons:
        print(json.dumps(asdict(comparison)) if args.json else _lines(comparison))
    return 0


def _runs(folder: Path) -> list[SummarisedRun]:
    """Return the runs of a folder with their entries: all runs of an evaluation, or the one of an unfinished run."""
    if not (folder / SUMMARY).is_file():
        run = read_run(folder)
        return [(_entry(run), run.records)]
    runs = [(entry, read_run(folder / str(entry.get("records", ".")))) for entry in read_summary(folder)]
    return [({**entry, CONTENTS: run.config.get(CONTENTS)}, run.records) for entry, run in runs]


def _over_seeds(runs: Sequence[SummarisedRun]) -> Sequence[SummarisedRun]:
    """The runs, with those that differ only by their seeds joined; unchanged if that would leave a single run."""
    groups = by_seeds(runs)
    if len(groups) < 2:
        return runs
    return [_pooled(group) for group in groups]


def _pooled(group: Sequence[SummarisedRun]) -> SummarisedRun:
    (entry, records), *others = group
    seeds = [str(one.get("seed")) for one, _ in group]
    own = {**entry, "seed": None, "seeds": seeds} if others else entry
    return own, [*records, *(record for _, more in others for record in more)]


def _entry(run: Run) -> dict[str, Any]:
    """The fields that identify a run, as its summary will have them once it is finished."""
    config = run.config
    sampling, params = config.get("sampling") or {}, config.get("params") or {}
    own = {name: config.get(name) for name in (*IDENTITY, CONTENTS)}
    usage = asdict(total_usage(run.records))
    return {**own, "n": params.get("n"), "temperature": sampling.get("temperature"), "usage": usage}


def _lines(item: RunComparison) -> str:
    seen = "unknown, as nothing differs" if item.detectable is None else f"{100 * item.detectable:.1f} points"
    effective = "" if item.pairs == item.problems else f"; {item.pairs:.1f} effective pairs"
    rows = [
        f"{item.second} minus {item.first}, {counted(item.problems, 'shared problem')}",
        f"  accuracy     {_points(item.difference)} points (95 %: {_points(item.low)} to {_points(item.high)}), "
        f"{100 * item.accuracy_first:.1f} % to {100 * item.accuracy_second:.1f} %",
        f"  McNemar      p = {item.p_value:.3g} ({item.only_second} gained, {item.only_first} lost{effective}), "
        f"Holm p = {item.p_holm:.3g}; detectable with 80 % power: {seen}",
        f"  cost         {_times(item.tokens_ratio)} the tokens, {_times(item.flops_ratio)} the FLOPs",
    ]
    if item.alone_first or item.alone_second:
        numbers = f"{item.alone_first} of {item.first}, {item.alone_second} of {item.second}"
        rows.append(f"  left out     {numbers}: the other run has no record of these problems")
    if item.failed_first or item.failed_second:
        failures = f"{item.failed_first} of {item.first}, {item.failed_second} of {item.second}"
        rows.append(f"  failed       {failures}: counted as not right; ttc eval --retry-errors makes them again")
    if item.undecided_first or item.undecided_second:
        numbers = f"{item.undecided_first} of {item.first}, {item.undecided_second} of {item.second}"
        rows.append(f"  no verdict   {numbers}: counted as not right; ttc eval --retry-errors judges them again")
    equal = item.equal_flops
    if equal is not None:
        rows.append(
            f"  equal FLOPs  {_points(equal.difference)} points (95 %: {_points(equal.low)} to {_points(equal.high)}) "
            f"over the vote of {equal.k} of {item.first}'s samples, at {equal.flops_ratio:.2f}x their FLOPs"
        )
    if item.needed_n is not None:
        rows.append(f"  equal FLOPs  not in these runs: {item.first} would need n = {item.needed_n} to spend as much")
    return "\n".join(rows) + "\n"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _times(ratio: float | None) -> str:
    return "no known share of" if ratio is None else f"{ratio:.2f}x"
