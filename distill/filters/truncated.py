"""Drop answers that were cut: truncated is not finished, whatever the text says."""

from __future__ import annotations

from distill.data.pipeline import Filter, each, placed
from distill.spec.sample import Sample


@placed(20, usual=True)
def truncated() -> Filter:
    """Drop answers that a limit ended."""

    def judge(sample: Sample) -> str | None:
        finish = sample.answer.finish_reason
        return None if finish == "stop" else f"cut by {finish}"

    return each(judge)
