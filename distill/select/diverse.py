"""Answers as different from each other as possible: the shortest first, then always the one least like those taken.

RFT (arXiv 2308.01825) finds that distinct reasoning paths are what more samples are good for. Cost: quadratic in the
answers to one prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from distill.data.pipeline import Selector
from distill.filters.near import jaccard, shingles
from distill.spec.sample import Sample
from ttc.config.values import at_least


def diverse(*, n: int = 8) -> Selector:
    """Order by unlikeness.

    Args:
        n: characters of the shingles that are compared.
    """
    at_least("selector diverse", 1, n=n)

    def order(samples: Sequence[Sample], seed: int) -> list[Sample]:
        left = sorted(samples, key=lambda sample: (sample.num_tokens, sample.index, sample.key))
        sets = {sample.key: shingles(sample.text, n) for sample in left}
        order_so_far: list[Sample] = []
        while left:
            alike = [max((jaccard(sets[s.key], sets[t.key]) for t in order_so_far), default=0.0) for s in left]
            order_so_far.append(left.pop(alike.index(min(alike))))
        return order_so_far

    return order
