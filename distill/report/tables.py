"""The content of a report on a job folder, finished or not: tables of texts for both the terminal and the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any

from distill.data.dataset import DATA, FUNNEL, LINEAGE, PROMPTS, SAMPLES, read_json, read_lines, read_rows
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.measure.measured import HEAD, Measured, compared, recoveries, share, unjudged_lines
from distill.plan.lock import read_lock
from evals.numbers.statistics import Interval, mean_interval
from evals.report.kit import quantity
from train.base.stage import last_attempt
from train.recipe.run import stage_folders
from ttc.config.values import counted
from ttc.core import Usage


@dataclass(frozen=True, slots=True)
class JobData:
    """Everything a report shows. `samples`, `lineage`, `prompts` are the lines of the files of those names.

    `result` is None before the job is finished; `totals` are the ledger's; `training` is the metrics of each stage of
    the finished training.
    """

    lock: Mapping[str, Any]
    totals: Mapping[str, Any]
    funnel: Mapping[str, Any] | None
    samples: Sequence[Mapping[str, Any]]
    lineage: Sequence[Mapping[str, Any]]
    prompts: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any] | None
    training: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def seed(self) -> int:
        """The seed of the intervals."""
        return int(self.lock["spec"]["seed"])

    @property
    def measured(self) -> dict[str, Measured]:
        """What was measured, by who; empty before the job is finished."""
        if self.result is None:
            return {}
        return {who: Measured.from_json(numbers) for who, numbers in self.result["measured"].items()}


def read_job(folder: Path) -> JobData:
    """Read a job folder; raises ConfigError when it is none."""
    lock = read_lock(folder)
    totals: Mapping[str, Any] = {}
    if (folder / LEDGER).is_file():
        with AnswerLedger(folder / LEDGER) as ledger:
            totals = ledger.totals()
    data = folder / DATA
    there = (data / FUNNEL).is_file()
    counts = read_json(data / FUNNEL, "prompts", "answers", "rows") if there else None
    path = folder / "result.json"
    result = read_json(path, "measured", "checks", "training") if path.is_file() else None
    return JobData(
        lock,
        totals,
        counts,
        read_lines(data / SAMPLES) if there else (),
        () if counts is None else read_rows(data / LINEAGE, counts["rows"]),
        read_lines(data / PROMPTS) if there else (),
        result,
        {} if result is None else _training(folder / "train" / result["training"]),
    )


def _training(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Metrics by the name of the stage."""
    paths = {stage.name: stage / "metrics.jsonl" for stage in stage_folders(run)}
    return {name: last_attempt(read_lines(path)) for name, path in paths.items() if path.is_file()}


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
    counts = job.funnel or {"prompts": [], "answers": [], "rows": 0}
    stages = [*counts["prompts"], *counts["answers"]]
    rows = [
        (s["name"], f"{s['came']:,}", f"{s['kept']:,}", ", ".join(f"{n:,} {why}" for why, n in s["reasons"].items()))
        for s in stages
    ]
    note = f"{counted(counts['rows'], 'row')} to learn from"
    return Table("Funnel", ("stage", "came", "kept", "dropped because"), rows, note)


def pass_rates(job: JobData) -> list[tuple[str, str, int, Interval]]:
    """(teacher, difficulty, answers, share of right ones with its interval over problems), easy problems first."""
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for sample in job.samples:
        groups.setdefault(sample["teacher"], {}).setdefault(str(sample["difficulty"] or ""), []).append(sample)
    rates = []
    for teacher, levels in groups.items():
        for level, samples in sorted(levels.items(), key=lambda entry: _natural(entry[0])):
            right = [float(sample["status"] == "correct") for sample in samples]
            rate = mean_interval(right, [sample["prompt"] for sample in samples], seed=job.seed)
            rates.append((teacher, level, len(samples), rate))
    return rates


def by_difficulty(job: JobData) -> Table:
    """The teachers' pass rate by difficulty."""
    rates = sorted(pass_rates(job), key=itemgetter(0))
    rows = [(teacher, level or "all", f"{count:,}", share(rate)) for teacher, level, count, rate in rates]
    return Table("Pass rate by difficulty", ("teacher", "difficulty", "answers", "correct % (95 %)"), rows)


def lengths(job: JobData) -> Table:
    """Tokens of an answer by verdict and mode."""
    groups: dict[tuple[str, str], list[int]] = {}
    for sample in job.samples:
        status = "cut" if sample["finish"] != "stop" else str(sample["status"])
        groups.setdefault((status, sample["mode"]), []).append(sample["tokens"])
    rows = [
        (status, mode, f"{len(tokens):,}", f"{mean(tokens):,.1f}", f"{median(tokens):,.0f}", f"{max(tokens):,}")
        for (status, mode), tokens in sorted(groups.items())
    ]
    return Table("Length by verdict", ("verdict", "mode", "answers", "mean", "median", "longest"), rows, "tokens")


def balance(job: JobData) -> Table:
    """How many rows each prompt has."""
    counts = Counter(row["prompt"] for row in job.lineage)
    num_prompts = len({sample["prompt"] for sample in job.samples if sample["label"] != "probe"})
    per = Counter(counts.values())
    rows = [(str(size), f"{number:,}") for size, number in sorted(per.items())]
    if num_prompts > len(counts):
        rows.insert(0, ("0", f"{num_prompts - len(counts):,}"))
    return Table("Rows per prompt", ("rows", "prompts"), rows)


