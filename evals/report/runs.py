"""What a report draws: a `RunSummary` per (run, strategy), read from the entries of `summary.json`, and its headline.

The summary is where every number of the page comes from; nothing is estimated here. A `Curve` is what one pool of
candidates gives at smaller k, of one kind (majority, best_of_n, weighted, pass, …). `pass` needs the answer key to
choose, so it is drawn as a ceiling and never stands on the frontier.

A run is called by one rule in tables, reports and comparisons (`labels`): whatever decided it stands in its name.

    direct, greedy            direct            majority N=16, t=0.5            tree N=16, beam_width=4

The strategy, its n, then every setting that is not its default, the temperature first (0 is greedy; the usual one is
the task's). How many samples a strategy without an n took is an outcome and not part of its name. Runs of the same name
in one list also say where they differ (model, seed, thinking, ...), or are numbered where they do not. Runs recorded
before settings were kept at least show that they were greedy.

The headline says what compute bought, with its interval and its price: the most accurate run and the cheapest one. It
also says when nothing beat the cheapest, when nothing is left to gain and when problems failed. The facts below it say
when intervals overlap or runs have different problems, so that the headline never claims more than the figure shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from evals.report.kit import MISSING, count, finite, interval, percent, points
from ttc.config.values import counted
from ttc.core import NO_VERDICT
from ttc.errors import RecordError

Axis: TypeAlias = Literal["tokens", "flops"]
ORACLE_KINDS = frozenset({"pass", "pass_at_k", "coverage", "oracle"})
_APART = ("engine", "model", "scorer", "seed", "problems_seed", "version")
"""What can tell runs of one name apart, beside the tables of their options."""
_TABLES = MappingProxyType(
    {"params": "", "sampling": "", "budget": "budget.", "engine_params": "engine.", "scorer_params": "scorer."}
)
_SAID_APART = ("n", "temperature", "seed")
"""Options in these tables that are already in a name or a column: samples, temperature, the run's seed."""


@dataclass(frozen=True, slots=True)
class Point:
    """Accuracy (share, with its 95 % interval) at a cost per problem; `k` is the number of candidates used."""

    k: int
    accuracy: float
    low: float | None
    high: float | None
    tokens: float | None
    flops: float | None

    def cost(self, axis: Axis) -> float | None:
        """Cost on `axis`, or None where it is unknown or not positive (a log axis has no place for it)."""
        value = self.tokens if axis == "tokens" else self.flops
        return value if value is not None and value > 0 else None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one kind from one pool, by k ascending."""

    kind: str
    points: tuple[Point, ...]

    @property
    def oracle(self) -> bool:
        """Whether choosing this way needs the answer key."""
        return self.kind in ORACLE_KINDS


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One strategy on one task: its label, its own point, its sub-sampled curves and the whole summary entry."""

    label: str
    point: Point
    curves: tuple[Curve, ...]
    entry: Mapping[str, Any]

    @property
    def group(self) -> str:
        """The task and level as a reader would say it; only runs of one group share a figure."""
        level = self.entry.get("level")
        task = str(self.entry.get("task", "task"))
        return task if level in (None, "") else f"{task} level {level}"

    @property
    def key(self) -> str:
        """Unique among the runs of a report: labels alone are unique within a group."""
        return f"{self.group}/{self.label}"

    @property
    def points(self) -> list[Point]:
        """Its own point, then those of its curves."""
        return [self.point, *(point for curve in self.curves for point in curve.points)]

    @property
    def problems(self) -> int:
        """How many problems were run."""
        return int(self.entry["problems"])

    @property
    def asked(self) -> int:
        """How often a problem was asked: once, and of several seeds once by each."""
        return int(self.entry.get("asked") or self.problems)

    @property
    def failures(self) -> int:
        """How many problems ended in an error."""
        return int(self.entry.get("errors") or 0)

    @property
    def unjudged(self) -> int:
        """How many answers the verifier did not decide on."""
        verdicts = self.entry.get("verdicts") or {}
        return sum(int(verdicts.get(status) or 0) for status in NO_VERDICT)

    def share(self, name: str) -> float | None:
        """A rate of the summary in [0, 1] (`truncated`, `no_answer`, `selection_regret`), or None."""
        return finite(self.entry.get(name))

    def usage_per_problem(self, name: str) -> float:
        """Tokens (or calls, FLOPs) of one role per problem; 0 where the summary has no such column."""
        return (finite(self.entry.get("usage", {}).get(name)) or 0.0) / max(self.asked, 1)


