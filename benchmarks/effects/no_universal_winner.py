"""Effect 6: no strategy wins everywhere, which is what an allocator is for."""

from __future__ import annotations

import math

from benchmarks.effects.common import Cell, Effect, at_k, pool, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer


def no_universal_winner(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect(
        "no strategy wins everywhere: a beam of 4 beats weighted best-of-256 where hard, and loses where easy"
    )
    scorer = simulated_scorer(preset="weak")
    beams: list[list[float]] = []
    large: list[list[float]] = []
    for level in range(1, 6):
        asked = problems(num, level)
        beam = run(f"level {level} beam N=4", asked, search("beam", 4, scorer), preset="weak")
        votes = pool(asked, scorer, 256, preset="weak")
        weighted = at_k(f"level {level} weighted best-of-n", votes, "weighted", 256)
        effect.cells += [beam, weighted]
        beams.append(beam.right)
        large.append(weighted.right)
    easy, hard = slice(0, 3), slice(3, 5)
    for levels, name in ((easy, "levels 1 to 3"), (hard, "levels 4 and 5")):
        small, wide = (
            Cell(f"{name}, {run_name}", [value for level in rows[levels] for value in level], math.nan)
            for rows, run_name in ((beams, "beam N=4"), (large, "weighted best-of-n N=256"))
        )
        effect.cells += [small, wide]
        effect.claim(*((wide, small) if levels is easy else (small, wide)))
    return effect