def contaminated(job: JobData) -> Table:
    """Prompts that were not asked, with the text that they share with measured ones."""
    rows = [(line["domain"], line["problem"], line["reason"]) for line in job.prompts[:20]]
    note = f"{len(job.prompts):,} in all; detectors: equal texts, a shared run of 13 words" if job.prompts else ""
    return Table("Problems that were not asked", ("domain", "problem", "reason"), rows, note)


def cost(job: JobData) -> Table:
    """What the teachers cost, per kept token and per solved prompt, failed and repeated calls included."""
    by_teacher: dict[str, list[Mapping[str, Any]]] = {}
    for sample in job.samples:
        by_teacher.setdefault(sample["teacher"], []).append(sample)
    digests: Mapping[str, str] = job.lock["fixed"]["teachers"]
    parents = {parent for row in job.lineage for parent in row["parents"]}
    rows = []
    for teacher, samples in by_teacher.items():
        usage = job.totals["usage"].get(digests.get(teacher, ""), {})
        tokens = Usage(**usage).tokens if usage else sum(sample["spent"] for sample in samples)
        kept_tokens = sum(sample["tokens"] for sample in samples if sample["key"] in parents)
        solved = len({sample["prompt"] for sample in samples if sample["status"] == "correct"})
        flops = usage.get("flops") or None  # a server does not tell
        rows.append((teacher, f"{tokens:,}", quantity(flops), _per(tokens, kept_tokens), _per(tokens, solved)))
    return Table("Cost", ("teacher", "tokens", "FLOPs", "per kept token", "per solved prompt"), rows,
                 "tokens generated, judged and newly scored")  # fmt: skip


def training(job: JobData) -> Table:
    """What training took, by stage: tokens that the student wrote, that teachers read of these, and learnt ones."""
    rows = []
    for name, lines in job.training.items():
        updates = [line for line in lines if line["step"]]
        draws = max((int(line.get("tokens", 0)) for line in updates), default=0)
        by_teachers = (value for line in updates for key, value in line.items() if key.startswith("teacher_tokens/"))
        numbers = (draws, sum(by_teachers), sum(line.get("tokens_learnt", 0.0) for line in updates))
        rows.append((name, f"{len(updates):,}", *(f"{int(number):,}" if number else "–" for number in numbers)))
    return Table("Training", ("stage", "updates", "tokens drawn", "read by teachers", "learnt"), rows)


def before_after(job: JobData) -> Table:
    """Start, student and teachers on every measured task."""
    by_model = job.measured
    if not by_model:
        return Table("Before and after", HEAD, ())
    rows = compared(by_model, job.seed)
    gains = [
        f"the student has {100 * value:.0f} % of the teacher's gain on {task}"
        for task, value in recoveries(by_model).items()
        if not math.isnan(value)
    ]
    own = [f"{name} {before:.3g} -> {by_model['student'].own.get(name, math.nan):.3g}"
           for name, before in by_model["start"].own.items()]  # fmt: skip
    return Table("Before and after", HEAD, rows, "; ".join([*gains, *own, *unjudged_lines(by_model)]))


def gates(job: JobData) -> Table:
    """Every declared gate."""
    checks = job.result["checks"] if job.result else []
    rows = [("pass" if check["passed"] else "FAIL", check["gate"], check["text"]) for check in checks]
    return Table("Gates", ("", "gate", "measured"), rows)


def audit(job: JobData) -> Table:
    """The findings of the audit of the rows."""
    summary = job.result["audit"] if job.result else None
    if summary is None:
        return Table("Rows", (), ())
    rows = [
        ("rows", f"{summary['num_rows']:,}"),
        ("tokens to learn", f"{summary['num_tokens']:,}"),
        ("with their stop token", f"{100 * summary['stop_share']:.1f} %"),
        ("longest, with its prompt", f"{counted(summary['longest'], 'token')}"),
        *((f"left out: {kind}", f"{count:,}") for kind, count in summary.get("unfit", {}).items()),
    ]
    return Table("Rows", ("", ""), rows)


TABLES: Sequence[Callable[[JobData], Table]] = (
    before_after, gates, funnel, cost, training, by_difficulty, lengths, audit, balance, contaminated,
)  # fmt: skip


def _per(tokens: int, count: int) -> str:
    return f"{tokens / count:,.1f}" if count else "none"


def _natural(text: str) -> tuple[int, float, str]:
    return (0, float(text), "") if text.replace(".", "", 1).isdecimal() else (1, 0.0, text)


def render(folder: Path) -> str:
    """The summary of a job folder, finished or not: all tables that have rows."""
    job = read_job(folder)
    spec = job.lock["spec"]
    parts = [f"{spec['name']}: {job.lock['about']}"]
    parts += [_lines(table) for build in TABLES if (table := build(job)).rows]
    return "\n\n".join(parts) + "\n"


def _lines(table: Table) -> str:
    rows: list[Sequence[str]] = [table.head, *table.rows] if any(table.head) else list(table.rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    body = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([table.title, *(f"  {line}" for line in body), *([f"  {table.note}"] if table.note else [])])
