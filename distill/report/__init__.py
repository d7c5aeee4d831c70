"""What a job did, as text and as one self-contained page: funnel, data, cost, before and after."""

from __future__ import annotations

from pathlib import Path

from distill.report.page import render_page
from distill.report.tables import read_job, render
from ttc.durable import replace_text

__all__ = ["render_text", "write_page"]


def render_text(folder: Path) -> str:
    """The summary of a job folder, which may still be going on."""
    return render(read_job(folder))


def write_page(folder: Path, out: Path | None) -> Path:
    """Write the page of a job and return its path; JOB/report.html by default."""
    path = out or folder / "report.html"
    replace_text(path, render_page(read_job(folder)))
    return path
