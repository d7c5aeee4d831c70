"""The shortest right answers first: small students learn short, simple traces best (arXiv 2502.12143)."""

from __future__ import annotations

from collections.abc import Sequence

from distill.data.pipeline import Selector
from distill.spec.sample import Sample


def shortest() -> Selector:
    """Order by length in tokens, then by the number of the draw."""

    def order(samples: Sequence[Sample], seed: int) -> list[Sample]:
        return sorted(samples, key=lambda sample: (sample.num_tokens, sample.index, sample.key))

    return order
