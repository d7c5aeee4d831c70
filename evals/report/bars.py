"""The smaller figures: per-problem success, score against success, and where the tokens went.

Success of a problem is the share of its candidates whose verdict is `correct`, among those that have a verdict
(timeout, limit and error are no verdict). Brown et al. 2024, "Large Language Monkeys": the tail of that histogram
is what decides how coverage grows with samples. Score against success ranks candidates by score into five equal
groups, so that it holds for scores of any scale (probabilities or log-probabilities).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from evals.report.chart import share_ticks
from evals.report.kit import count, element, finite, percent, text
from evals.report.runs import RunSummary
from ttc.core import Candidate, Record, Verdict

NO_VERDICT = frozenset({"timeout", "limit", "error"})
MIN_POOL = 4
"""A problem with fewer judged candidates says nothing about its success rate."""
NUM_BINS, NUM_RANKS = 10, 5
ROLES: tuple[tuple[str, str], ...] = (
    ("thinking", "thinking"),
    ("answer", "answer"),
    ("scored", "scored by a reward model"),
    ("judged", "written by a judge"),
    ("prefilled", "prompt computed"),
    ("overrun", "decoded, then dropped"),
)


def judged(record: Record) -> list[tuple[Candidate, Verdict]]:
    """Candidates of a record with their verdicts, without those that have none."""
    candidates = record.answer.candidates if record.answer else ()
    pairs = zip(candidates, record.verdicts, strict=False)
    return [(candidate, verdict) for candidate, verdict in pairs if verdict.status not in NO_VERDICT]


def success_shares(records: Sequence[Record]) -> list[float]:
    """Share of right candidates of each problem that has at least `MIN_POOL` judged ones."""
    pools = map(judged, records)
    return [sum(v.correct for _, v in pool) / len(pool) for pool in pools if len(pool) >= MIN_POOL]


def histogram(shares: Sequence[float]) -> list[int]:
    """Counts: none right, then (0, 10 %], (10, 20 %], … up to all right in the last of `NUM_BINS` + 1 bins."""
    counts = [0] * (NUM_BINS + 1)
    for share in shares:
        counts[min(NUM_BINS, -int(-share * NUM_BINS // 1))] += 1
    return counts


def success_by_score(records: Sequence[Record]) -> list[tuple[float, float, float, int]]:
    """(lowest score, highest score, share right, candidates) of `NUM_RANKS` equal groups; [] without scores."""
    scores, right = array("d"), array("b")  # a tuple for each would be ten times as large
    for record in records:
        for candidate, verdict in judged(record):
            if (value := finite(candidate.score)) is not None:
                scores.append(value)
                right.append(verdict.correct)
    if len(scores) < 10 * NUM_RANKS:
        return []
    order = np.lexsort((right, scores))
    cuts = [round(i * len(scores) / NUM_RANKS) for i in range(NUM_RANKS + 1)]
    parts = [order[a:b] for a, b in pairwise(cuts)]
    return [(scores[p[0]], scores[p[-1]], sum(right[at] for at in p) / len(p), len(p)) for p in parts]


def success_figures(
    runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]], slots: Mapping[str, int]
) -> str:
    """Histograms of per-problem success, one small figure per run that has pools; empty markup when none has."""
    figures = []
    for run in runs:
        shares = success_shares(records.get(run.key, ()))
        if shares:
            counts = histogram(shares)
            names = ["0", *(f"{10 * i}" for i in range(1, NUM_BINS + 1))]
            tips = [f"{_bin_name(i)}: {count(c)} of {count(len(shares))} problems" for i, c in enumerate(counts)]
            bars = _bars([c / len(shares) for c in counts], names, tips, "right candidates per problem, %")
            figures.append(_small(run.label, bars, slots[run.label]))
    return "".join(figures)


def score_figures(runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]], slots: Mapping[str, int]) -> str:
    """Share of right candidates by rank of their score, one small figure per run that has scores."""
    figures = []
    for run in runs:
        ranks = success_by_score(records.get(run.key, ()))
        if ranks:
            names = ["lowest fifth", "", "middle", "", "highest fifth"]
            tips = [f"scores {a:.3g} to {b:.3g}: {percent(s)} of {count(n)} candidates right" for a, b, s, n in ranks]
            bars = _bars([share for _, _, share, _ in ranks], names, tips, "candidates by score", top=1.0)
            figures.append(_small(run.label, bars, slots[run.label]))
    return "".join(figures)


def role_tokens(run: RunSummary) -> dict[str, float]:
    """Tokens per problem by role; generated is split into thinking and answer, cached prompt tokens are left out."""
    tokens = run.usage_per_problem
    return {
        "thinking": tokens("thinking"),
        "answer": tokens("generated") - tokens("thinking"),
        "scored": tokens("scored"),
        "judged": tokens("judged"),
        "prefilled": tokens("prompt") - tokens("cached"),
        "overrun": tokens("overrun"),
    }


def role_bars(runs: Sequence[RunSummary]) -> str:
    """One stacked horizontal bar per run, in tokens per problem, with its legend."""
    totals = {run.label: role_tokens(run) for run in runs}
    longest = max((sum(roles.values()) for roles in totals.values()), default=0.0)
    if not longest:
        return ""
    present = [(key, name) for key, name in ROLES if any(roles[key] > 0 for roles in totals.values())]
    keys = [element("span", element("i", class_=f"swatch r-{key}"), text(name), class_="item") for key, name in present]
    rows = [_role_row(label, roles, present, longest) for label, roles in totals.items()]
    return element("div", *keys, class_="legend") + element("div", *rows, class_="roles")


def _role_row(label: str, roles: Mapping[str, float], present: Sequence[tuple[str, str]], longest: float) -> str:
    parts = [
        element(
            "i",
            class_=f"r-{key}",
            style=f"width:{100 * roles[key] / longest:.2f}%",
            data_tip=f"{name}: {count(roles[key])}",
        )
        for key, name in present
        if roles[key] > 0
    ]
    spelled = ", ".join(f"{name} {count(roles[key])}" for key, name in present if roles[key] > 0)
    bar = element("div", *parts, class_="bar", role="img", aria_label=f"{label}: {spelled}")
    beside = roles["prefilled"] + roles["overrun"]
    sums = count(sum(roles.values()) - beside) + (f" + {count(beside)}" if beside > 0 else "")
    total = element("div", text(sums), class_="total", title=spelled)
    return element("div", element("div", text(label), class_="who"), bar, total, class_="role")


def _small(title: str, bars: str, number: int) -> str:
    return element("figure", element("figcaption", text(title)), bars, class_=f"small c{number}")


def _bars(
    shares: Sequence[float], names: Sequence[str], tips: Sequence[str], axis: str, top: float | None = None
) -> str:
    width, height, left, base = 320, 190, 40, 148
    high = top or min(1.0, max(0.04, *shares) * 1.06)
    step = (width - left - 6) / len(shares)
    parts = []
    for tick in share_ticks(0.0, high):
        y = base - (base - 12) * tick / high
        parts.append(element("line", class_="grid", x1=left, x2=width - 6, y1=y, y2=y))
        parts.append(element("text", f"{100 * tick:.0f} %", class_="tick", x=left - 6, y=y + 4, text_anchor="end"))
    for i, (share, name, tip) in enumerate(zip(shares, names, tips, strict=True)):
        x, tall = left + i * step, (base - 12) * share / high
        parts.append(
            element("rect", class_="bin", x=x + 1.5, y=base - tall, width=step - 3, height=max(tall, 0.6), data_tip=tip)
        )
        anchor = "start" if i == 0 and len(name) > 3 else "end" if i == len(names) - 1 and len(name) > 3 else "middle"
        at = {"start": x, "middle": x + step / 2, "end": x + step}[anchor]
        parts.append(element("text", text(name), class_="tick", x=at, y=base + 16, text_anchor=anchor))
    parts.append(element("text", text(axis), class_="axis", x=(left + width) / 2, y=height - 6, text_anchor="middle"))
    return element(
        "svg", *parts, class_="chart", viewBox=f"0 0 {width} {height}", role="img", aria_label="; ".join(tips)
    )


def _bin_name(index: int) -> str:
    return "none right" if index == 0 else f"over {10 * (index - 1)} to {10 * index} % right"
