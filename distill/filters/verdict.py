"""Keep what the verifier calls correct.

No verdict (a timeout, an error) does not mean wrong, but there is nothing to learn either.
"""

from __future__ import annotations

from distill.data.pipeline import Filter, each, placed
from distill.spec.sample import Sample


@placed(30, usual=True)
def verdict() -> Filter:
    """Keep verified answers."""

    def judge(sample: Sample) -> str | None:
        outcome = sample.verdict
        if outcome is None:
            return "no verdict"
        return None if outcome.correct else f"{outcome.status}: {outcome.reason}"

    return each(judge)
