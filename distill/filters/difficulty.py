"""Keep problems that the student neither always nor never solves: difficulty from its own pass rate, not the teacher's.

s1 and open-r1 keep what the student-sized model misses. Cost: n draws of the student per problem, on the ledger like
any other; problems without a single verdict are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from distill.data.pipeline import Context, Filter, placed
from distill.spec.sample import Sample
from ttc.errors import ConfigError


@placed(110)
def difficulty(*, low: float = 0.0, high: float = 0.75, n: int = 4) -> Filter:
    """Keep answers to problems within a band of the student's pass rate.

    Args:
        low: least pass rate.
        high: largest pass rate.
        n: draws of the student per problem.
    """
    if not 0 <= low <= high <= 1 or n < 1:
        raise ConfigError(f"filter difficulty: needs 0 <= low <= high <= 1 and n >= 1, got {low}, {high} and {n}")

    def judge(samples: Sequence[Sample], context: Context) -> list[str | None]:
        rates = [context.pass_rates.get(sample.prompt) for sample in samples]
        return [_reason(rate, low, high) for rate in rates]

    return judge


def _reason(rate: float | None, low: float, high: float) -> str | None:
    if rate is None or low <= rate <= high:
        return None
    return f"too easy: the student solves {rate:.2f}" if rate > high else f"too hard: the student solves {rate:.2f}"
