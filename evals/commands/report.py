"""`ttc report RUN [RUN…]`: write the report of runs again, without a model.

These are the table, report.html, curve.csv and figure.png, .svg and .pdf of finished or interrupted runs. The numbers
are those of each run's summary.json; a run without a summary, with records newer than its summary, or with intervals of
an older version is summarised again from its records.

    ttc report runs/seed1 runs/seed2 runs/seed3 --out runs/all

Runs that differ only by --seed are one row: each problem counts with its share of right answers, so the interval covers
both problems and draws; costs are those of one run. --per-seed gives each a row of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc.cli.parts import check_writable
from ttc.config.values import counted
from ttc.core import Prices, Record
from ttc.errors import ConfigError

if TYPE_CHECKING:
    from evals.numbers.seeds import SummarisedRun
    from evals.run_folder import Run


def register(subparsers: Any) -> None:
    """Add the sub-command `report`."""
    parser = subparsers.add_parser("report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder that ttc eval wrote (its --out)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: into RUN; needed when there are several)"
    )
    parser.add_argument("--per-seed", action="store_true", help="a row for each seed of runs that differ by it alone")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report, print its table (and where the page is, on stderr); returns 0."""
    out = _out_dir(args.out, args.runs)
    check_writable("--out", out)
    pairs: list[SummarisedRun] = [pair for folder in args.runs for pair in load(folder)]
    from evals.numbers.seeds import by_seeds, over_seeds
    from evals.numbers.summary import counted_apart
    from evals.report import render_table, write_report
    from evals.report.runs import by_seed, read_runs

    if not args.per_seed:
        pairs = [
            row
            for group in by_seeds(pairs)  # where one was interrupted, its problems would count for more
            for row in ([over_seeds(group)] if len({entry["problems"] for entry, _ in group}) == 1 else group)
        ]
    summaries, records = [entry for entry, _ in pairs], [rows for _, rows in pairs]
    page = write_report(out, summaries, records, partial(print, file=sys.stderr))
    print(render_table(summaries))
    if counted_apart(summaries):
        print(counted_apart(summaries), file=sys.stderr)
    for text in filter(None, map(by_seed, read_runs(summaries))):
        print(text, file=sys.stderr)
    print(f"report: {page}", file=sys.stderr)
    return 0


def load(folder: Path) -> list[tuple[dict[str, Any], Sequence[Record]]]:
    """Return (summary entry, records) of every run in `folder`.

    Raises:
        ConfigError: `folder` is no run folder.
        RecordError: a file in it is broken.
    """
    from evals.numbers.summary import SUMMARY, read_summary, summarise
    from evals.run_folder import CONTENTS, read_run

    if (folder / SUMMARY).is_file():
        pairs = [(entry, read_run(folder / str(entry.get("records", ".")))) for entry in read_summary(folder)]
        return [({**_up_to_date(entry, run), CONTENTS: run.config.get(CONTENTS)}, run.records) for entry, run in pairs]
    run = read_run(folder)
    if not run.records:
        raise ConfigError(f"{folder} holds no records yet; give the command that began the run again")
    return [({**summarise(run.records, run.config), CONTENTS: run.config.get(CONTENTS)}, run.records)]


def _up_to_date(entry: dict[str, Any], run: Run) -> dict[str, Any]:
    """The entry of a run, summarised again where it is out of date.

    It is where its records are newer (more, retried or judged again), or its intervals are those of an older version.
    """
    from evals.numbers.statistics import METHOD
    from evals.numbers.summary import summarise, with_dollars

    errors = sum(record.error is not None for record in run.records)
    verdicts = Counter(record.verdict.status for record in run.records if record.verdict is not None)
    there = (entry.get("problems"), entry.get("errors"), entry.get("verdicts", verdicts))
    is_whole = there == (len(run.records), errors, verdicts)
    if not run.records:
        print(f"{run.folder} has no records any more: the numbers are those of its summary", file=sys.stderr)
        return entry
    if is_whole and entry.get("intervals") == METHOD:
        return entry
    if not is_whole:
        print(
            f"{run.folder} has gone on since it was summarised: the numbers are those of the "
            f"{counted(len(run.records), 'problem')} that it holds now",
            file=sys.stderr,
        )
    stated = entry.get("prices")
    prices = None if stated is None else Prices(stated["in"], stated["out"])
    own: dict[str, Any] = {name: entry[name] for name in ("model", "records") if name in entry}
    return with_dollars({**summarise(run.records, run.config), **own}, prices)


def _out_dir(out: Path | None, runs: Sequence[Path]) -> Path:
    if out is not None:
        return out
    if len(runs) > 1:
        raise ConfigError("with several runs, say where to write the report: --out DIR")
    return runs[0]
