"""The first sentence of a report: what compute bought, with its interval and its price, and facts that qualify it.

It names the most accurate run and the cheapest one. It says so when nothing beat the cheapest, and when the
intervals overlap, so that the sentence never claims more than the figure shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from evals.report.numbers import MISSING, count, interval, percent, points
from evals.report.runs import Point, Run


def headline(runs: Sequence[Run]) -> str:
    """One sentence for runs of one group; raises ValueError when there are none."""
    best = max(runs, key=lambda run: (run.point.accuracy, -_tokens(run.point)))
    opening = f"{best.label} answers {_rate(best.point)} of {best.group} for {_price(best.point)} tokens a problem"
    others = [run for run in runs if run is not best]
    if not others:
        single = _single_sample(best)
        aside = f"; one sample of the same pool answers {_rate(single)} for {_price(single)}" if single else ""
        return f"{opening}{aside}."
    cheapest = min(others, key=lambda run: _tokens(run.point))
    if _tokens(cheapest.point) < _tokens(best.point):
        return f"{opening}; {cheapest.label} answers {_rate(cheapest.point)} for {_price(cheapest.point)}."
    second = max(others, key=lambda run: run.point.accuracy)
    rest = f"{second.label} answers {_rate(second.point)} for {_price(second.point)}"
    return f"{opening}. Spending more did not help: {rest}."


def facts(runs: Sequence[Run]) -> list[str]:
    """Short statements that qualify the headline: size, model, and what difference could have been seen."""
    sizes = sorted({run.problems for run in runs})
    found = [f"{' or '.join(count(size) for size in sizes)} problems"]
    for name in ("model", "engine", "scorer"):
        values = {str(v) for run in runs if (v := run.entry.get(name)) not in (None, "")}
        found += [f"{name} {', '.join(sorted(values))}"] if values else []
    seeds = {str(seed) for run in runs if (seed := run.entry.get("seed")) is not None}
    found += [f"seed {', '.join(sorted(seeds))}"] if seeds else []
    detectable = [mde for run in runs if (mde := run.share("mde")) is not None]
    if detectable:
        found.append(f"an unpaired difference of {points(max(detectable)).lstrip('+')} points would be detected")
    if _overlaps(runs):
        found.append("the two intervals overlap (ttc compare gives the paired test)")
    return found


def _overlaps(runs: Sequence[Run]) -> bool:
    best = max(runs, key=lambda run: (run.point.accuracy, -_tokens(run.point)))
    others = [run for run in runs if run is not best]
    if not others:
        return False
    high, low = min(others, key=lambda run: _tokens(run.point)).point.high, best.point.low
    return high is not None and low is not None and high > low


def _single_sample(run: Run) -> Point | None:
    singles = [p for curve in run.curves if not curve.oracle for p in curve.points if p.k == 1]
    return singles[0] if singles and run.point.k > 1 else None


def _rate(point: Point) -> str:
    bounds = interval(point.low, point.high)
    return percent(point.accuracy) + ("" if bounds == MISSING else f" ({bounds})")


def _price(point: Point) -> str:
    return count(point.tokens)


def _tokens(point: Point) -> float:
    return point.tokens if point.tokens is not None else float("inf")
