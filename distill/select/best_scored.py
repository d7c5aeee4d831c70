"""The answers with the best scores, for teachers whose strategy scores its paths. Answers without a score come last."""

from __future__ import annotations

import math
from collections.abc import Sequence

from distill.data.pipeline import Selector
from distill.spec.sample import Sample


def best_scored() -> Selector:
    """Order by the score of the chosen path, highest first; ties by length."""

    def order(samples: Sequence[Sample], seed: int) -> list[Sample]:
        return sorted(samples, key=lambda sample: (-_score(sample), sample.num_tokens, sample.index, sample.key))

    return order


def _score(sample: Sample) -> float:
    """The highest score among the paths that hold the chosen text."""
    answer = sample.answer
    scores = [c.score for c in answer.candidates if c.text == answer.text and c.score is not None]
    return max(scores, default=-math.inf)
