"""Votes over answer-equivalence classes: plurality and score-weighted.

Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning"; weights as in Li et al. 2022 (verifiers).
Two finals are in one class when `ttc.answers.key` is equal for the problem's kind. A candidate without a final answer
(none found, hedged, or cut by length) abstains: it can neither win nor count. A tie goes to the class that holds the
shortest path, then the first in path order: (tokens, path), never completion order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ttc import answers
from ttc.core import Candidate


def vote(
    candidates: Sequence[Candidate], kind: str, weight: Callable[[Candidate], float | None] = lambda _: 1.0
) -> Candidate | None:
    """Return the representative of the winning class, or None when everyone abstained.

    `weight` must be >= 0; None (no verdict from the scorer) abstains. Under equal weights the representative is the
    shortest member of the class, else its heaviest.
    """
    classes: dict[str, list[tuple[float, Candidate]]] = {}
    for candidate in candidates:
        value = weight(candidate)
        if candidate.final is not None and value is not None:
            classes.setdefault(answers.key(candidate.final, kind), []).append((value, candidate))
    if not classes:
        return None
    winner = max(
        classes.values(),
        key=lambda members: (sum(w for w, _ in members), tuple(-x for x in _order(_best(members)))),
    )
    return _best(winner)


def _best(members: list[tuple[float, Candidate]]) -> Candidate:
    return min(members, key=lambda member: (-member[0], *_order(member[1])))[1]


def _order(candidate: Candidate) -> tuple[int, ...]:
    return (candidate.num_tokens, *candidate.path)


def fallback(candidates: Sequence[Candidate]) -> Candidate | None:
    """What to show when everyone abstained: the first finished path, else the first; it carries no final answer."""
    return min(candidates, key=lambda candidate: (candidate.finish_reason != "stop", *_order(candidate)), default=None)
