"""From step scores to one number: last, min, prod or mean.

Lightman et al. 2023 ("Let's Verify Step by Step") use prod and min; Snell et al. 2024 use last. The product is taken in
the log domain. A score without a verdict stays without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.core import Score

How: TypeAlias = Literal["last", "min", "prod", "mean"]


def _prod(steps: Sequence[float]) -> float:
    return math.exp(sum(math.log(step) for step in steps)) if all(step > 0 for step in steps) else 0.0


_RULES: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"last": lambda steps: steps[-1], "min": min, "prod": _prod, "mean": lambda s: math.fsum(s) / len(s)}
)


def aggregate(score: Score, how: How = "last") -> float | None:
    """Aggregate `score.steps`; a scorer without steps gives its own `value`.

    >>> aggregate(Score(0.8, (0.9, 0.5, 0.8)), "min")
    0.5
    """
    if score.value is None or not score.steps:
        return score.value
    return _RULES[how](score.steps)
