"""Effect 9: adaptive stopping saves most where answers agree."""

from __future__ import annotations

import asyncio
import functools
import math

from benchmarks.effects.common import Cell, Effect, answer_all, is_right, problems
from ttc.engines.simulated import simulated
from ttc.strategies.adaptive import adaptive


def adaptive_saves(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("adaptive stopping saves most where answers agree, at next to no accuracy")
    for q, samples, accuracy in ((0.9, 5.6218, 0.9999), (0.8, 8.7175, 0.9981), (0.7, 15.1137, 0.9851)):
        asked = problems(4 * num, None)
        found = asyncio.run(answer_all(asked, simulated(p=q, steps=1, num_wrong=1), functools.partial(adaptive, n=40)))
        right = [float(is_right(problem, answer.final)) for problem, answer in zip(asked, found, strict=True)]
        drawn = [len(answer.candidates) for answer in found]
        tokens = sum(answer.usage.tokens for answer in found) / len(found)
        cell = Cell(f"q={q} adaptive", right, tokens, accuracy)
        mean = sum(drawn) / len(drawn)
        error = 3 * math.sqrt(sum((d - mean) ** 2 for d in drawn) / len(drawn) / len(drawn))
        effect.cells.append(cell)
        effect.agree(cell)
        effect.claims.append(
            {
                "claim": f"q={q}: {samples} samples in place of 40",
                "value": mean,
                "low": mean - error,
                "high": mean + error,
                "holds": abs(mean - samples) <= error,
            }
        )
    return effect
