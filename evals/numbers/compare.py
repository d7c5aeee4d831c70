"""Paired comparison of runs on the problems they share.

Every pair (first, second) is compared as second minus first: difference of accuracy with its interval, exact McNemar
on the problems that only one of them solved, and Holm's correction over all pairs of the comparison (Dror et al. 2018,
arXiv:1809.01448, on why paired). Clusters and several seeds make more of a problem than one pair, or less: there both
are of as many pairs as vary as much (`evals.numbers.statistics`). The interval leaves out 0 exactly where p < 5 %. A
comparison at equal FLOPs sets the cheaper side higher first: the baseline's vote is taken at the smallest k of its pool
that costs at least as much as the other run.

A side may hold several runs that differ only by their seeds. Then a problem counts with its share of right answers and
the cost of one run, so the interval covers both the problems and the draws, and no seed is paired with another.

Cost: milliseconds. Left out: equivalence tests, comparisons across different problems.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evals.numbers.statistics import holm, minimum_detectable, paired_interval, paired_test, standard_error
from evals.numbers.summary import (
    cluster_of,
    curve_values,
    exchangeable,
    generated_beside,
    is_correct,
    total_usage,
    votes,
)
from ttc.core import NO_VERDICT, Answer, Record
from ttc.errors import ConfigError

ROUNDING = 1e-9
"""The share by which FLOPs may differ through rounding; less than one draw."""


@dataclass(frozen=True, slots=True)
class Side:
    """One run of a comparison, or several of different seeds: a label and the records, one per problem and run."""

    label: str
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class EqualFlops:
    """Second minus the vote of k of the first's candidates, where k costs at least the second's FLOPs."""

    k: int
    flops_ratio: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Second minus first on their shared problems; ratios are second over first, None where the first is free."""

    first: str
    second: str
    problems: int
    accuracy_first: float
    accuracy_second: float
    difference: float
    low: float
    high: float
    only_first: int
    only_second: int
    pairs: float
    """The effective pairs of draws that interval and p-value are of: as many as problems, but for clusters and seeds.
    """
    p_value: float
    p_holm: float
    detectable: float | None
    """The smallest difference that would usually be detected; None where no problem differs, as the spread is unknown.
    """
    tokens_ratio: float | None
    flops_ratio: float | None
    equal_flops: EqualFlops | None
    needed_n: int | None
    """Samples that the first would need to reach the second's FLOPs, where its pool is too small for `equal_flops`."""
    failed_first: int
    """Shared problems that failed there: they count as not right."""
    failed_second: int
    undecided_first: int
    """Shared problems whose answers got no verdict there: they count as not right, too."""
    undecided_second: int
    alone_first: int
    """Problems that only it has: they are left out."""
    alone_second: int


def compare_all(sides: Sequence[Side], *, seed: int) -> list[RunComparison]:
    """Compare every later run with every earlier one, Holm-corrected over all of them.

    Raises:
        ConfigError: fewer than two runs, or two that share no problem.
    """
    if len(sides) < 2:
        raise ConfigError("a comparison needs at least two runs")
    pairs = [(first, second) for i, second in enumerate(sides) for first in sides[:i]]
    tests = [_Paired(first, second) for first, second in pairs]
    adjusted = holm([test.p_value for test in tests])
    return [test.result(p_holm, seed) for test, p_holm in zip(tests, adjusted, strict=True)]


