"""From step scores to one number: last, min, prod or mean, over all steps or the last few.

Lightman et al. 2023 ("Let's Verify Step by Step") use prod and min; Snell et al. 2024 use last. The product is taken in
the log domain. A `window` forgets early steps: a min or a product then no longer falls with length alone. A score
without a verdict stays without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.core import Score
from ttc.errors import ConfigError

How: TypeAlias = Literal["last", "min", "prod", "mean"]


def _prod(steps: Sequence[float]) -> float:
    return math.exp(sum(math.log(step) for step in steps)) if all(step > 0 for step in steps) else 0.0


_RULES: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"last": lambda steps: steps[-1], "min": min, "prod": _prod, "mean": lambda s: math.fsum(s) / len(s)}
)


def aggregate(score: Score, how: How = "last", window: int | None = None) -> float | None:
    """Aggregate `score.steps`, or its last `window`; a scorer without steps gives its own `value`.

    >>> aggregate(Score(0.8, (0.9, 0.5, 0.8)), "min")
    0.5
    >>> aggregate(Score(0.8, (0.9, 0.5, 0.8)), "min", 1)
    0.8
    """
    if score.value is None or not score.steps:
        return score.value
    return _RULES[how](score.steps if window is None else score.steps[-window:])


def check_window(window: int | None) -> None:
    """Refuse a window without a step."""
    if window is not None and window < 1:
        raise ConfigError(f"window must be >= 1 or absent, got {window}")
