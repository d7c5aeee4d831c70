"""`ttc train report RUN`: a dashboard of a training run in one HTML file, and a summary in plain text.

Everything is read from the run's folder (metrics, held-out outcomes, alarms, rollouts), while the run goes on or after
it; no model is loaded. Cost: a second or two. Left out: a server, and more than one run on a page.
"""

from __future__ import annotations

from pathlib import Path

from train.report.data import RunData, read_run
from train.report.page import render_outcome, render_page, render_summary
from ttc.durable import replace_text

__all__ = ["RunData", "read_run", "render_outcome", "render_summary", "write_report"]


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write `report.html` of the run in `run`; returns its path (in the run's folder unless `out` says where).

    Raises:
        ConfigError: `run` is not a training run, or has not logged anything yet.
        RecordError: a line of its files is broken.
    """
    path, page = out or run / "report.html", render_page(read_run(run))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, page, "replace")
    return path
