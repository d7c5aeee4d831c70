"""The summary of a job on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from distill.report.data import JobData
from distill.report.tables import TABLES, Table

__all__ = ["render"]


def render(job: JobData) -> str:
    """All tables that have rows."""
    spec = job.lock["spec"]
    parts = [f"{spec['name']}: {job.lock['about']}"]
    parts += [_lines(table) for build in TABLES if (table := build(job)).rows]
    return "\n\n".join(parts) + "\n"


def _lines(table: Table) -> str:
    rows: list[Sequence[str]] = [table.head, *table.rows] if any(table.head) else list(table.rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    body = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([table.title, *(f"  {line}" for line in body), *([f"  {table.note}"] if table.note else [])])
