"""The report of evaluations, and the kit that all reports are made of."""

from evals.report.page import render_table, write_report

__all__ = ["render_table", "write_report"]
