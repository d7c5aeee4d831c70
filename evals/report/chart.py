"""The main figure as SVG: accuracy against cost per problem (log axis), 95 % error bars, the frontier marked.

One colour and one marker shape per run; the run's own point is large and labelled; the curves sub-sampled from its
pool are thin, their dash says how the answer is chosen; pass@k (chosen with the answer key) is dotted and stands
outside the frontier. Drawn twice, wide and narrow, because a shrunk figure cannot be read on a phone.
Left out: zooming, and any library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evals.report.kit import count, element, interval, percent, quantity, text
from evals.report.runs import Axis, Curve, Point, RunSummary, drawn_curves, frontier

NUM_COLOURS = 8
DASHES = {"majority": "none", "best_of_n": "7 3", "best_of_k": "7 3", "weighted": "2 3 7 3"}
AXIS_TITLES: dict[Axis, str] = {"tokens": "tokens per problem (log scale)", "flops": "FLOPs per problem (log scale)"}
_LETTER = 7.4  # width in pixels of a letter of a label, on the wide side


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
    return element(
        "svg", *layers, class_="chart", role="img", viewBox=f"0 0 {width} {height}", aria_label=name
    )  # fmt: skip


def slot(index: int) -> int:
    """Colour and marker number of run `index`."""
    return index % NUM_COLOURS


def marker(number: int, x: float, y: float, radius: float, **attributes: object) -> str:
    """One of eight shapes, of about equal area, so that a run is told apart without its colour."""
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
    every = [run.point for run in runs] + [p for run in runs for c in run.curves for p in c.points]
    costs = [cost for p in every if (cost := p.cost(axis)) is not None]
    if not costs or all(run.point.cost(axis) is None for run in runs):
        return None
    shares = [s for p in every for s in (p.accuracy, p.low, p.high) if s is not None]
    low, high = min(shares), max(shares)
    pad = max(0.06 * (high - low), 0.02)
    margin = max((max(costs) / min(costs)) ** 0.06, 1.25)
    return Frame(
        width, height, min(costs) / margin, max(costs) * margin, max(0.0, low - pad), min(1.0, high + pad)
    )  # fmt: skip


def _grid(frame: Frame, axis: Axis) -> str:
    base, right = frame.height - frame.bottom, frame.width - frame.right
    parts = []
    for share in share_ticks(frame.share_low, frame.share_high):
        y = frame.y(share)
        parts.append(element("line", class_="grid", x1=frame.left, x2=right, y1=y, y2=y))
        label = f"{100 * share:.0f} %"
        parts.append(element("text", label, class_="tick", x=frame.left - 8, y=y + 4, text_anchor="end"))
    for cost in log_ticks(frame.cost_low, frame.cost_high, most=max(3, frame.width // 95)):
        x = frame.x(cost)
        parts.append(element("line", class_="grid", x1=x, x2=x, y1=frame.top, y2=base))
        label = count(cost) if axis == "tokens" else quantity(cost)
        parts.append(element("text", label, class_="tick", x=x, y=base + 18, text_anchor="middle"))
    middle = (frame.left + right) / 2
    title = AXIS_TITLES[axis]
    parts.append(element("text", title, class_="axis", x=middle, y=frame.height - 10, text_anchor="middle"))
    turn = f"rotate(-90 14 {(frame.top + base) / 2:.1f})"
    parts.append(
        element("text", "accuracy", class_="axis", x=14, y=(frame.top + base) / 2, text_anchor="middle", transform=turn)
    )
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
    """Put each run's name beside its point, on the first side that covers neither a point nor another label."""
    spots = [(frame.x(c), frame.y(r.point.accuracy), r, i) for i, r in enumerate(runs) if (c := r.point.cost(axis))]
    dots = [(frame.x(c), frame.y(p.accuracy)) for r in runs for v in r.curves for p in v.points if (c := p.cost(axis))]
    obstacles = [(x - 13, y - 13, x + 13, y + 13) for x, y, _, _ in spots]
    crowd = [(x - 5, y - 5, x + 5, y + 5) for x, y in dots]
    parts = []
    for x, y, run, i in spots:
        name = f"{run.label} · {percent(run.point.accuracy)}"
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


_Box = tuple[float, float, float, float]


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
