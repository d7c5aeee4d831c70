"""The report of one or more runs: a table for stdout, `report.html`, `curve.csv` and `figure.png`.

Everything is drawn from summaries (see `evals.numbers.summary`) and records; no model is needed, so `ttc report` can
rebuild it at any time. Cost: a second or two for 1,000 problems, most of it matplotlib. Left out: servers, and
figures of a run while it is going on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.report.page import render_page
from evals.report.runs import groups, read_runs
from evals.report.table import curve_csv, render_table
from ttc.core import Record
from ttc.durable import replace_text
from ttc.errors import ConfigError

__all__ = ["render_table", "write_report"]


def write_report(out_dir: Path, summaries: Sequence[Mapping[str, Any]], records: Sequence[Sequence[Record]]) -> Path:
    """Write `report.html`, `curve.csv` and `figure.png` into `out_dir`; returns the path of the page.

    Args:
        out_dir: Folder to write into; created when it does not exist.
        summaries: Entries of `summary.json`, one per run.
        records: The records of each entry, in the same order; may be empty lists.

    Raises:
        ConfigError: there is nothing to report, or the two sequences do not match.
        RecordError: a summary entry lacks a field; names it.
    """
    if not summaries:
        raise ConfigError("there is no finished run to report")
    if len(records) != len(summaries):
        raise ConfigError(f"{len(summaries)} summary entries but {len(records)} lists of records")
    runs = read_runs(summaries)
    sections = groups(runs)
    by_label = {run.key: rows for run, rows in zip(runs, records, strict=True)}
    out_dir.mkdir(parents=True, exist_ok=True)
    page = out_dir / "report.html"
    # A lone surrogate in model text has no UTF-8 form; it is shown as "?".
    replace_text(page, render_page(sections, by_label), "replace")
    replace_text(out_dir / "curve.csv", curve_csv(summaries))
    from evals.report.png import write_png  # matplotlib takes a second to import; only here is it needed

    write_png(out_dir / "figure.png", sections)
    return page
