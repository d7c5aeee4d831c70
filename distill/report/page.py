"""The page of a job: one self-contained HTML file without scripts, in the style of the other reports.

It has no date, machine name or path: the same job gives the same bytes. Texts of problems are escaped.
"""

from __future__ import annotations

from pathlib import Path

from distill.report.tables import TABLES, JobData, Table, pass_rates, read_job
from evals.numbers.statistics import Interval
from evals.report.kit import bullets, document, element, interval, percent, text, text_table
from evals.report.lines import Bar, Series, line_chart, panel
from ttc.durable import replace_text


def write_page(folder: Path, out: Path | None) -> Path:
    """Write the page of a job and return its path; JOB/report.html by default."""
    path, page = out or folder / "report.html", render_page(read_job(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, page)
    return path


def render_page(job: JobData) -> str:
    """Return the whole page."""
    spec = job.lock["spec"]
    facts = [f"method {spec['method']}", f"seed {spec['seed']}", f"n {spec['n']}", f"version {job.lock['version']}"]
    intro = [
        element("p", text(f"distillation · {spec['name']}"), class_="eyebrow"),
        element("h1", text(headline(job) or spec["name"])),
        element("p", text(job.lock["about"])),
        bullets(facts),
    ]
    body = element("main", *intro, *(_section(build(job)) for build in TABLES), charts(job))
    return document(f"ttc distillation report: {spec['name']}", body)


def _section(table: Table) -> str:
    if not table.rows:
        return ""
    grid = text_table(table.head, table.rows, "summary")
    note = element("p", text(table.note), class_="note") if table.note else ""
    return element("section", element("h2", text(table.title)), element("div", grid, class_="card scroll"), note)


def headline(job: JobData) -> str:
    """One sentence: the student on the first measured task, before and after, and its teachers; empty without one."""
    models = job.measured
    task = next(iter(models["start"].tasks), None) if "start" in models and "student" in models else None
    if task is None:
        return ""
    rates = {who: _rate(model.tasks[task].interval(job.seed)) for who, model in models.items() if task in model.tasks}
    student, start = rates.pop("student"), rates.pop("start")
    others = "".join(f"; {who} answers {rate}" for who, rate in rates.items())
    return f"The student answers {student} of {task}; it began at {start}{others}."


def _rate(accuracy: Interval) -> str:
    """56.9 % (53.9–59.9)."""
    return f"{percent(accuracy.value)} ({interval(accuracy.low, accuracy.high)})"


def charts(job: JobData) -> str:
    """Panels, side by side; empty where there is nothing to draw."""
    both = _passed(job), _losses(job)
    drawn = [(title, series, line_chart(title, series, share=shares)) for title, series, shares in both]
    panels = [panel(title, chart, series) for title, series, chart in drawn if chart]
    return element("section", element("div", *panels, class_="panels")) if panels else ""


def _passed(job: JobData) -> tuple[str, list[Series], bool]:
    """The share of right answers of each teacher, by difficulty where that is a number."""
    bars: dict[str, list[Bar]] = {}
    for teacher, level, _, rate in pass_rates(job):
        if level.isdecimal():
            bars.setdefault(teacher, []).append(Bar(int(level), rate.value, rate.low, rate.high))
    series = [Series(teacher, [(float(bar.step), bar.value) for bar in own], own) for teacher, own in bars.items()]
    return "Pass rate by difficulty", series, True


def _losses(job: JobData) -> tuple[str, list[Series], bool]:
    series = [
        Series(f"{stage}: {metric.replace('_', ' ')}", points)
        for stage, rows in job.training.items()
        for metric in ("loss", "held_out_loss")
        if (points := [(float(row["step"]), float(row[metric])) for row in rows if metric in row])
    ]
    return "Loss of training, nats per token", series, False
