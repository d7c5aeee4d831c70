"""The figures: accuracy against cost, per-problem success, score against success, and tokens by role.

The main figure has a log axis of cost, 95 % error bars and the frontier. One colour and one marker shape per run; the
run's own point is large and labelled; the curves sub-sampled from its pool are thin, their dash says how the answer is
chosen; pass@k (chosen with the answer key) is dotted and stands outside the frontier. It is drawn twice for the page,
wide and narrow, because a shrunk figure cannot be read on a phone, and once by matplotlib (`figure.png`, `.svg`,
`.pdf`) for slides and papers, which needs no display.

Success of a problem is the share of its candidates whose verdict is `correct`, among those that have a verdict
(timeout, limit and error are no verdict). Brown et al. 2024, "Large Language Monkeys": the tail of that histogram is
what decides how coverage grows with samples. Score against success ranks candidates by score into five equal groups, so
scores of any scale work (probabilities or log-probabilities). Left out: zooming, and any library in the page.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evals.report.kit import count, element, finite, interval, level, percent, quantity, svg, text
from evals.report.runs import ORACLE_KINDS, Axis, Curve, Point, RunSummary, drawn_curves, frontier, headline
from ttc.core import NO_VERDICT, Candidate, Record, Verdict
from ttc.durable import replaced_file
from ttc.errors import missing_extra

NUM_COLOURS = 8
DASHES = {"majority": "none", "best_of_n": "7 3", "best_of_k": "7 3", "weighted": "2 3 7 3"}
AXIS_TITLES: dict[Axis, str] = {"tokens": "tokens per problem (log scale)", "flops": "FLOPs per problem (log scale)"}
_LETTER = 7.4  # width in pixels of a letter of a label, on the wide side
_Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Maps (cost, accuracy) to pixels inside a plot of `width` x `height`."""

    width: int
    height: int
    cost_low: float
    cost_high: float
    share_low: float
    share_high: float
    left: int = 66
    right: int = 22
    top: int = 30
    bottom: int = 50

    def x(self, cost: float) -> float:
        """Pixel of a cost, logarithmic."""
        span = math.log(self.cost_high / self.cost_low)
        return self.left + math.log(cost / self.cost_low) / span * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        """Pixel of an accuracy; up is better."""
        inside = (share - self.share_low) / (self.share_high - self.share_low)
        return self.height - self.bottom - inside * (self.height - self.top - self.bottom)


def accuracy_chart(runs: Sequence[RunSummary], axis: Axis, *, width: int = 880, height: int = 440) -> str | None:
    """Return the SVG of one group of runs, or None when no run has a cost on this axis."""
    frame = _frame(runs, axis, width, height)
    if frame is None:
        return None
    best = frontier(runs, axis)
    layers = [
        _grid(frame, axis),
        _frontier(frame, best, axis),
        *(_curve(frame, curve, axis, slot(i)) for i, curve in drawn_curves(runs, axis)),
        *(_own(frame, run, axis, slot(i), run.point in best) for i, run in enumerate(runs)),
        _labels(frame, runs, axis),
    ]
    name = f"Accuracy against {AXIS_TITLES[axis]}: " + "; ".join(_describe(r.label, r.point, axis) for r in runs)
    return svg(width, height, *layers, label=name)


def slot(index: int) -> int:
    """Colour and marker number of run `index`."""
    return index % NUM_COLOURS


def marker(number: int, x: float, y: float, radius: float, **attributes: object) -> str:
    """One of eight shapes of about equal area, so that runs can be told apart without colour."""
    if number == 0:
        return element("circle", cx=x, cy=y, r=radius, **attributes)
    corners = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in _SHAPES[number])
    return element("polygon", points=corners, **attributes)


def legend_marker(number: int) -> str:
    """The marker alone, as a small picture for legends and table rows."""
    shape = marker(number, 8, 8, 5.5, class_="own")
    return element("svg", shape, class_=f"key c{number}", viewBox="0 0 16 16", aria_hidden="true")


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values (1, 2, 5 per decade, or fewer) inside [low, high], at most about `most` of them."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(ticks) <= most:
            break
    return ticks[:: math.ceil(len(ticks) / most)] if ticks else []


