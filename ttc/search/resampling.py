"""Whole numbers of children by the unbiased resampling of sequential Monte Carlo.

Douc, Cappé, Moulines 2005, "Comparison of Resampling Schemes for Particle Filtering". Every scheme gives path i
num * weight_i copies on average. Multinomial draws each copy by itself; stratified draws one in each of `num` equal
strata; systematic draws once and repeats it in every stratum, so a path gets the floor or the ceiling of its share;
residual gives the floor first and draws the rest. The latter three vary less. Weights are kept as logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.search.tree import Dice

Scheme: TypeAlias = Literal["multinomial", "stratified", "systematic", "residual"]


def normalise(log_weights: Sequence[float]) -> list[float]:
    """Return weights that sum to 1, all equal if none is left (all -inf). Safe for any magnitude."""
    top = max(log_weights)
    if top == -math.inf:
        return [1.0 / len(log_weights)] * len(log_weights)
    raw = [math.exp(value - top) for value in log_weights]
    total = math.fsum(raw)
    return [value / total for value in raw]


def log_sum(log_weights: Sequence[float]) -> float:
    """Return the logarithm of the sum of the weights; -inf when none is left."""
    top = max(log_weights)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in log_weights))


def effective_size(log_weights: Sequence[float]) -> float:
    """Return 1 / sum of squared weights: between 1 and their number, which it is when all are equal."""
    return 1.0 / math.fsum(weight**2 for weight in normalise(log_weights))


def copies(scheme: Scheme, weights: Sequence[float], num: int, dice: Dice) -> list[int]:
    """Return how many of `num` copies each path gets; `weights` sum to 1, the copies sum to `num` exactly."""
    return _SCHEMES[scheme](weights, num, dice)


def _counted(weights: Sequence[float], points: Sequence[float]) -> list[int]:
    """Count the points in [0, 1) that fall on each weight when all are laid end to end."""
    edges = list(itertools.accumulate(weights))
    last = max(index for index, weight in enumerate(weights) if weight > 0)
    counts = [0] * len(weights)
    for point in points:
        at = next((index for index, edge in enumerate(edges) if point < edge), last)
        counts[at] += 1
    return counts


def _multinomial(weights: Sequence[float], num: int, dice: Dice) -> list[int]:
    return _counted(weights, [dice(i) for i in range(num)])


def _residual(weights: Sequence[float], num: int, dice: Dice) -> list[int]:
    # Whole numbers up to rounding count as whole: num equal weights leave nothing to draw.
    whole = [math.floor(num * weight + 1e-9) for weight in weights]
    left = num - sum(whole)
    if left <= 0:
        return whole
    rest = [max(num * weight - count, 0.0) / left for weight, count in zip(weights, whole, strict=True)]
    total = math.fsum(rest)
    extra = _multinomial([value / total for value in rest], left, dice)
    return [count + more for count, more in zip(whole, extra, strict=True)]


_SCHEMES: Mapping[Scheme, Callable[[Sequence[float], int, Dice], list[int]]] = MappingProxyType(
    {
        "multinomial": _multinomial,
        "stratified": lambda weights, num, dice: _counted(weights, [(i + dice(i)) / num for i in range(num)]),
        "systematic": lambda weights, num, dice: _counted(weights, [(i + dice(0)) / num for i in range(num)]),
        "residual": _residual,
    }
)
