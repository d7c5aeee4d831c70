"""The charts of a report: pass rate by difficulty, and the loss of training."""

from __future__ import annotations

from distill.report.data import JobData
from evals.numbers.statistics import mean_interval
from evals.report.svg import element, text
from train.report.chart import Bar, Series, line_chart

__all__ = ["charts"]


def charts(job: JobData) -> str:
    """Panels, side by side; empty where there is nothing to draw."""
    drawn = [_panel(title, chart) for title, chart in (_passed(job), _losses(job)) if chart]
    return element("section", element("div", *drawn, class_="panels")) if drawn else ""


def _passed(job: JobData) -> tuple[str, str]:
    """The share of right answers of each teacher, by difficulty where that is a number."""
    groups: dict[str, dict[int, list[tuple[float, str]]]] = {}
    for sample in job.samples:
        named = str(sample["difficulty"] or "")
        if named.isdecimal():
            right = float(sample["status"] == "correct")
            groups.setdefault(sample["teacher"], {}).setdefault(int(named), []).append((right, sample["prompt"]))
    series = []
    for teacher, levels in groups.items():
        bars = []
        for level, found in sorted(levels.items()):
            rate = mean_interval([right for right, _ in found], [prompt for _, prompt in found], seed=job.seed)
            bars.append(Bar(level, rate.value, rate.low, rate.high))
        series.append(Series(teacher, [(float(bar.step), bar.value) for bar in bars], bars))
    title = "Pass rate by difficulty"
    return title, line_chart(title, series, share=True)


def _losses(job: JobData) -> tuple[str, str]:
    series = [
        Series(f"{stage}: {metric.replace('_', ' ')}", points)
        for stage, rows in job.training.items()
        for metric in ("loss", "held_out_loss")
        if (points := [(float(row["step"]), float(row[metric])) for row in rows if metric in row])
    ]
    return "Loss of training, nats per token", line_chart("Loss of training", series)


def _panel(title: str, chart: str) -> str:
    return element("figure", element("figcaption", element("b", text(title))), chart, class_="card panel")
