"""Two verifiers, or two versions of one, on the same submissions: where they differ and how often they agree.

Agreement counts where both decided (correct or incorrect): no verdict is not a vote. Its interval is Wilson's (1927)
for independent rows. Left out: which of the two is right; the rows are there to be read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from ttc.core import Verdict

__all__ = ["Disagreement", "summary_lines", "tally", "wilson"]

DECIDED = ("correct", "incorrect")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """`transitions` counts rows by (first status, second status).

    `agreement` is the share of the `decided` rows, where both were correct or incorrect, on which the two are the same,
    from `low` to `high` at 95 %; all three are NaN where nothing was decided by both.
    """

    count: int
    decided: int
    agreement: float
    low: float
    high: float
    transitions: Mapping[tuple[str, str], int]

    @property
    def differing(self) -> int:
        """Rows with two different statuses."""
        return sum(count for (first, second), count in self.transitions.items() if first != second)


def tally(pairs: Iterable[tuple[Verdict, Verdict]]) -> Disagreement:
    """Compare the verdicts of two verifiers, row by row."""
    transitions: Counter[tuple[str, str]] = Counter((first.status, second.status) for first, second in pairs)
    decided = sum(count for pair, count in transitions.items() if set(pair) <= set(DECIDED))
    same = sum(transitions[status, status] for status in DECIDED)
    low, high = wilson(same, decided)
    ordered = dict(sorted(transitions.items(), key=lambda item: (item[0][0] == item[0][1], -item[1], item[0])))
    share = same / decided if decided else math.nan
    return Disagreement(sum(transitions.values()), decided, share, low, high, ordered)


def summary_lines(first: str, second: str, found: Disagreement) -> list[str]:
    """Say how often `first` and `second` (versions) agree, and what became what."""
    lines = [
        f"first   {first or 'nothing'}",
        f"second  {second}",
        f"{found.count:,} rows, {found.differing:,} differ",
    ]
    if found.decided:
        share, low, high = (f"{100 * value:.2f}" for value in (found.agreement, found.low, found.high))
        lines.append(f"where both decided ({found.decided:,}) they agree on {share} % (95 %: {low} to {high})")
    lines += [f"  {before:>11} -> {after:<11} {count:>8,}" for (before, after), count in found.transitions.items()]
    return lines


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval of a share; NaN without trials."""
    if not trials:
        return math.nan, math.nan
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)