def share_ticks(low: float, high: float) -> list[float]:
    """Round shares inside [low, high], about five of them."""
    step = next((s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 6.5), 0.25)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _frame(runs: Sequence[RunSummary], axis: Axis, width: int, height: int) -> Frame | None:
    every = [point for run in runs for point in run.points]
    costs = [cost for p in every if (cost := p.cost(axis)) is not None]
    if not costs or all(run.point.cost(axis) is None for run in runs):
        return None
    shares = [s for p in every for s in (p.accuracy, p.low, p.high) if s is not None]
    low, high = min(shares), max(shares)
    pad = max(0.06 * (high - low), 0.02)
    margin = max((max(costs) / min(costs)) ** 0.06, 1.25)
    floor, ceiling = max(0.0, low - pad), min(1.0, high + pad)
    return Frame(width, height, min(costs) / margin, max(costs) * margin, floor, ceiling)


def _grid(frame: Frame, axis: Axis) -> str:
    base, right = frame.height - frame.bottom, frame.width - frame.right
    parts = []
    for share in share_ticks(frame.share_low, frame.share_high):
        parts += level(frame.y(share), frame.left, right, f"{100 * share:.0f} %", gap=8)
    for cost in log_ticks(frame.cost_low, frame.cost_high, most=max(3, frame.width // 95)):
        x = frame.x(cost)
        parts.append(element("line", class_="grid", x1=x, x2=x, y1=frame.top, y2=base))
        label = count(cost) if axis == "tokens" else quantity(cost)
        parts.append(element("text", label, class_="tick", x=x, y=base + 18, text_anchor="middle"))
    middle = (frame.left + right) / 2
    title, half = AXIS_TITLES[axis], (frame.top + base) / 2
    parts.append(element("text", title, class_="axis", x=middle, y=frame.height - 10, text_anchor="middle"))
    turn = f"rotate(-90 14 {half:.1f})"
    parts.append(element("text", "accuracy", class_="axis", x=14, y=half, text_anchor="middle", transform=turn))
    parts.append(element("line", class_="base", x1=frame.left, x2=right, y1=base, y2=base))
    return "".join(parts)


def _frontier(frame: Frame, best: Sequence[Point], axis: Axis) -> str:
    corners: list[str] = []
    for point in best:
        x, y = frame.x(point.cost(axis) or frame.cost_low), frame.y(point.accuracy)
        corners += [f"{x:.1f},{corners[-1].split(',')[1]}"] if corners else []
        corners.append(f"{x:.1f},{y:.1f}")
    if corners:
        corners.append(f"{frame.width - frame.right},{corners[-1].split(',')[1]}")
    return element("polyline", class_="frontier", points=" ".join(corners))


def _curve(frame: Frame, curve: Curve, axis: Axis, number: int) -> str:
    placed = [(frame.x(p.cost(axis) or 1.0), frame.y(p.accuracy), p) for p in curve.points]
    dash = "1 4" if curve.oracle else DASHES.get(curve.kind, "4 2")
    line = element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in placed), stroke_dasharray=dash)
    dots = [
        _error_bar(frame, point, x)
        + marker(
            number, x, y, 3.4, class_="dot", data_tip=_describe(f"{kind_name(curve.kind)} of {point.k}", point, axis)
        )
        for x, y, point in placed
    ]
    kind = "oracle" if curve.oracle else "pool"
    return element("g", line, *dots, class_=f"curve {kind} c{number}", data_kind=curve.kind)


def _own(frame: Frame, run: RunSummary, axis: Axis, number: int, on_frontier: bool) -> str:
    cost = run.point.cost(axis)
    if cost is None:
        return ""
    x, y = frame.x(cost), frame.y(run.point.accuracy)
    ring = marker(number, x, y, 11.5, class_="ring") if on_frontier else ""
    shape = marker(number, x, y, 7, class_="own", data_tip=_describe(run.label, run.point, axis))
    return element("g", ring, _error_bar(frame, run.point, x, cap=5), shape, class_=f"c{number}")


def _error_bar(frame: Frame, point: Point, x: float, cap: int = 0) -> str:
    if point.low is None or point.high is None:
        return ""
    low, high = frame.y(point.low), frame.y(point.high)
    path = f"M{x:.1f} {low:.1f}V{high:.1f}"
    if cap:
        path += "".join(f"M{x - cap:.1f} {y:.1f}h{2 * cap}" for y in (low, high))
    return element("path", class_="error", d=path)


