"""Choosing among candidates: votes, the best score, and two rules that do not fully trust the scorer.

    argmax        the best score (best-of-n)
    weighted      the answer class with the largest sum of scores (Li et al. 2022); scores below 0 are left out, since
                  each further vote would make its class lose
    majority      the largest answer class, scores ignored
    pessimistic   drawn with weights relu((score - l) / beta), l such that they average 1: chi-squared regularised, so
                  that more samples never hurt (Huang et al. 2025, "Is Best-of-N the Best of Them?", arXiv 2503.21878)
    soft          drawn with probability proportional to exp(score / beta) (Verdun et al. 2025, "Soft Best-of-n")

A score per step becomes one number by `aggregate`: last, min, prod or mean, over all steps or the last few. Lightman et
al. 2023 ("Let's Verify Step by Step") use prod and min; Snell et al. 2024 use last. The product is taken in the log
domain. With a `window` only the last steps count, so that a min or a product no longer falls with length alone. A score
without a verdict stays without one.

Votes are over answer-equivalence classes, plain (Wang et al. 2022, "Self-Consistency Improves Chain of Thought
Reasoning") or weighted: two finals are in one class when their keys are equal, or when one is a number without a unit
and the other the only quantity of that number. A candidate without a final answer (none found, hedged, or cut by
length) abstains: it can neither win nor count. A tie goes to the class that holds the shortest path, then to the first
in path order: (tokens, path), never completion order.

Small `beta` tends to argmax, large `beta` to a uniform draw. Ties: (tokens, path). A candidate without a final answer
or without a score cannot be chosen. Left out: rejection sampling against the true normaliser, which needs a stream of
samples; here the n samples stand for the base policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.answers.keys import classes
from ttc.core import Candidate, Path, Score
from ttc.errors import ConfigError

Key: TypeAlias = Callable[[str], str]
"""The class of a final answer: `session.key` for the problem of a session, else `ttc.answers.kind_of(kind).key`."""

Weight: TypeAlias = Callable[[Candidate], float | None]
"""A candidate's weight, >= 0; None (no verdict) abstains."""

How: TypeAlias = Literal["last", "min", "prod", "mean"]

_LOG_MAX = 690.0
"""Of the largest product, 1e299: scores above 1 may multiply to more than a number holds, and votes add them up."""


def _prod(steps: Sequence[float]) -> float:
    return math.exp(min(sum(map(math.log, steps)), _LOG_MAX)) if all(step > 0 for step in steps) else 0.0


_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"last": lambda steps: steps[-1], "min": min, "prod": _prod, "mean": lambda s: math.fsum(s) / len(s)}
)


def aggregate(score: Score, how: How = "last", window: int | None = None) -> float | None:
    """Aggregate `score.steps`, or its last `window`; a scorer without steps gives its own `value`.

    >>> aggregate(Score(0.8, (0.9, 0.5, 0.8)), "min")
    0.5
    >>> aggregate(Score(0.8, (0.9, 0.5, 0.8)), "min", 1)
    0.8
    """
    if score.value is None or not score.steps:
        return score.value
    return _AGGREGATES[how](score.steps if window is None else score.steps[-window:])


def check_window(window: int | None) -> None:
    """Refuse a window without a step."""
    if window is not None and window < 1:
        raise ConfigError(f"window must be >= 1 or absent, got {window}")


Select: TypeAlias = Literal["argmax", "weighted", "majority", "pessimistic", "soft"]


def choose(
    candidates: Sequence[Candidate], key: Key, select: Select, *, beta: float = 0.1, u: float = 0.0
) -> Candidate | None:
    """Select among closed paths; None when none has both a final answer and what the rule needs.

    `u` is the random number in [0, 1) of the rules that draw.
    """
    return _RULES[select](candidates, key, beta, u)


def check_beta(beta: float) -> None:
    """Refuse a beta that is not a positive finite number."""
    if not (math.isfinite(beta) and beta > 0):
        raise ConfigError(f"beta must be > 0, got {beta}")


def soft_weights(scores: Sequence[float], beta: float) -> list[float]:
    """Return exp(score / beta), normalised to sum 1; safe for any finite scores."""
    top = max(scores)
    raw = [math.exp((score - top) / beta) for score in scores]
    total = math.fsum(raw)
    return [value / total for value in raw]


