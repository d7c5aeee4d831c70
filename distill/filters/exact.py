"""Drop answers that equal another answer to the same prompt, apart from case, spaces and Unicode forms."""

from __future__ import annotations

from collections.abc import Sequence

from distill.data.pipeline import Context, Filter, placed
from distill.spec.sample import Sample
from evals.data.decontamination import normalised


@placed(90, usual=True)
def exact() -> Filter:
    """Keep the first of equal answers."""

    def judge(samples: Sequence[Sample], context: Context) -> list[str | None]:
        first: dict[tuple[str, str, str], str] = {}
        reasons: list[str | None] = []
        for sample in samples:
            same = first.setdefault((sample.prompt, sample.label, normalised(sample.text)), sample.key)
            reasons.append(None if same == sample.key else f"equal: {same}")
        return reasons

    return judge