def _labels(frame: Frame, runs: Sequence[RunSummary], axis: Axis) -> str:
    """Put each run's name beside its point, on the first side where it covers neither a point nor another label."""
    spots = [(frame.x(c), frame.y(r.point.accuracy), r, i) for i, r in enumerate(runs) if (c := r.point.cost(axis))]
    dots = [(frame.x(c), frame.y(p.accuracy)) for r in runs for v in r.curves for p in v.points if (c := p.cost(axis))]
    obstacles = [(x - 13, y - 13, x + 13, y + 13) for x, y, _, _ in spots]
    crowd = [(x - 5, y - 5, x + 5, y + 5) for x, y in dots]
    parts = []
    for x, y, run, i in spots:
        name = f"{_fitted(run.label, frame)} · {percent(run.point.accuracy)}"
        size = len(name) * _LETTER
        sides = [
            (x + 14, y - 6, "start"), (x - 14, y - 6, "end"), (x + 14, y + 16, "start"), (x - 14, y + 16, "end"),
            (x, y - 18, "middle"), (x, y + 28, "middle"), (x + 14, y - 24, "start"), (x - 14, y - 24, "end"),
        ]  # fmt: skip
        boxes = [(lx, ly, a, _box(lx, ly, a, size)) for lx, ly, a in sides]
        inside = [b for b in boxes if _inside(frame, b[3])] or boxes
        free = [b for b in inside if not any(_cross(b[3], other) for other in obstacles)]
        best = [b for b in free if not any(_cross(b[3], other) for other in crowd)] or free or inside
        lx, ly, anchor, box = best[0]
        obstacles.append(box)
        parts.append(element("text", text(name), class_=f"name c{slot(i)}", x=lx, y=ly, text_anchor=anchor))
    return "".join(parts)


def _fitted(label: str, frame: Frame) -> str:
    """A run's name, shortened in the middle where the picture is too narrow for it."""
    most = int((frame.width - frame.left - frame.right) / _LETTER) - len(" · 100.0 %")
    return label if len(label) <= most else f"{label[: most // 2]}…{label[-(most - most // 2 - 1) :]}"


def _box(x: float, y: float, anchor: str, size: float) -> _Box:
    left = x - {"start": 0.0, "middle": size / 2, "end": size}[anchor]
    return (left, y - 12, left + size, y + 4)


def _inside(frame: Frame, box: _Box) -> bool:
    return box[0] >= frame.left and box[2] <= frame.width and box[1] >= 0 and box[3] <= frame.height - frame.bottom


def _cross(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def kind_name(kind: str) -> str:
    """Name of a way to choose from a pool, as the legend prints it."""
    return _KINDS.get(kind, kind.replace("_", " ") or "pool")


def _describe(name: str, point: Point, axis: Axis) -> str:
    cost = point.cost(axis)
    price = f"{count(cost)} tokens" if axis == "tokens" else f"{quantity(cost)}FLOP"
    return f"{name}: {percent(point.accuracy)} ({interval(point.low, point.high)}), {price}"


_KINDS = {
    "majority": "majority", "best_of_n": "best-of-k", "best_of_k": "best-of-k", "weighted": "weighted vote",
    "pass": "pass@k (needs the answer key)", "pass_at_k": "pass@k (needs the answer key)",
}  # fmt: skip
_SHAPES: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    2: ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    3: ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    4: ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    5: ((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4), (0.4, 1.1), (-0.4, 1.1),
        (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4)),
    6: ((1.1, 0), (0.55, 0.95), (-0.55, 0.95), (-1.1, 0), (-0.55, -0.95), (0.55, -0.95)),
    7: ((-1.1, -0.6), (1.1, -0.6), (1.1, 0.6), (-1.1, 0.6)),
}  # fmt: skip


# -- smaller figures ---------------------------------------------------------------------------------------------------
MIN_POOL = 4
"""With fewer judged candidates, a problem says nothing about its success rate."""
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
    """Share of right candidates of each problem that has at least `MIN_POOL` judged ones, those of all its records."""
    pools: dict[str, list[bool]] = {}
    for record in records:
        pools.setdefault(record.problem.id, []).extend(verdict.correct for _, verdict in judged(record))
    return [sum(pool) / len(pool) for pool in pools.values() if len(pool) >= MIN_POOL]


