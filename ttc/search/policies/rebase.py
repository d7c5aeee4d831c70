"""REBASE, reward-balanced search: children in proportion to the softmax of the scores, in one tree.

Wu et al. 2024, "Inference Scaling Laws" (arXiv 2408.00724). Whole numbers by largest remainder: they sum to the width
exactly, never decrease with the score, and are less than one away from the share (the reference code rounds up in turn,
which over-allocates). `temperature` near 0 gives all to the best, a large one shares equally. Keeps more distinct paths
than a beam does; needs scores that are meaningful before the end. Ties: the earlier path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ttc.errors import ConfigError
from ttc.search.resampling import normalise
from ttc.search.tree import Policy


@dataclass(frozen=True, slots=True)
class Rebase(Policy):
    """See the module docstring."""

    temperature: float

    def allocate(self, scores: Sequence[float], width: int) -> list[int]:
        """Floor of each share, and the rest one by one to the largest remainders."""
        shares = [width * weight for weight in normalise([score / self.temperature for score in scores])]
        counts = [math.floor(share) for share in shares]
        order = sorted(range(len(scores)), key=lambda i: (counts[i] - shares[i], -scores[i], i))
        for index in order[: width - sum(counts)]:
            counts[index] += 1
        return counts


def rebase(*, temperature: float = 0.2) -> Policy:
    """Make the policy.

    Args:
        temperature: T_b of the paper, in units of the score.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"rebase: temperature must be > 0, got {temperature}")
    return Rebase(temperature)
