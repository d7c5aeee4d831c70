"""Answers in a random order that the job's seed decides: what the teacher writes on average."""

from __future__ import annotations

from collections.abc import Sequence

from distill.data.pipeline import Selector
from distill.spec.sample import Sample
from ttc import seeds


def random() -> Selector:
    """Order by a hash of the seed and the answer's key."""

    def order(samples: Sequence[Sample], seed: int) -> list[Sample]:
        return sorted(samples, key=lambda sample: (seeds.derive(seed, "select", sample.key), sample.key))

    return order