def pessimistic_weights(scores: Sequence[float], beta: float) -> list[float]:
    """Return relu((score - l) / beta), where l is the one number that makes their mean 1; safe for any finite scores.

    The mean falls in l, piecewise linearly: with the scores sorted, the segment that holds l is found exactly. All is
    measured down from the best score in units of beta, so that a beta below the rounding of the scores loses no
    precision.

    >>> [round(w, 3) for w in pessimistic_weights([0.0, 1.0], 1.0)]
    [0.5, 1.5]
    """
    top, num, total, height = max(scores), len(scores), 0.0, 0.0
    gaps = [(top - score) / beta for score in scores]
    ordered = [*sorted(gaps), math.inf]
    for count, gap in enumerate(ordered[:-1], start=1):
        total += gap
        height = (num + total) / count  # of the best score above l
        if ordered[count] >= height:  # the next score gets no weight, so `count` of them share it all
            break
    return [max(height - gap, 0.0) for gap in gaps]


def pick(weights: Sequence[float], u: float) -> int:
    """Return the index that `u` in [0, 1) falls on when the weights are laid end to end."""
    target, passed = u * math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        passed += weight
        if target < passed:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)


def _scored(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that may be chosen, in path order, so that a random choice does not depend on the schedule."""
    eligible = [c for c in candidates if c.final is not None and c.score is not None and math.isfinite(c.score)]
    return sorted(eligible, key=lambda candidate: candidate.path)


def _argmax(candidates: Sequence[Candidate], key: Key, beta: float, u: float) -> Candidate | None:
    scored = [c for c in candidates if c.final is not None and c.score is not None]
    return min(scored, key=lambda c: (-(c.score or 0.0), *by_length(c)), default=None)


def _drawn(weigh: Callable[[Sequence[float], float], list[float]]) -> _Rule:
    def rule(candidates: Sequence[Candidate], key: Key, beta: float, u: float) -> Candidate | None:
        scored = _scored(candidates)
        return scored[pick(weigh([c.score or 0.0 for c in scored], beta), u)] if scored else None

    return rule


_Rule: TypeAlias = Callable[[Sequence[Candidate], Key, float, float], Candidate | None]

_RULES: Mapping[Select, _Rule] = MappingProxyType(
    {
        "argmax": _argmax,
        "weighted": lambda candidates, key, beta, u: vote(candidates, key, by_score),
        "majority": lambda candidates, key, beta, u: vote(candidates, key),
        "pessimistic": _drawn(pessimistic_weights),
        "soft": _drawn(soft_weights),
    }
)


def by_score(candidate: Candidate) -> float | None:
    """A candidate's score as its weight; below 0 it abstains, as each vote more would make its class lose."""
    return None if candidate.score is None or candidate.score < 0 else candidate.score


def num_unweighed(candidates: Sequence[Candidate], select: Select) -> int:
    """How many scores a summing rule ignores because they are below 0."""
    return sum(c.score is not None and by_score(c) is None for c in candidates) if select == "weighted" else 0


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
    weights = [math.fsum(w for w, _ in members) for members in classes.values()]
    top = max(weights)
    leaders = [_best(members) for members, total in zip(classes.values(), weights, strict=True) if not total < top]
    return min(leaders, key=by_length)


def tally(candidates: Sequence[Candidate], key: Key, weight: Weight = even) -> list[float]:
    """Return the total weight of each answer class, the largest first; empty when everyone abstained."""
    classes = _classes(candidates, key, weight).values()
    return sorted((math.fsum(w for w, _ in members) for members in classes), reverse=True)


def class_of_each(candidates: Sequence[Candidate], key: Key) -> dict[Path, str]:
    """Return the answer class of each candidate that has an answer, by path."""
    members = _classes(candidates, key, even)
    return {candidate.path: name for name, ranked in members.items() for _, candidate in ranked}


def _classes(candidates: Sequence[Candidate], key: Key, weight: Weight) -> dict[str, list[tuple[float, Candidate]]]:
    members: dict[str, list[tuple[float, Candidate]]] = {}
    keys: dict[str, str] = {}  # most finals are spelt the same, and computing a key is the expensive part
    for candidate in candidates:
        value = weight(candidate)
        if candidate.final is not None and value is not None:
            if candidate.final not in keys:
                keys[candidate.final] = key(candidate.final)
            members.setdefault(keys[candidate.final], []).append((value, candidate))
    class_of = classes(members)
    for name in [name for name, other in class_of.items() if other != name]:
        members[class_of[name]] += members.pop(name)
    return members


def _best(members: list[tuple[float, Candidate]]) -> Candidate:
    return min(members, key=lambda member: (-member[0], *by_length(member[1])))[1]


def by_length(candidate: Candidate) -> tuple[int, ...]:
    """The one order of ties: (tokens, path)."""
    return (candidate.num_tokens, *candidate.path)


def fallback(candidates: Sequence[Candidate]) -> Candidate | None:
    """What to show when all abstained: the first finished path, else the first; it has no final answer."""
    return min(candidates, key=lambda c: (c.finish_reason != "stop", *by_length(c)), default=None)
