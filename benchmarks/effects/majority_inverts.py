"""Effect 1: a majority vote falls with N where the modal answer is wrong, and saturates where it is right."""

from __future__ import annotations

from benchmarks.effects.common import Effect, at_k, pool, problems


def majority_inverts(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("majority inverts where the modal answer is wrong, and saturates where it is right")
    for level in (1, 2, 4):
        votes = pool(problems(num, level), None, 256)
        few, many = (at_k(f"level {level} majority", votes, "majority", k) for k in (1, 256))
        effect.cells += [few, many]
        effect.claim(*((few, many) if level == 4 else (many, few)))
    return effect
