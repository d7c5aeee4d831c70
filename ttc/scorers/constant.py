"""A constant scorer: every path gets the same score at no cost.

With it a search is sampling with random ties, as throughput runs and ablations of a scorer need.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.core import Prompt, Score, UsageSink


class ConstantScorer:
    """See the module docstring."""

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Return 0.5 for each prompt."""
        return [Score(0.5) for _ in prompts]

    def release(self, problem_id: str) -> None:
        """Do nothing: no state is kept."""


def constant() -> ConstantScorer:
    """Give every path the same score."""
    return ConstantScorer()
