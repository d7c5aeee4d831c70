"""Effect 2: a scorer that can be fooled is over-optimised by an argmax, in a beam too."""

from __future__ import annotations

from benchmarks.effects.common import Effect, at_k, pool, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer


def over_optimisation(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("a hackable scorer is over-optimised: argmax falls with N, in a beam too; a weighted vote does not")
    asked, scorer = problems(num, 1), simulated_scorer(preset="hackable")
    votes = pool(asked, scorer, 256, preset="hackable")
    best = [at_k("best-of-n", votes, "best", k) for k in (4, 16, 64, 256)]
    weighted = [at_k("weighted best-of-n", votes, "weighted", k) for k in (4, 256)]
    beams = [
        run(f"beam N={n}", asked, search("beam", n, scorer, "argmax"), preset="hackable") for n in (4, 16, 64, 256)
    ]
    effect.cells += best + beams + weighted
    effect.claim(best[0], best[-1])
    effect.claim(beams[0], beams[-1])
    effect.claim(weighted[-1], best[-1])
    effect.claim(weighted[-1], beams[-1])
    return effect
