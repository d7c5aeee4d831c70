"""A scorer without an opinion: every path gets the same score at no cost.

With it a search is sampling with random ties, which is what throughput runs and ablations of a scorer need.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.config.signatures import checked_by
from ttc.core import Prompt, Score, UsageSink
from ttc.errors import ConfigError


class ConstantScorer:
    """See the module docstring."""

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Give 0.5 to each prompt."""
        return [Score(0.5) for _ in prompts]

    def release(self, problem_id: str) -> None:
        """Nothing is kept."""


def _check(model: str | None) -> None:
    if model is not None:
        raise ConfigError("scorer constant takes no model")


@checked_by(_check)
def constant(model: str | None = None) -> ConstantScorer:
    """Give every path the same score.

    Args:
        model: must be absent.
    """
    return ConstantScorer()