def histogram(shares: Sequence[float]) -> list[int]:
    """Counts: none right, then (0, 10 %], (10, 20 %], … up to all right in the last of `NUM_BINS` + 1 bins."""
    counts = [0] * (NUM_BINS + 1)
    for share in shares:
        counts[min(NUM_BINS, -int(-share * NUM_BINS // 1))] += 1
    return counts


def success_by_score(records: Sequence[Record]) -> list[tuple[float, float, float, int]]:
    """(lowest score, highest score, share right, candidates) of `NUM_RANKS` equal groups; [] without scores.

    Candidates with equal scores share their success rate, so a scorer that gives all the same score gives a flat row.
    """
    scores, right = array("d"), array("b")  # a tuple for each would be ten times as large
    for record in records:
        for candidate, verdict in judged(record):
            if (value := finite(candidate.score)) is not None:
                scores.append(value)
                right.append(verdict.correct)
    if len(scores) < 10 * NUM_RANKS:
        return []
    values, places = np.unique(scores, return_inverse=True)
    shares = np.bincount(places, right) / np.bincount(places)
    ranked = np.sort(places)
    cuts = [round(i * len(scores) / NUM_RANKS) for i in range(NUM_RANKS + 1)]
    parts = [ranked[a:b] for a, b in pairwise(cuts)]
    return [(float(values[p[0]]), float(values[p[-1]]), float(shares[p].mean()), len(p)) for p in parts]


def success_figures(runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]]) -> str:
    """Histograms of per-problem success, one small figure per run that has pools; empty markup when none has."""
    names = ["0", *(f"{10 * i}" for i in range(1, NUM_BINS + 1))]
    figures = []
    for number, run in enumerate(runs):
        shares = success_shares(records.get(run.key, ()))
        if shares:
            counts = histogram(shares)
            tips = [f"{_bin_name(i)}: {count(c)} of {count(len(shares))} problems" for i, c in enumerate(counts)]
            bars = _bars([c / len(shares) for c in counts], names, tips, "right candidates per problem, %")
            figures.append(_small(run.label, bars, slot(number)))
    return "".join(figures)


def score_figures(runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]]) -> str:
    """Share of right candidates by rank of their score, one small figure per run that has scores."""
    names = ["lowest fifth", "", "middle", "", "highest fifth"]
    figures = []
    for number, run in enumerate(runs):
        ranks = success_by_score(records.get(run.key, ()))
        if ranks:
            tips = [f"scores {a:.3g} to {b:.3g}: {percent(s)} of {count(n)} candidates right" for a, b, s, n in ranks]
            bars = _bars([share for _, _, share, _ in ranks], names, tips, "candidates by score", top=1.0)
            figures.append(_small(run.label, bars, slot(number)))
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
        parts += level(base - (base - 12) * tick / high, left, width - 6, f"{100 * tick:.0f} %")
    for i, (share, name, tip) in enumerate(zip(shares, names, tips, strict=True)):
        x, tall = left + i * step, (base - 12) * share / high
        parts.append(
            element("rect", class_="bin", x=x + 1.5, y=base - tall, width=step - 3, height=max(tall, 0.6), data_tip=tip)
        )
        anchor = "start" if i == 0 and len(name) > 3 else "end" if i == len(names) - 1 and len(name) > 3 else "middle"
        at = {"start": x, "middle": x + step / 2, "end": x + step}[anchor]
        parts.append(element("text", text(name), class_="tick", x=at, y=base + 16, text_anchor=anchor))
    parts.append(element("text", text(axis), class_="axis", x=(left + width) / 2, y=height - 6, text_anchor="middle"))
    return svg(width, height, *parts, label="; ".join(tips))


def _bin_name(index: int) -> str:
    return "none right" if index == 0 else f"over {10 * (index - 1)} to {10 * index} % right"


# -- figures of papers -------------------------------------------------------------------------------------------------
_LEGEND_WIDTH, _TITLE_WIDTH = 44, 104
"""The longest line of the legend and of the title, in characters: longer ones would leave no room for the axes."""
_COLOURS = ("#0b62c4", "#c2410c", "#15803d", "#7c3aed", "#0e7490", "#be185d", "#7a6400", "#475569")
_MARKERS = ("o", "s", "^", "D", "v", "P", "h", "s")
_LINE_STYLES: dict[str, Any] = {"best_of_n": (0, (6, 3)), "best_of_k": (0, (6, 3)), "weighted": (0, (2, 2, 6, 2))}

