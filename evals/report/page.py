r"""The report of one or more runs: the table for stdout, `report.html`, `curve.csv` and the figure.

Everything is drawn from summaries (see `evals.numbers.summary`) and records; no model is needed, so `ttc report` can
rebuild it at any time. Columns that no run has a value for are left out of tables. Cost: a second or two for 1,000
problems, most of it matplotlib.

The page is one self-contained file. No network: styles, script and data are inside, and a content-security policy
forbids everything else, inline handlers included (the one script is allowed by its hash). Text from models and tasks is
escaped in markup, and in the JSON block `<`, `>` and `&` are written as \u escapes, so no text can close the block. The
page holds no date and no machine name: the same records give the same bytes. Left out: servers, and figures of a run
while it is going on.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from evals.report.chart import (
    AXIS_TITLES,
    DASHES,
    accuracy_chart,
    kind_name,
    legend_marker,
    role_bars,
    score_figures,
    slot,
    success_figures,
    write_figures,
)
from evals.report.kit import (
    MISSING,
    asset,
    bullets,
    count,
    element,
    embed_json,
    finite,
    interval,
    money,
    percent,
    points,
    quantity,
    seconds,
    table,
    text,
)
from evals.report.problems import group_data
from evals.report.runs import (
    ORACLE_KINDS,
    Axis,
    Point,
    RunSummary,
    facts,
    groups,
    headline,
    models,
    read_runs,
    sizes_text,
)
from ttc.core import Record
from ttc.durable import replace_text
from ttc.errors import ConfigError, MissingExtra

SIZES = {"wide": (1090, 450), "narrow": (420, 400)}


def write_report(
    out_dir: Path,
    summaries: Sequence[Mapping[str, Any]],
    records: Sequence[Sequence[Record]],
    note: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write `report.html`, `curve.csv` and `figure.png`, `.svg` and `.pdf` into `out_dir`; returns the page's path.

    Args:
        out_dir: Folder to write into; created when it does not exist.
        summaries: Entries of `summary.json`, one per run.
        records: The records of each entry, in the same order; may be empty lists.
        note: Called with a message when the figure is left out because matplotlib is not installed.

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
    by_key = {run.key: rows for run, rows in zip(runs, records, strict=True)}
    out_dir.mkdir(parents=True, exist_ok=True)
    page = out_dir / "report.html"
    # A lone surrogate in model text has no UTF-8 form; it is shown as "?".
    replace_text(page, _page(sections, by_key), "replace")
    replace_text(out_dir / "curve.csv", curve_csv(summaries))
    try:
        write_figures(out_dir, sections)
    except MissingExtra as exc:
        note(f"no figure.png: {exc}")
    return page


def _page(sections: Mapping[str, Sequence[RunSummary]], records: Mapping[str, Sequence[Record]]) -> str:
    """Return the whole page; `records` are by `RunSummary.key`."""
    data = [{"name": name, "best": _best(runs), **group_data(runs, records)} for name, runs in sections.items()]
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "title": text(f"ttc report: {', '.join(sections)}"),
        "script_hash": f"sha256-{digest}",
        "css": asset("page.css"),
        "js": script,
        "data": embed_json({"groups": data}),
        "sections": "\n".join(
            _section(i, name, runs, records, data[i]) for i, (name, runs) in enumerate(sections.items())
        ),
        "sample_note": text(_sample_note(data)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], asset("page.html"))


def _section(
    index: int,
    name: str,
    runs: Sequence[RunSummary],
    records: Mapping[str, Sequence[Record]],
    problems: Mapping[str, Any],
) -> str:
    sentence = re.sub(r"(\d[\d.]*) %( \([\d.–]+\))?", _emphasis, text(headline(runs)))
    parts = [
        element("p", text(name), class_="eyebrow"),
        element("h1", sentence) if index == 0 else element("h2", sentence, class_="headline"),
        bullets([*facts(runs), *_shared(problems)]),
        _figure(runs),
        element("div", html_table(runs), class_="card"),
        *(
            element("h3", text(title)) + element("p", text(note), class_="note") + element("div", body, class_=style)
            for title, note, style, body in _details(runs, records)
            if body
        ),
    ]
    return element("section", *parts)


def _shared(problems: Mapping[str, Any]) -> list[str]:
    """A note that the runs have different problems; empty where they all have the same."""
    shared, every = problems["shared"], problems["problems"]
    return [] if shared == every else [f"not the same problems: {count(shared)} of {count(every)} are in all runs"]


def _details(
    runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]]
) -> Iterator[tuple[str, str, str, str]]:
    """Title, note, style and body of what stands below the table; one without data has no body."""
    yield (
        "Where the tokens went",
        "Per problem, pruned branches included: what the budget counts + prompt and dropped tokens, which stand beside "
        "it. Cached prompt tokens are left out.",
        "card",
        role_bars(runs),
    )
    yield "By difficulty", "Accuracy with its 95 % interval.", "card", difficulty_table(runs)
    yield (
        "How often a problem is solved",
        "Problems by the share of their candidates that are right. At 0 no candidate is right, so no choice among "
        "them helps; in the middle a better choice would.",
        "card smalls",
        success_figures(runs, records),
    )
    yield (
        "Does a higher score mean right?",
        "Finished candidates in five equal groups by score. A flat row means that the scorer cannot choose.",
        "card smalls",
        score_figures(runs, records),
    )


def _emphasis(match: re.Match[str]) -> str:
    """Emphasise a rate, and keep its interval on one line."""
    return element("span", element("strong", f"{match[1]}&nbsp;%"), match[2] or "", class_="nowrap")


def _figure(runs: Sequence[RunSummary]) -> str:
    axes: dict[Axis, str] = {"tokens": "tokens", "flops": "FLOPs"}
    charts: list[str] = []
    shown_axes: list[Axis] = []
    for axis in axes:
        pictures = [
            element("div", picture, class_=size)
            for size, (width, height) in SIZES.items()
            if (picture := accuracy_chart(runs, axis, width=width, height=height))
        ]
        if pictures:
            charts.append(element("div", *pictures, data_axis=axis, **({"hidden": "hidden"} if shown_axes else {})))
            shown_axes.append(axis)
    if not charts:
        return element("p", "No run has a positive cost, so there is no figure.", class_="note")
    buttons = []
    for axis in shown_axes:
        state = {"data_axis_button": axis, "aria_pressed": str(axis == shown_axes[0]).lower()}
        buttons.append(element("button", axes[axis], type="button", **state, title=AXIS_TITLES[axis]))
    switch = element("span", *buttons, class_="switch") if len(buttons) > 1 else ""
    table = element("details", element("summary", "the numbers behind the figure"), curve_table(runs))
    controls = element("div", switch, *_legend(runs), class_="controls")
    return element("div", controls, *charts, table, class_="card", data_figure="")


def _legend(runs: Sequence[RunSummary]) -> list[str]:
    """The frontier, then one tick box per kind of curve, with its dash."""
    kinds = list(dict.fromkeys(curve.kind for run in runs for curve in run.curves))
    items = [element("span", _line("none", "frontier"), "frontier", class_="item")]
    for kind in kinds:
        dash = "1 4" if kind in ORACLE_KINDS else DASHES.get(kind, "4 2")
        box = element("input", type="checkbox", data_kind_box=kind, checked="")
        items.append(element("label", box, _line(dash), text(kind_name(kind)), class_="item"))
    return items


def _line(dash: str, style: str | None = None) -> str:
    stroke = element("path", d="M1 5H33", stroke_dasharray=dash, class_=style)
    return element("svg", stroke, class_="line", viewBox="0 0 34 10", aria_hidden="true")


def _best(runs: Sequence[RunSummary]) -> int:
    return max(range(len(runs)), key=lambda i: runs[i].point.accuracy)


def _sample_note(data: Sequence[Mapping[str, Any]]) -> str:
    rows, trees = sum(len(group["rows"]) for group in data), sum(len(group["trees"]) for group in data)
    problems = sum(group["problems"] for group in data)
    if problems == trees:
        whole = "The problem carries its" if rows == 1 else f"All {count(rows)} problems carry their"
        return f"{whole} full tree{'' if rows == 1 else 's'}. The target is shown only here."
    listed = f"All {count(rows)}" if rows == problems else f"{count(rows)} of {count(problems)}"
    return (
        f"{listed} problems are listed; {count(trees)} carry their full trees, taken in turn from those where "
        "runs disagree, where a right candidate was not chosen, where text was cut, without a verdict, all wrong and "
        "all right. "
        "Every tree is in records.jsonl. The target is shown only here."
    )


# -- tables ------------------------------------------------------------------------------------------------------------
Column = tuple[str, str, Callable[[RunSummary], str]]
CSV_FIELDS = ("task", "run", "strategy", "kind", "k", "accuracy", "low", "high", "tokens", "flops")


def _covered(run: RunSummary) -> str:
    return percent(run.share("coverage")) if run.point.k > 1 else MISSING


def _regret(run: RunSummary) -> str:
    return points(run.share("selection_regret")).lstrip("+") if run.point.k > 1 else MISSING


COLUMNS: tuple[Column, ...] = (
    ("accuracy", "share of problems answered correctly", lambda r: percent(r.point.accuracy)),
    ("95 %", "interval over problems", lambda r: interval(r.point.low, r.point.high)),
    ("tokens", "generated, judged and scored, per problem", lambda r: count(r.point.tokens)),
    ("FLOPs", "per problem, scorer included", lambda r: quantity(r.point.flops)),
    ("seconds", "per problem", lambda r: seconds(finite(r.entry.get("seconds_per_problem")))),
    ("cost", "per problem, in dollars", lambda r: money(finite(r.entry.get("dollars_per_problem")))),
    ("covered", "a right candidate was found, chosen or not (needs the answer key)", _covered),
    ("regret", "covered minus accuracy, in points: what a better choice could gain", _regret),
    ("cut", "answers cut by length", lambda r: percent(r.share("truncated"))),
    ("no answer", "answers without a final", lambda r: percent(r.share("no_answer"))),
    ("failed", "problems that failed", lambda r: count(finite(r.entry.get("errors")))),
)

PROBLEMS: Column = ("problems", "problems that were run", lambda r: count(r.problems))
"""Shown for each run where their sizes differ, as after an interruption."""
UNJUDGED: Column = ("no verdict", "answers that the verifier did not decide on", lambda r: count(r.unjudged))
"""Shown for each run that has such answers, which count as not right."""


def render_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Aligned plain text, one block per task and level, headed by it and the models, for standard output."""
    blocks = []
    for name, runs in groups(read_runs(summaries)).items():
        columns = _columns(runs)
        head = ["strategy", *(title for title, _, _ in columns)]
        rows = [[run.label, *(show(run) for _, _, show in columns)] for run in runs]
        widths = [max(_width(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = [_aligned(row, widths) for row in (head, ["─" * width for width in widths], *rows)]
        sizes = sizes_text(sorted({run.problems for run in runs}))
        blocks.append("\n".join([", ".join([name, sizes, *models(runs)]), "", *lines]))
    return "\n\n".join(blocks) + "\n"


def html_table(runs: Sequence[RunSummary]) -> str:
    """The table of one group for the page; each row carries the run's colour and marker."""
    columns = _columns(runs)
    head = [element("th", "strategy", scope="col")]
    head += [element("th", text(title), scope="col", title=note) for title, note, _ in columns]
    best = max(run.point.accuracy for run in runs)
    rows = [
        element(
            "tr",
            element("th", legend_marker(slot(i)), text(run.label), scope="row"),
            *(element("td", text(show(run)), data_label=title) for title, _, show in columns),
            class_="best" if run.point.accuracy == best else None,
        )
        for i, run in enumerate(runs)
    ]
    return _scrolling(head, rows, "summary")


def curve_table(runs: Sequence[RunSummary]) -> str:
    """Every point of the figure as a table: the same numbers for those who cannot see it."""
    titles = ("run", "chosen by", "k", "accuracy", "95 %", "tokens", "FLOPs")
    rows = [
        element("tr", *(element("td", text(value)) for value in _curve_cells(run.label, kind, point)))
        for run in runs
        for kind, point in _points(run)
    ]
    return _scrolling([element("th", title, scope="col") for title in titles], rows, "plain")


def difficulty_table(runs: Sequence[RunSummary]) -> str:
    """Accuracy per difficulty, where the task has several; empty markup otherwise."""
    parts = {run.label: run.entry.get("by_difficulty") or {} for run in runs}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    if not names:
        return ""
    head = [element("th", title, scope="col") for title in ["strategy", *map(text, names)]]
    rows = [
        element(
            "tr",
            element("th", legend_marker(slot(i)), text(run.label), scope="row"),
            *(element("td", *_rate(parts[run.label].get(name))) for name in names),
        )
        for i, run in enumerate(runs)
    ]
    return _scrolling(head, rows, "summary")


def _rate(found: Mapping[str, Any] | None) -> list[str]:
    if not found:
        return [MISSING]
    bounds = interval(finite(found.get("low")), finite(found.get("high")))
    return [text(percent(finite(found.get("accuracy")))), element("small", f" {bounds}")]


def curve_csv(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Every point of the figure as CSV; kind `run` is a run's own point, the others are sub-sampled from its pool."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for run in read_runs(summaries):
        for kind, p in _points(run):
            name = "run" if kind is None else kind
            writer.writerow([run.group, run.label, run.entry["strategy"], name, *astuple(p)])
    return out.getvalue()


def _points(run: RunSummary) -> list[tuple[str | None, Point]]:
    return [(None, run.point), *((curve.kind, point) for curve in run.curves for point in curve.points)]


def _curve_cells(label: str, kind: str | None, point: Point) -> list[str]:
    chooser = "the strategy" if kind is None else kind_name(kind)
    bounds = interval(point.low, point.high)
    return [label, chooser, str(point.k), percent(point.accuracy), bounds, count(point.tokens), quantity(point.flops)]


def _columns(runs: Sequence[RunSummary]) -> list[Column]:
    columns = [column for column in COLUMNS if any(column[2](run) != MISSING for run in runs)]
    columns += [UNJUDGED] if any(run.unjudged for run in runs) else []
    return columns if len({run.problems for run in runs}) == 1 else [PROBLEMS, *columns]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name = row[0] + " " * (widths[0] - _width(row[0]))
    cells = [name, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def _width(cell: str) -> int:
    """The columns that a text takes on a terminal: two for a wide character, none for a combining one."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in cell)
    return len(cell) + wide - sum(bool(unicodedata.combining(sign)) for sign in cell)


def _scrolling(head: Sequence[str], rows: Sequence[str], style: str) -> str:
    return element("div", table(head, rows, style), class_="scroll")
