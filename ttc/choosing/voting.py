"""Votes over answer-equivalence classes: plurality and score-weighted.

Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning"; weights as in Li et al. 2022 (verifiers).
Two finals are in one class when their keys are equal. A candidate without a final answer
(none found, hedged, or cut by length) abstains: it can neither win nor count. A tie goes to the class that holds the
shortest path, then the first in path order: (tokens, path), never completion order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ttc.core import Candidate

Key: TypeAlias = Callable[[str], str]
"""The class of a final answer: `session.key` for the problem of a session, else `ttc.answers.kind_of(kind).key`."""

Weight: TypeAlias = Callable[[Candidate], float | None]
"""A candidate's weight, >= 0; None (no verdict) abstains."""


def even(_: Candidate) -> float:
    """One candidate, one vote."""
    return 1.0


def vote(candidates: Sequence[Candidate], key: Key, weight: Weight = even) -> Candidate | None:
    """Return the representative of the winning class, or None when everyone abstained.

    `weight` must be >= 0; None (no verdict from the scorer) abstains. Under equal weights the representative is the
    shortest member of the class, else its heaviest.
    """
    classes = _classes(candidates, key, weight)
    if not classes:
        return None
    winner = max(
        classes.values(),
        key=lambda members: (sum(w for w, _ in members), tuple(-x for x in by_length(_best(members)))),
    )
    return _best(winner)


def tally(candidates: Sequence[Candidate], key: Key, weight: Weight = even) -> list[float]:
    """Return the total weight of each answer class, the largest first; empty when everyone abstained."""
    classes = _classes(candidates, key, weight).values()
    return sorted((math.fsum(w for w, _ in members) for members in classes), reverse=True)


def _classes(candidates: Sequence[Candidate], key: Key, weight: Weight) -> dict[str, list[tuple[float, Candidate]]]:
    classes: dict[str, list[tuple[float, Candidate]]] = {}
    keys: dict[str, str] = {}  # most finals are spelt alike, and a key costs more than all else here
    for candidate in candidates:
        value = weight(candidate)
        if candidate.final is not None and value is not None:
            if candidate.final not in keys:
                keys[candidate.final] = key(candidate.final)
            classes.setdefault(keys[candidate.final], []).append((value, candidate))
    return classes


def _best(members: list[tuple[float, Candidate]]) -> Candidate:
    return min(members, key=lambda member: (-member[0], *by_length(member[1])))[1]


def by_length(candidate: Candidate) -> tuple[int, ...]:
    """The one order of ties: (tokens, path)."""
    return (candidate.num_tokens, *candidate.path)


def fallback(candidates: Sequence[Candidate]) -> Candidate | None:
    """What to show when everyone abstained: the first finished path, else the first; it carries no final answer."""
    return min(candidates, key=lambda c: (c.finish_reason != "stop", *by_length(c)), default=None)
