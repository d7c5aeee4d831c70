"""The page of a job: one self-contained HTML file without scripts, in the style of the other reports.

No date, no machine name and no path is in it: the same job gives the same bytes. Texts of problems are escaped.
"""

from __future__ import annotations

from distill.report.charts import charts
from distill.report.data import JobData
from distill.report.tables import TABLES, Table
from evals.report.svg import element, text
from train.report.page import document

__all__ = ["render_page"]


def render_page(job: JobData) -> str:
    """Return the whole page."""
    spec = job.lock["spec"]
    facts = [f"method {spec['method']}", f"seed {spec['seed']}", f"n {spec['n']}", f"version {job.lock['version']}"]
    intro = [
        element("p", "distillation job", class_="eyebrow"),
        element("h1", text(spec["name"])),
        element("p", text(job.lock["about"])),
        element("ul", *(element("li", text(fact)) for fact in facts), class_="facts"),
    ]
    body = element("main", *intro, *(_section(build(job)) for build in TABLES), charts(job))
    return document(f"ttc distillation report: {spec['name']}", body)


def _section(table: Table) -> str:
    if not table.rows:
        return ""
    head = element("tr", *(element("th", text(name), scope="col") for name in table.head)) if any(table.head) else ""
    rows = [
        element("tr", element("th", text(row[0]), scope="row"), *(element("td", text(cell)) for cell in row[1:]))
        for row in table.rows
    ]
    grid = element("table", element("thead", head) if head else "", element("tbody", *rows), class_="summary")
    note = element("p", text(table.note), class_="note") if table.note else ""
    return element("section", element("h2", text(table.title)), element("div", grid, class_="card scroll"), note)
