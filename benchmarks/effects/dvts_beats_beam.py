"""Effect 3: independent subtrees keep the diversity that one beam loses at large N."""

from __future__ import annotations

from benchmarks.effects.common import Effect, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer


def dvts_beats_beam(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("independent subtrees beat one beam at large N under a hackable scorer")
    asked, scorer = problems(num, 3), simulated_scorer(preset="hackable")
    cells = {
        (policy, n): run(f"{policy} N={n}", asked, search(policy, n, scorer), preset="hackable")
        for policy in ("beam", "dvts")
        for n in (4, 256)
    }
    effect.cells += cells.values()
    effect.claim(cells["dvts", 256], cells["beam", 256])
    return effect
