"""Lines over training steps as SVG: several series on one pair of axes, alarms as marks, held-out values with bars.

No library and no script: a value is read from the axis or from the tooltip that a browser shows for a `<title>`. A long
run is drawn as means of equal stretches of steps. A series whose values are all positive and span more than a
hundredfold gets a logarithmic axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evals.report.kit import element, level, quantity, svg, text

Point = tuple[float, float]
MOST_POINTS = 200
WIDTH, HEIGHT = 520, 210
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 28


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its interval."""

    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """A named line; `bars` are drawn as points with error bars on top of it."""

    name: str
    points: Sequence[Point]
    bars: Sequence[Bar] = field(default_factory=tuple)

    def values(self) -> list[float]:
        """All values that the axis must show."""
        return [y for _, y in self.points] + [v for bar in self.bars for v in (bar.value, bar.low, bar.high)]


@dataclass(frozen=True, slots=True)
class _Axes:
    first: float
    last: float
    low: float
    high: float
    log: bool

    def x(self, step: float) -> float:
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        scale = math.log10 if self.log else float
        low, high = scale(self.low), scale(self.high)
        return HEIGHT - BOTTOM - (scale(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def line_chart(title: str, series: Sequence[Series], *, share: bool = False, marks: Sequence[int] = ()) -> str:
    """Return the SVG of `series`; empty markup when none has a value.

    Args:
        title: for those who cannot see it.
        series: drawn in this order, each in its colour.
        share: the values are in [0, 1], and so is the axis.
        marks: steps at which an alarm was raised.
    """
    lines = [(i, one) for i, one in enumerate(series) if one.values()]
    if not lines:
        return ""
    axes = _axes([one for _, one in lines], share)
    parts = [_grid(axes, share), *(_mark(axes, step) for step in sorted(set(marks)))]
    parts += [_line(axes, one, i) for i, one in lines]
    name = f"{title}: " + "; ".join(f"{one.name} {quantity(_last(one))} at the end" for _, one in lines)
    return svg(WIDTH, HEIGHT, *parts, label=name)


def panel(title: str, chart: str, series: Sequence[Series] = (), note: str = "") -> str:
    """A chart in a frame with its title, the keys of `series` where there are several, and how to read it."""
    caption = element("figcaption", element("b", text(title)), _legend(series) if len(series) > 1 else "")
    return element(
        "figure", caption, chart, element("p", text(note), class_="note") if note else "", class_="card panel"
    )


def _legend(series: Sequence[Series]) -> str:
    keys = [
        element("span", element("i", class_=f"swatch inline c{i % 8}"), text(one.name), class_="item")
        for i, one in enumerate(series)
    ]
    return element("span", *keys, class_="legend")


def _last(series: Series) -> float:
    return series.points[-1][1] if series.points else series.bars[-1].value


def _axes(series: Sequence[Series], share: bool) -> _Axes:
    values = [value for one in series for value in one.values()]
    steps = [x for one in series for x, _ in one.points] + [float(bar.step) for one in series for bar in one.bars]
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    if share:
        return _Axes(first, last, min(0.0, *values), max(1.0, *values), False)
    low, high = min(values), max(values)
    if low > 0 and high / low > 100:
        return _Axes(first, last, 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), True)
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return _Axes(first, last, 0.0, 1.0, False)
    pad = 0.05 * (high - low)
    return _Axes(first, last, low - pad if low < 0 else low, high + pad if high > 0 else high, False)


def _grid(axes: _Axes, share: bool) -> str:
    parts = []
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in _ticks(axes.low, axes.high, axes.log):
        parts += level(axes.y(value), LEFT, right, f"{100 * value:.0f} %" if share else quantity(value))
    for step in _ticks(axes.first, axes.last, False):
        if step == int(step):
            x = axes.x(step)
            parts.append(element("text", f"{step:,.0f}", class_="tick", x=x, y=base + 18, text_anchor="middle"))
    parts.append(element("line", class_="base", x1=LEFT, x2=right, y1=base, y2=base))
    return "".join(parts)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """At most about six round values in [low, high]."""
    if log:
        decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
        return [10.0**d for d in decades][:: max(1, math.ceil(len(decades) / 5))]
    rough = (high - low) / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _mark(axes: _Axes, step: int) -> str:
    x = axes.x(min(max(step, axes.first), axes.last))
    title = element("title", f"alarm at step {step}")
    return element("line", title, class_="alarm", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM)


def _line(axes: _Axes, series: Series, index: int) -> str:
    points = _thinned(series.points)
    parts = []
    if len(points) > 1:
        corners = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
        parts.append(element("polyline", points=corners))
    parts += [
        element("circle", _tip(series.name, x, y), cx=axes.x(x), cy=axes.y(y), r=6, class_="hit") for x, y in points
    ]
    if len(points) == 1:
        parts.append(element("circle", cx=axes.x(points[0][0]), cy=axes.y(points[0][1]), r=3, class_="own"))
    for bar in series.bars:
        x = axes.x(bar.step)
        parts.append(element("path", class_="error", d=f"M{x:.1f} {axes.y(bar.low):.1f}V{axes.y(bar.high):.1f}"))
        tip = _tip(f"{series.name} ({bar.low:.3f} to {bar.high:.3f})", bar.step, bar.value)
        parts.append(element("circle", tip, cx=x, cy=axes.y(bar.value), r=4, class_="own"))
    return element("g", *parts, class_=f"curve c{index % 8}")


def _tip(name: str, step: float, value: float) -> str:
    return element("title", text(f"{name}: {value:.4g} at step {step:.0f}"))


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` points: means of equal stretches."""
    size = math.ceil(len(points) / MOST_POINTS) if points else 1
    if size == 1:
        return list(points)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
