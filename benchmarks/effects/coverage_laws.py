"""Effect 7: coverage and perfect-scorer searches follow their closed forms; the selection gap widens with N."""

from __future__ import annotations

import math

from benchmarks.effects.common import Cell, Effect, at_k, pool, problems, run, search
from ttc.scorers.simulated import simulated as simulated_scorer


def coverage_laws(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("coverage and perfect-scorer searches follow their closed forms; the selection gap widens with N")
    a, b = 0.3, 2.5
    votes = pool(problems(8 * num, None), None, 128, spread=(a, b), steps=2)
    for k in (1, 10, 100):
        law = 1 - math.exp(math.lgamma(b + k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + k))
        cell = at_k("Beta(0.3, 2.5) coverage", votes, "pass", k, law)
        effect.cells.append(cell)
        effect.agree(cell)
    small, wide = (
        Cell(
            f"selection gap N={k}",
            [
                c - m
                for c, m in zip(at_k("", votes, "pass", k).right, at_k("", votes, "majority", k).right, strict=True)
            ],
            math.nan,
        )
        for k in (4, 128)
    )
    effect.claim(wide, small)
    p, steps, n, m = 0.3, 8, 16, 4
    perfect = simulated_scorer()
    laws = {
        "dvts": 1 - (1 - (1 - (1 - p) ** m) ** steps) ** (n // m),
        "particle": (1 - (1 - p) ** n) ** steps,
    }
    for policy, law in laws.items():
        cell = run(
            f"perfect scorer, {policy} N=16",
            problems(2 * num, None),
            search(policy, n, perfect, "argmax", m),
            p=p,
            steps=steps,
            expected=law,
        )
        effect.cells.append(cell)
        effect.agree(cell)
    return effect
