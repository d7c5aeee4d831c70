"""`ttc replay RUN`: other strategies over the samples and scores of a recorded run, exactly and without any model.

    ttc eval --strategy best_of_n --n 64 --out runs/pool                  record a pool once
    ttc replay runs/pool --strategy majority --n 16                       vote over its first 16 samples
    ttc replay runs/pool --strategy best_of_n:select=weighted,aggregation=min,adaptive:n=64 --out runs/replayed

RUN is the folder of one strategy that drew whole samples: majority, or best_of_n where scores are wanted. Without --n,
strategies draw as many as the pool holds. The new folders are runs like any other: compare and report them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.numbers.summary import write_summary
from evals.report import render_table
from evals.runs.replay import open_source, replay_run
from ttc.cli.options import add_options, read_options
from ttc.cli.parts import SEVERAL, StrategyOptions, resolve_budget, resolve_strategies, strategies
from ttc.config.choices import StrategyChoice
from ttc.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(StrategyOptions):
    """The options of `ttc replay`."""

    source: Path
    out: Path | None = None
    strategy: tuple[str, ...] = strategies("majority", SEVERAL)


def register(subparsers: Any) -> None:
    """Add `ttc replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="other strategies over a recorded run, without a model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="RUN", help="a folder of one strategy that ttc eval wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN-replay, a folder each)")
    add_options(parser, ReplayOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay every strategy that is named and print the table; returns 0."""
    options = read_options(ReplayOptions, args)
    if options.scorer is not None:
        raise ConfigError("--scorer has no effect: a replay uses the recorded scores")
    source = open_source(options.source)
    choices = [_sized(choice, source.num_samples) for choice in resolve_strategies(options)]
    budget = resolve_budget(options.budget)
    apart = options.out is None or len(choices) > 1
    out = options.out or options.source.with_name(f"{options.source.resolve().name}-replay")
    entries = []
    for choice in choices:
        folder = out / re.sub(r"[^A-Za-z0-9._-]+", "-", _label(choice, options.n)) if apart else out
        entry, _ = asyncio.run(replay_run(source, choice, folder, budget))
        entries.append({**entry, "records": os.path.relpath(folder, out)})
    out.mkdir(parents=True, exist_ok=True)
    write_summary(out, entries)
    print(render_table(entries))
    print(f"replayed into {out}; report it: ttc report {out}", file=sys.stderr)
    return 0


def _label(choice: StrategyChoice, n: int | None) -> str:
    """The strategy's name with its parameters, those of --n included."""
    return choice.label if n is None or choice.params.get("n") != n else f"{choice.label}-n{n}"


def _sized(choice: StrategyChoice, num_samples: int) -> StrategyChoice:
    """Give a strategy whose n was not said all samples of the pool."""
    if "n" in choice.params or "n" not in choice.all_params():
        return choice
    return replace(choice, params={**choice.params, "n": num_samples})
