"""Effect 4: search beats sampling where problems are hard and N is small."""

from __future__ import annotations

import functools

from benchmarks.effects.common import Effect, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.strategies.best_of_n import best_of_n


def search_beats_sampling(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("search beats sampling where problems are hard and N is small")
    asked, scorer = problems(num, 5), simulated_scorer(preset="good")
    best = run("good, level 5, best-of-n N=4", asked, functools.partial(best_of_n, scorer=scorer, n=4))
    beam = run("good, level 5, beam N=4", asked, search("beam", 4, scorer))
    effect.cells += [best, beam]
    effect.claim(beam, best)
    asked, scorer = problems(num, 4), simulated_scorer(preset="weak")
    weighted = run(
        "weak, level 4, weighted best-of-n N=16",
        asked,
        functools.partial(best_of_n, scorer=scorer, n=16, select="weighted"),
        preset="weak",
    )
    effect.cells.append(weighted)
    for policy in ("beam", "dvts", "particle"):
        cell = run(f"weak, level 4, {policy} N=16", asked, search(policy, 16, scorer), preset="weak")
        effect.cells.append(cell)
        effect.claim(cell, weighted)
    return effect