class _Paired:
    """The shared problems of two sides, in one order."""

    def __init__(self, first: Side, second: Side) -> None:
        self.first, self.second = first, second
        ours, theirs = _by_problem(first), _by_problem(second)
        shared = [name for name in ours if name in theirs]
        for side in (first, second):
            if not side.records:
                raise ConfigError(f"{side.label} has no finished problem yet; let its ttc eval go on first")
        if not shared:
            raise ConfigError(
                f"{first.label} and {second.label} share no problem; run them on the same task and problems seed"
            )
        _check_same_targets(ours, theirs, shared, first.label, second.label)
        self.by_problem = [ours[name] for name in shared]
        self.rows_first = [record for name in shared for record in ours[name]]
        self.rows_second = [record for name in shared for record in theirs[name]]
        self.clusters = [cluster_of(records[0]) for records in self.by_problem]
        self.right_first = [_mean(list(map(is_correct, ours[name]))) for name in shared]
        self.right_second = [_mean(list(map(is_correct, theirs[name]))) for name in shared]
        pairs = list(zip(self.right_first, self.right_second, strict=True))
        self.only_first = sum(a > b for a, b in pairs)
        self.only_second = sum(b > a for a, b in pairs)
        drawn = sum(2 / (1 / len(ours[name]) + 1 / len(theirs[name])) for name in shared)
        self.tested = paired_test(self.right_first, self.right_second, self.clusters, pairs=drawn)
        self.p_value = self.tested.p_value
        self.pool_size, self.flops_per_draw = _pool(self.rows_first)
        self.alone = len(ours) - len(shared), len(theirs) - len(shared)

    def result(self, p_holm: float, seed: int) -> RunComparison:
        interval = self.tested.interval
        error = standard_error([b - a for a, b in zip(self.right_first, self.right_second, strict=True)], self.clusters)
        count = len(self.clusters)
        cost_first, cost_second = total_usage(self.rows_first), total_usage(self.rows_second)
        one = len(self.rows_second) / len(self.rows_first)  # how many runs of the second stand against one of the first
        draws = cost_second.flops / one / self.flops_per_draw if self.flops_per_draw else 0.0
        k = math.ceil(draws * (1 - ROUNDING))
        fits = 0 < k <= self.pool_size
        return RunComparison(
            first=self.first.label,
            second=self.second.label,
            problems=count,
            accuracy_first=sum(self.right_first) / count,
            accuracy_second=sum(self.right_second) / count,
            difference=interval.value,
            low=interval.low,
            high=interval.high,
            only_first=self.only_first,
            only_second=self.only_second,
            pairs=self.tested.pairs,
            p_value=self.p_value,
            p_holm=p_holm,
            detectable=minimum_detectable(error, pairs=self.tested.pairs) if error > 0 else None,
            tokens_ratio=_ratio(cost_second.tokens / one, cost_first.tokens),
            flops_ratio=_ratio(cost_second.flops / one, cost_first.flops),
            equal_flops=self._equal_flops(k, draws / k, seed) if fits else None,
            needed_n=k if k and not fits else None,
            failed_first=sum(row.error is not None for row in self.rows_first),
            failed_second=sum(row.error is not None for row in self.rows_second),
            undecided_first=sum(map(_is_undecided, self.rows_first)),
            undecided_second=sum(map(_is_undecided, self.rows_second)),
            alone_first=self.alone[0],
            alone_second=self.alone[1],
        )

    def _equal_flops(self, k: int, ratio: float, seed: int) -> EqualFlops:
        values = iter(curve_values([votes(record) for record in self.rows_first], "majority", k, seed))
        vote = [_mean([next(values) for _ in records]) for records in self.by_problem]
        interval = paired_interval(vote, self.right_second, self.clusters, seed=seed)
        return EqualFlops(k, ratio, interval.value, interval.low, interval.high)


def _by_problem(side: Side) -> dict[str, list[Record]]:
    records: dict[str, list[Record]] = {}
    for record in side.records:
        records.setdefault(record.problem.id, []).append(record)
    return records


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _pool(records: Sequence[Record]) -> tuple[int, float]:
    """Return (draws that every solved problem has, FLOPs of one draw on all problems); zeros where they cannot be told.

    They cannot where a pool was scored or judged, or more was asked beside it: the cost of the draws alone is not
    known.
    """
    solved = [record.answer for record in records if record.answer is not None]
    size = min((len(answer.candidates) for answer in solved), default=0)
    if size < 2 or not exchangeable(records) or not all(map(_is_of_draws, solved)):
        return 0, 0.0
    draws = sum(len(answer.candidates) for answer in solved)
    return size, total_usage(records).flops / draws * len(solved)


def _is_undecided(record: Record) -> bool:
    return record.verdict is not None and record.verdict.status in NO_VERDICT


def _is_of_draws(answer: Answer) -> bool:
    """Whether everything spent went into the draws of the candidates."""
    return not (answer.usage.scored or answer.usage.judged or generated_beside(answer))


def _check_same_targets(
    ours: Mapping[str, Sequence[Record]],
    theirs: Mapping[str, Sequence[Record]],
    shared: Sequence[str],
    first: str,
    second: str,
) -> None:
    for name in shared:
        if ours[name][0].target != theirs[name][0].target:
            raise ConfigError(f"{first} and {second} have different targets for problem {name!r}: not the same task")


def _ratio(above: float, below: float) -> float | None:
    return above / below if above and below else None
