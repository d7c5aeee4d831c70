r"""`report.html`: one self-contained file with the headline, the figure, the table and the problem viewer.

No network: styles, script and data are inside, and a content-security policy forbids everything else, inline handlers
included (the one script is allowed by its hash). Text from models and tasks is escaped in markup, and in the JSON
block `<`, `>` and `&` are written as \u escapes, so no text can close the block. The page holds no date and no
machine name: the same records give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evals.report.bars import role_bars, score_figures, success_figures
from evals.report.chart import AXIS_TITLES, DASHES, accuracy_chart, kind_name, slot
from evals.report.kit import asset, bullets, count, element, embed_json, text
from evals.report.problems import group_data
from evals.report.runs import ORACLE_KINDS, Axis, RunSummary, facts, headline
from evals.report.table import curve_table, difficulty_table, html_table
from ttc.core import Record

DETAILS = (
    (
        "Where the tokens went",
        "Per problem, pruned branches included: what the budget counts + prompt and dropped tokens, which stand beside "
        "it. Cached prompt tokens are left out.",
        "card",
    ),
    ("By difficulty", "Accuracy with its 95 % interval.", "card"),
    (
        "How often a problem is solved",
        "Problems by the share of their candidates that are right. Mass at 0 is out of reach for any choice among "
        "samples; mass in the middle is what choosing well can win.",
        "card smalls",
    ),
    (
        "Does a higher score mean right?",
        "Finished candidates in five equal groups by score. A flat row means that the scorer cannot choose.",
        "card smalls",
    ),
)
"""Title, note and style of the sections below the table; one without data is left out."""
SIZES = {"wide": (1090, 450), "narrow": (420, 400)}


def render_page(groups: Mapping[str, Sequence[RunSummary]], records: Mapping[str, Sequence[Record]]) -> str:
    """Return the whole page; `records` are by `RunSummary.key`."""
    data = [{"name": name, "best": _best(runs), **group_data(runs, records)} for name, runs in groups.items()]
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "title": text(f"ttc report: {', '.join(groups)}"),
        "script_hash": f"sha256-{digest}",
        "css": asset("page.css"),
        "js": script,
        "data": embed_json({"groups": data}),
        "sections": "\n".join(_section(i, name, runs, records) for i, (name, runs) in enumerate(groups.items())),
        "sample_note": text(_sample_note(data)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], asset("page.html"))


def _section(index: int, name: str, runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]]) -> str:
    slots = {run.label: slot(i) for i, run in enumerate(runs)}
    sentence = re.sub(r"(\d[\d.]*) %( \([\d.–]+\))?", _emphasis, text(headline(runs)))
    parts = [
        element("p", text(name), class_="eyebrow"),
        element("h1", sentence) if index == 0 else element("h2", sentence, class_="headline"),
        bullets(facts(runs)),
        _figure(runs),
        element("div", html_table(runs), class_="card"),
        *(
            element("h3", text(title)) + element("p", text(note), class_="note") + element("div", body, class_=style)
            for (title, note, style), body in zip(
                DETAILS,
                (
                    role_bars(runs),
                    difficulty_table(runs),
                    success_figures(runs, records, slots),
                    score_figures(runs, records, slots),
                ),
                strict=True,
            )
            if body
        ),
    ]
    return element("section", *parts)


def _emphasis(match: re.Match[str]) -> str:
    """A rate stands out, and its interval does not break over lines."""
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
    buttons = [
        element(
            "button",
            axes[a],
            type="button",
            data_axis_button=a,
            aria_pressed=str(a == shown_axes[0]).lower(),
            title=AXIS_TITLES[a],
        )
        for a in shown_axes
    ]
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
        return f"All {count(rows)} problems carry their full trees. The target is shown only here."
    listed = f"All {count(rows)}" if rows == problems else f"{count(rows)} of {count(problems)}"
    return (
        f"{listed} problems are listed; {count(trees)} carry their full trees, taken in turn from those where "
        "runs disagree, where a right candidate was not chosen, where text was cut, without a verdict, all wrong and "
        "all right. "
        "Every tree is in records.jsonl. The target is shown only here."
    )