def read_runs(summaries: Sequence[Mapping[str, Any]]) -> list[RunSummary]:
    """Parse summary entries, in order; raises RecordError naming the entry and field that is missing or broken."""
    pairs = zip(summaries, labels(summaries), strict=True)
    return [_read(entry, label, i) for i, (entry, label) in enumerate(pairs)]


def labels(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each summary entry, no two alike within a task and level."""
    names = [_name(entry) for entry in entries]
    kinds = [(entry.get("task"), entry.get("level"), name) for entry, name in zip(entries, names, strict=True)]
    longer: list[str] = []
    for entry, name, kind in zip(entries, names, kinds, strict=True):
        rivals = [other for other, rival in zip(entries, kinds, strict=True) if rival == kind]
        longer.append(", ".join([name, *_differences(entry, rivals)]))
    full = list(zip(kinds, longer, strict=True))
    return [
        f"{label} #{full[: i + 1].count(item)}" if full.count(item) > 1 else label
        for i, (item, label) in enumerate(zip(full, longer, strict=True))
    ]


def _name(entry: Mapping[str, Any]) -> str:
    n, strategy = entry.get("params", entry).get("n"), str(entry.get("strategy", "?"))
    head = f"{strategy} N={n}" if isinstance(n, int) and n > 1 else strategy
    seeds = [counted(len(entry["seeds"]), "seed")] if "seeds" in entry else []
    return ", ".join([head, *(_said(name, value) for name, value in _settings(entry).items()), *seeds])


def _settings(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = entry.get("settings")
    if isinstance(settings, Mapping):
        return settings
    temperature = _temperature(entry)
    return {"temperature": temperature} if temperature == 0 else {}


def _said(name: str, value: Any) -> str:
    if name == "temperature":
        return "greedy" if value == 0 else f"t={value:g}"
    values = value if isinstance(value, list) else [value]
    return f"{name}={','.join(map(_short, values))}"


def _short(value: Any) -> str:
    """A value in a name; of a file only its own name, since a whole path would be wider than the table."""
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return PurePath(text).name if isinstance(value, str) and PurePath(text).suffix and "/" in text else text


def _differences(entry: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells an entry from others of its name; nothing where the entry has no value for it."""
    mine, all_of = _identity(entry), [_identity(rival) for rival in rivals]
    apart = [key for key in mine if len({json.dumps(other.get(key), default=str) for other in all_of}) > 1]
    return [_said(key, mine[key]) for key in apart if mine[key] is not None]


def _identity(entry: Mapping[str, Any]) -> dict[str, Any]:
    identity = {name: entry[name] for name in _APART if name in entry} | {"temperature": _temperature(entry)}
    for table, prefix in _TABLES.items():
        values = entry.get(table) or {}
        identity |= {f"{prefix}{name}": value for name, value in values.items() if name not in _SAID_APART}
    thinking = entry.get("thinking") or {}
    return identity | {"thinking" if name == "mode" else f"thinking.{name}": value for name, value in thinking.items()}


def _temperature(entry: Mapping[str, Any]) -> float | None:
    """The temperature that was drawn at: the strategy's own, else the run's."""
    own = (entry.get("params") or {}).get("temperature")
    return entry.get("temperature") if own is None else own


def groups(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Runs by task and level, in order of first appearance."""
    by_group: dict[str, list[RunSummary]] = {}
    for run in runs:
        by_group.setdefault(run.group, []).append(run)
    return by_group


def frontier(runs: Sequence[RunSummary], axis: Axis) -> list[Point]:
    """Points that no cheaper (or equally cheap) choice beats, by cost; what needs the answer key is not a choice."""
    curves = [c for run in runs for c in run.curves if not c.oracle]
    choices = [run.point for run in runs] + [p for c in curves for p in c.points]
    priced = [(cost, -p.accuracy, p) for p in choices if (cost := p.cost(axis)) is not None]
    best: list[Point] = []
    for _, _, point in sorted(priced, key=lambda item: item[:2]):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best


def drawn_curves(runs: Sequence[RunSummary], axis: Axis) -> list[tuple[int, Curve]]:
    """(run index, curve) of what a figure shows: points with a cost, and each curve once.

    Draws are keyed by place, not by strategy, so two strategies often hold the same pool, with the same curve.
    """
    curves: list[tuple[int, Curve]] = []
    shapes: set[tuple[object, ...]] = set()
    for i, run in enumerate(runs):
        for curve in run.curves:
            priced = Curve(curve.kind, tuple(p for p in curve.points if p.cost(axis) is not None))
            same = (priced.kind, *((p.k, p.accuracy) for p in priced.points))
            if priced.points and same not in shapes:
                shapes.add(same)
                curves.append((i, priced))
    return curves


def _read(entry: Mapping[str, Any], label: str, index: int) -> RunSummary:
    try:
        own = _point(entry, int(entry.get("n") or 1), entry["tokens_per_problem"], entry.get("flops_per_problem"))
        _ = (entry["strategy"], int(entry["problems"]))
        return RunSummary(label, own, _curves(entry.get("curve") or ()), entry)
    except KeyError as exc:
        raise RecordError(f"summary entry {index}: field {exc.args[0]!r} is missing; run the evaluation again") from exc
    except (TypeError, ValueError) as exc:
        raise RecordError(f"summary entry {index} ({label}): {exc}") from exc


def _point(row: Mapping[str, Any], k: int, tokens: object, flops: object) -> Point:
    low, high = finite(row.get("low")), finite(row.get("high"))
    return Point(k, float(row["accuracy"]), low, high, finite(tokens), finite(flops) or None)


def _curves(rows: Sequence[Mapping[str, Any]]) -> tuple[Curve, ...]:
    kinds: dict[str, list[Point]] = {}
    for row in rows:
        point = _point(row, int(row["k"]), row.get("tokens"), row.get("flops"))
        kinds.setdefault(str(row.get("kind", "")), []).append(point)
    return tuple(Curve(kind, tuple(sorted(ps, key=lambda p: p.k))) for kind, ps in kinds.items())


def headline(runs: Sequence[RunSummary]) -> str:
    """What runs of one group gave, and how many problems failed or got no verdict; raises ValueError without runs."""
    failed = {run.label: run.failures for run in runs if run.failures}
    undecided = {run.label: run.unjudged for run in runs if run.unjudged}
    if (failed or undecided) and all(run.failures + run.unjudged == run.asked for run in runs):
        how = " or ".join([*(["failed"] if failed else []), *(["got no verdict"] if undecided else [])])
        return f"Nothing was measured: {_all_of(runs[0])} {how}."
    return _outcome(runs) + _counted("Failed", failed) + _counted("No verdict", undecided)


def _counted(what: str, numbers: Mapping[str, int]) -> str:
    counts = ", ".join(f"{_problems(number)} of {label}" for label, number in numbers.items())
    return f" {what}, and counted as wrong: {counts}." if numbers else ""


def _outcome(runs: Sequence[RunSummary]) -> str:
    best, others = _best_and_others(runs)
    if others and min(runs, key=lambda run: _tokens(run.point)).point.accuracy == 1:
        opening = f"{best.label} answers {_all_of(best)} for {_price(best.point)} tokens each"
        return f"{opening}: more has nothing to gain there."
    opening = f"{best.label} answers {_rate(best.point)} of {best.group} for {_price(best.point)} tokens a problem"
    if not others:
        single = _single_sample(best)
        aside = f"; one sample of the same pool answers {_rate(single)} for {_price(single)}" if single else ""
        return f"{opening}{aside}."
    cheapest = min(others, key=lambda run: _tokens(run.point))
    if _tokens(cheapest.point) < _tokens(best.point):
        return f"{opening}; {cheapest.label} answers {_rate(cheapest.point)} for {_price(cheapest.point)}."
    second = max(others, key=lambda run: run.point.accuracy)
    rest = f"{second.label} answers {_rate(second.point)} for {_price(second.point)}"
    num_sets = len({(run.problems, run.entry.get("problems_seed")) for run in runs})
    if num_sets > 1 or any(run.failures or run.unjudged for run in runs):
        return f"{opening}; {rest}."
    return f"{opening}. Spending more did not help: {rest}."


def _problems(number: int) -> str:
    return counted(number, "problem")


def sizes_text(sizes: Sequence[int]) -> str:
    """How many problems runs hold: "1 problem", "20 problems", "1 or 20 problems"."""
    *others, last = sizes
    return " or ".join([*map(count, others), counted(last, "problem")])


def _all_of(run: RunSummary) -> str:
    return f"all {count(run.problems)} problems of {run.group}" if run.problems > 1 else f"the problem of {run.group}"


def models(runs: Sequence[RunSummary]) -> list[str]:
    """The models of runs: a hub id whole, of a longer path its last name; nothing for the packaged one."""
    names = {str(run.entry["model"]) for run in runs if run.entry.get("model")}
    return sorted(name if name.count("/") < 2 else PurePath(name).name for name in names)


def facts(runs: Sequence[RunSummary]) -> list[str]:
    """Short statements that qualify the headline: size, model, and what difference could have been seen."""
    sizes = sorted({run.problems for run in runs})
    lines = [sizes_text(sizes)]
    for name in ("model", "engine", "scorer"):
        values = {str(v) for run in runs if (v := run.entry.get(name)) not in (None, "")}
        lines += [f"{name} {', '.join(sorted(values))}"] if values else []
    seeds = {str(seed) for run in runs if (seed := run.entry.get("seed")) is not None}
    lines += [f"seed {', '.join(sorted(seeds))}"] if seeds else []
    lines += [text for run in runs if (text := by_seed(run))]
    detectable = [mde for run in runs if (mde := run.share("mde")) is not None]
    if detectable:
        size = points(max(detectable)).lstrip("+")
        lines.append(f"unpaired, differences below {size} points would mostly go unseen (ttc compare pairs them)")
    if _overlaps(runs):
        lines.append("the two intervals overlap (ttc compare gives the paired test)")
    return lines


def by_seed(run: RunSummary) -> str:
    """What each seed of a run gave; empty where it has one."""
    seeds: Mapping[str, float] = run.entry.get("seeds") or {}
    rates = ", ".join(f"{percent(accuracy)} with seed {seed}" for seed, accuracy in seeds.items())
    return rates and f"{run.label}: {rates}"


def _best_and_others(runs: Sequence[RunSummary]) -> tuple[RunSummary, list[RunSummary]]:
    best = max(runs, key=lambda run: (run.point.accuracy, -_tokens(run.point)))
    return best, [run for run in runs if run is not best]


def _overlaps(runs: Sequence[RunSummary]) -> bool:
    best, others = _best_and_others(runs)
    if not others:
        return False
    high, low = min(others, key=lambda run: _tokens(run.point)).point.high, best.point.low
    return high is not None and low is not None and high > low


def _single_sample(run: RunSummary) -> Point | None:
    singles = [p for curve in run.curves if not curve.oracle for p in curve.points if p.k == 1]
    return singles[0] if singles and run.point.k > 1 else None


def _rate(point: Point) -> str:
    bounds = interval(point.low, point.high)
    return percent(point.accuracy) + ("" if bounds == MISSING else f" ({bounds})")


def _price(point: Point) -> str:
    return count(point.tokens)


def _tokens(point: Point) -> float:
    return point.tokens if point.tokens is not None else float("inf")
