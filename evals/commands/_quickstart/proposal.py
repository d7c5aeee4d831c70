"""Which strategy suits what was found, and why: a table from facts to strategies; the first matching row counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evals.commands._quickstart.finding import Discovery


@dataclass(frozen=True, slots=True)
class Proposal:
    """A strategy, its number of samples, and the reason in words."""

    strategy: str
    n: int
    why: str


def _toy(found: Discovery) -> bool:
    return found.packaged


def _guided(found: Discovery) -> bool:
    return found.continues and found.scorer is not None


def _unguided(found: Discovery) -> bool:
    return found.continues


def _whole(found: Discovery) -> bool:
    return True


_RULES: tuple[tuple[Callable[[Discovery], bool], Proposal], ...] = (
    (_toy, Proposal("tree", 16, "its own reward model scores every step, so a search can drop weak beginnings early")),
    (_guided, Proposal("tree", 16, "a reward model that fits is here and can score every step of a search")),
    (_unguided, Proposal("majority", 8, "a search needs a reward model, and none is here; a vote of 8 needs none")),
    (
        _whole,
        Proposal("majority", 8, "it gives whole answers only, so no search step by step; a vote of 8 needs no more"),
    ),
)


def propose(found: Discovery) -> Proposal:
    """Return the strategy for what was found."""
    return next(proposal for applies, proposal in _RULES if applies(found))
