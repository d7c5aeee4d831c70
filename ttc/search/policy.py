"""What an allocation policy is: from the scores of the live nodes to the number of children of each.

A policy is pure: no randomness of its own, no state, no view of text or targets. Nodes arrive in path order, so a tie
goes to the earlier path whatever finished first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """Decides how wide each live node grows."""

    def subtrees(self, n: int) -> tuple[int, ...]:
        """Split the width n into independent subtrees; their widths sum to n."""
        ...

    def allocate(self, scores: Sequence[float], width: int) -> list[int]:
        """Children of each live node; they sum to `width` exactly. A node without a verdict scores -inf."""
        ...


def keep_top(scores: Sequence[float], width: int, keep: int) -> list[int]:
    """Give `width` children to the `keep` best nodes, as equally as possible, the better ones first.

    >>> keep_top([0.1, 0.9, 0.5], 5, 2)
    [0, 3, 2]
    """
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: max(1, min(keep, width))]
    counts = [0] * len(scores)
    for rank, index in enumerate(order):
        counts[index] = width // len(order) + (rank < width % len(order))
    return counts
