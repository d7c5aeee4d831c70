"""Effect 10: with a perfect scorer, particles scale with depth and best-of-n does not."""

from __future__ import annotations

import functools

from benchmarks.effects.common import Effect, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.strategies.best_of_n import best_of_n


def particles_scale(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("with a perfect scorer particles need few paths at any depth, best-of-n exponentially many")
    p, n, perfect = 0.5, 8, simulated_scorer()
    for steps in (2, 4, 8, 16):
        asked = problems(num, None)
        filtered = run(
            f"T={steps} particle N={n}",
            asked,
            search("particle", n, perfect, "argmax"),
            p=p,
            steps=steps,
            expected=(1 - (1 - p) ** n) ** steps,
        )
        best = run(
            f"T={steps} best-of-n N={n}",
            asked,
            functools.partial(best_of_n, scorer=perfect, n=n),
            p=p,
            steps=steps,
            expected=1 - (1 - p**steps) ** n,
        )
        effect.cells += [filtered, best]
        effect.agree(filtered)
        effect.agree(best)
        if steps >= 4:
            effect.claim(filtered, best)
    return effect
