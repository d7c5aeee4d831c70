"""Effect 5: with a weak scorer, resampling by weight beats keeping the best."""

from __future__ import annotations

from benchmarks.effects.common import Effect, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer


def sampling_beats_maximising(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("with a weak scorer on hard problems, resampling beats a beam and REBASE at large N")
    asked, scorer = problems(num, 5), simulated_scorer(preset="weak")
    names = {"particle:weight=odds": "particle", "beam": "beam", "rebase": "rebase", "dvts": "dvts"}
    cells = {
        name: run(f"{name} N=128", asked, search(policy, 128, scorer), preset="weak") for policy, name in names.items()
    }
    effect.cells += cells.values()
    for policy in ("beam", "rebase"):
        effect.claim(cells["particle"], cells[policy])
    return effect
