"""Drop answers that contain a measured problem; prompts are checked before anything is spent.

Two detectors, equality and a shared run of n words (`evals.data.decontamination`), with the matched text in the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from distill.data.pipeline import Context, Filter, placed
from distill.spec.sample import Sample
from evals.data.decontamination import overlaps
from ttc.config.values import at_least


@placed(80, usual=True)
def contamination(*, n: int = 13) -> Filter:
    """Drop traces with measured problems in them.

    Args:
        n: words of a shared run.
    """
    at_least("filter contamination", 1, n=n)

    def judge(samples: Sequence[Sample], context: Context) -> list[str | None]:
        reasons: list[str | None] = [None] * len(samples)
        for overlap in overlaps([sample.text for sample in samples], context.measured, n=n):
            reasons[overlap.train] = f"holds a measured problem ({overlap.how}): {overlap.shared[:80]}"
        return reasons

    return judge