_UNDATED: Mapping[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The formats, each with the metadata that is removed so that the same records give the same bytes."""


def write_figures(folder: Path, groups: dict[str, list[RunSummary]]) -> list[Path]:
    """Draw one panel per group of runs as figure.png, .svg and .pdf; groups without a positive token cost are left out.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    panels = {name: runs for name, runs in groups.items() if any(run.point.cost("tokens") for run in runs)}
    try:
        import matplotlib as mpl  # takes a second; only here is it needed
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise missing_extra(exc) from exc

    figure = Figure(figsize=(8.6, 4.9 * max(len(panels), 1)), layout="constrained")
    for i, runs in enumerate(panels.values(), start=1):
        _png_panel(figure.add_subplot(len(panels), 1, i), runs)
    paths = [folder / f"figure{ending}" for ending in _UNDATED]
    with mpl.rc_context({"svg.hashsalt": "ttc", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a run's name, which the page shows whole
        for path in paths:
            buffer = io.BytesIO()  # matplotlib replaces the error of a full disk by one of its own
            figure.savefig(buffer, dpi=160, format=path.suffix[1:], metadata=_UNDATED[path.suffix])
            with replaced_file(path) as scratch:
                scratch.write_bytes(buffer.getvalue())
    return paths


def _png_panel(axes: Any, runs: Sequence[RunSummary]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    best = frontier(runs, "tokens")
    edge = max((p.cost("tokens") or 1.0) for run in runs for p in run.points) * 1.5
    axes.step(
        [*(p.tokens for p in best), edge],
        [*(100 * p.accuracy for p in best), *(100 * p.accuracy for p in best[-1:])],
        where="post", color="#94a3b8", linewidth=6, alpha=0.35, label="frontier",
    )  # fmt: skip
    curves = drawn_curves(runs, "tokens")
    for i, run in enumerate(runs):
        colour = _COLOURS[i % len(_COLOURS)]
        for curve in (curve for number, curve in curves if number == i):
            _png_curve(axes, curve, colour)
        _png_point(axes, run, colour, _MARKERS[i % len(_MARKERS)])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.set_xlabel("tokens per problem (log scale)")
    axes.set_ylabel("accuracy, with 95 % interval")
    lines = (textwrap.fill(part, _TITLE_WIDTH) for part in headline(runs).replace("; ", ";\n").splitlines())
    axes.set_title("\n".join(lines), fontsize=9, loc="left", parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    kinds = dict.fromkeys(curve.kind for _, curve in curves)
    handles += [Line2D([], [], color="#475569", linestyle=_style(kind)) for kind in kinds]
    names += map(kind_name, kinds)
    axes.legend(handles, names, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _png_curve(axes: Any, curve: Curve, colour: str) -> None:
    xs, ys = [p.tokens for p in curve.points], [100 * p.accuracy for p in curve.points]
    axes.errorbar(
        xs, ys, yerr=_errors(curve.points), color=colour, alpha=0.45 if curve.oracle else 0.7,
        linestyle=_style(curve.kind), linewidth=1.3, marker="o", markersize=3, elinewidth=0.8,
    )  # fmt: skip


def _png_point(axes: Any, run: RunSummary, colour: str, marker: str) -> None:
    if run.point.cost("tokens") is None:
        return
    axes.errorbar(
        [run.point.tokens], [100 * run.point.accuracy], yerr=_errors([run.point]), color=colour, marker=marker,
        markersize=9, capsize=4, elinewidth=1.6, linestyle="none", zorder=5,
        label=textwrap.fill(f"{run.label}: {percent(run.point.accuracy)}", _LEGEND_WIDTH),
    )  # fmt: skip


def _style(kind: str) -> Any:
    return ":" if kind in ORACLE_KINDS else _LINE_STYLES.get(kind, "-")


def _errors(points: Sequence[Point]) -> list[list[float]]:
    low = [100 * max(p.accuracy - (p.accuracy if p.low is None else p.low), 0.0) for p in points]
    high = [100 * max((p.accuracy if p.high is None else p.high) - p.accuracy, 0.0) for p in points]
    return [low, high]
