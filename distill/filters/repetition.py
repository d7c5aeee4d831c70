"""Drop answers that repeat themselves: loops are learnt easily."""

from __future__ import annotations

from distill.data.pipeline import Filter, each, placed
from distill.spec.sample import Sample
from ttc.config.values import counted
from ttc.errors import ConfigError
from ttc.verifiers.format import repetition as repeated


@placed(70, usual=True)
def repetition(*, n: int = 8, max_share: float = 0.5) -> Filter:
    """Drop loops.

    Args:
        n: words of the runs that are compared.
        max_share: largest share of runs that have occurred before.
    """
    if n < 1 or not 0 <= max_share <= 1:
        raise ConfigError(f"filter repetition: needs n >= 1 and max_share in [0, 1], got {n} and {max_share}")

    def judge(sample: Sample) -> str | None:
        share = repeated(sample.text, n)
        return None if share <= max_share else f"repeats itself: {share:.2f} of its runs of {counted(n, 'word')}"

    return each(judge)
