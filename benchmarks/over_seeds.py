"""Statistics over training seeds: two intervals of a mean gain, and the seeds of the tables.

A t interval over the seeds' gains answers "would another training seed show it?"; the nested bootstrap resamples seeds,
and within each seed its questions (Davison and Hinkley 1997, section 3.8). An interval over the questions of one seed
says nothing about other seeds: the spread over seeds is several times as wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

SEEDS = (211, 223, 227, 229, 233)
"""Chosen before any run on them. Recipes and jobs were tuned on seed 1; results of others below 40 have been seen."""
TUNED_ON = 1
"""The seed whose runs decided steps and rates: named, and left out of what is said over seeds."""
T95: Mapping[int, float] = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for a two-sided 95 % interval, by the number of seeds."""
_DRAWS = 4_000


def t_interval(gains: Sequence[float]) -> tuple[float, float]:
    """The 95 % t interval of the mean over training seeds."""
    half = T95[len(gains)] * stdev(gains) / len(gains) ** 0.5
    return fmean(gains) - half, fmean(gains) + half


def nested(metrics: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The 95 % interval of the mean gain when seeds are drawn again, and in each of them its questions.

    A metric holds `gain`, and `gains` of its questions or `gain_low` and `gain_high`: where no gain per question was
    kept, the width of the metric's own interval over them stands for drawing them again.
    """
    rng = np.random.default_rng(0)
    total = np.zeros(_DRAWS)
    for _ in metrics:  # as many seeds as there are, each drawn again with its questions
        again = np.stack([_again(metric, rng) for metric in metrics])  # (seeds, draws)
        total += again[rng.integers(len(metrics), size=_DRAWS), np.arange(_DRAWS)]
    low, high = np.quantile(total / len(metrics), [0.025, 0.975])
    return float(low), float(high)


def _again(metric: Mapping[str, Any], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The gain of one seed, drawn again over its questions: (draws,)."""
    if "gains" not in metric:
        return rng.normal(metric["gain"], (metric["gain_high"] - metric["gain_low"]) / 3.92, _DRAWS)
    gains = np.array(metric["gains"])
    counts = rng.multinomial(len(gains), np.full(len(gains), 1 / len(gains)), _DRAWS)
    means: npt.NDArray[np.float64] = counts @ gains / len(gains)
    return means
