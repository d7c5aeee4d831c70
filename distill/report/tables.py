"""The tables of a report, as texts: the same for the terminal and for the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from distill.measure.measured import HEAD, compared, recoveries, share
from distill.report.data import JobData
from evals.numbers.statistics import mean_interval

__all__ = ["TABLES", "Table"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names, rows of texts, and a sentence below."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def funnel(job: JobData) -> Table:
    """From problems to rows, with the reasons."""
    found = job.funnel or {"prompts": [], "answers": [], "rows": 0}
    stages = [*found["prompts"], *found["answers"]]
    rows = [
        (s["name"], f"{s['came']:,}", f"{s['kept']:,}", ", ".join(f"{n:,} {why}" for why, n in s["reasons"].items()))
        for s in stages
    ]
    return Table("Funnel", ("stage", "came", "kept", "dropped because"), rows, f"{found['rows']:,} rows to learn from")


def by_difficulty(job: JobData) -> Table:
    """The teachers' pass rate by difficulty, with intervals over problems."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for sample in job.samples:
        groups.setdefault((sample["teacher"], str(sample["difficulty"] or "")), []).append(sample)
    rows = []
    for (teacher, level), samples in sorted(groups.items(), key=lambda entry: (entry[0][0], _natural(entry[0][1]))):
        right = [float(sample["status"] == "correct") for sample in samples]
        rate = mean_interval(right, [sample["prompt"] for sample in samples], seed=job.seed)
        rows.append((teacher, level or "all", f"{len(samples):,}", share(rate)))
    return Table("Pass rate by difficulty", ("teacher", "difficulty", "answers", "correct % (95 %)"), rows)


def lengths(job: JobData) -> Table:
    """Tokens of an answer by verdict and mode."""
    groups: dict[tuple[str, str], list[int]] = {}
    for sample in job.samples:
        status = "cut" if sample["finish"] != "stop" else str(sample["status"])
        groups.setdefault((status, sample["mode"]), []).append(sample["tokens"])
    rows = [
        (status, mode, f"{len(found):,}", f"{mean(found):,.1f}", f"{median(found):,.0f}", f"{max(found):,}")
        for (status, mode), found in sorted(groups.items())
    ]
    return Table("Length by verdict", ("verdict", "mode", "answers", "mean", "median", "longest"), rows, "tokens")


def balance(job: JobData) -> Table:
    """How many rows each prompt has."""
    counts = Counter(row["prompt"] for row in job.lineage)
    asked = len({sample["prompt"] for sample in job.samples if sample["label"] != "probe"})
    per = Counter(counts.values())
    rows = [(str(size), f"{number:,}") for size, number in sorted(per.items())]
    if asked > len(counts):
        rows.insert(0, ("0", f"{asked - len(counts):,}"))
    return Table("Rows per prompt", ("rows", "prompts"), rows)


def contaminated(job: JobData) -> Table:
    """Prompts that were not asked, with what they share with measured ones."""
    rows = [(line["domain"], line["problem"], line["reason"]) for line in job.prompts[:20]]
    note = f"{len(job.prompts):,} in all; detectors: equal texts, a shared run of 13 words" if job.prompts else ""
    return Table("Problems that were not asked", ("domain", "problem", "reason"), rows, note)


def cost(job: JobData) -> Table:
    """What the teachers cost, per kept token and per solved prompt; failed and repeated calls are in it."""
    by_teacher: dict[str, list[Mapping[str, Any]]] = {}
    for sample in job.samples:
        by_teacher.setdefault(sample["teacher"], []).append(sample)
    digests: Mapping[str, str] = job.lock["fixed"]["teachers"]
    used = {parent for row in job.lineage for parent in row["parents"]}
    rows = []
    for teacher, samples in by_teacher.items():
        usage = job.totals["usage"].get(digests.get(teacher, ""), {})
        spent = _tokens(usage) if usage else sum(sample["spent"] for sample in samples)
        kept = sum(sample["tokens"] for sample in samples if sample["key"] in used)
        solved = len({sample["prompt"] for sample in samples if sample["status"] == "correct"})
        rows.append((teacher, f"{spent:,}", f"{usage.get('flops', 0.0):.3g}", _per(spent, kept), _per(spent, solved)))
    return Table("Cost", ("teacher", "tokens", "FLOPs", "per kept token", "per solved prompt"), rows,
                 "tokens generated, judged and newly scored")  # fmt: skip


def before_after(job: JobData) -> Table:
    """Start, student and teachers on every measured task."""
    measured = job.measured
    if not measured:
        return Table("Before and after", HEAD, ())
    rows = [line.cells for line in compared(measured, job.seed)]
    told = [
        f"the student has {100 * value:.0f} % of the teacher's gain on {task}"
        for task, value in recoveries(measured).items()
        if not math.isnan(value)
    ]
    own = [f"{name} {before:.3g} -> {measured['student'].own.get(name, math.nan):.3g}"
           for name, before in measured["start"].own.items()]  # fmt: skip
    return Table("Before and after", HEAD, rows, "; ".join([*told, *own]))


def gates(job: JobData) -> Table:
    """Every declared gate."""
    checks = job.result["checks"] if job.result else []
    rows = [("pass" if check["passed"] else "FAIL", check["gate"], check["text"]) for check in checks]
    return Table("Gates", ("", "gate", "measured"), rows)


def audit(job: JobData) -> Table:
    """What the audit of the rows found."""
    found = job.result["audit"] if job.result else None
    if found is None:
        return Table("Rows", (), ())
    rows = [
        ("rows", f"{found['num_rows']:,}"),
        ("tokens to learn", f"{found['num_tokens']:,}"),
        ("with their stop token", f"{100 * found['stop_share']:.1f} %"),
        ("longest, with its prompt", f"{found['longest']:,} tokens"),
    ]
    return Table("Rows", ("", ""), rows)


TABLES: Sequence[Callable[[JobData], Table]] = (
    before_after, gates, funnel, cost, by_difficulty, lengths, audit, balance, contaminated,
)  # fmt: skip


def _tokens(usage: Mapping[str, Any]) -> int:
    return int(usage["generated"] + usage["judged"] + usage["scored"])


def _per(tokens: int, count: int) -> str:
    return f"{tokens / count:,.1f}" if count else "none"


def _natural(text: str) -> tuple[int, float, str]:
    return (0, float(text), "") if text.replace(".", "", 1).isdecimal() else (1, 0.0, text)
