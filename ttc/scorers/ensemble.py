"""Several scorers as one: the weighted mean of their scores.

Coste et al. 2024, "Reward Model Ensembles Help Mitigate Overoptimization" (mean and weighted forms). Members should use
one scale; those here return probabilities, except `likelihood` with self_certainty. Steps are averaged one by one if
all members have the same steps; otherwise only the values are averaged, and stand for the whole path.

Cost: that of all members; a token budget adds their prices. If a member has no verdict, then depending on `missing` the
ensemble has none either (abstain), or the others' weights are scaled up to 1 (renormalise); without any verdict there
is none. Left out: worst-case and variance-penalised forms, and learning the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ttc.concurrent import gather
from ttc.config.choices import PartChoice
from ttc.config.plugins import read_scores
from ttc.config.recipes import overrides
from ttc.config.registry import SCORERS
from ttc.config.signatures import checked_by
from ttc.core import Engine, Path, Price, PricedScorer, Prompt, Score, Scorer, SearchAware, UsageSink, WholeAnswerScorer
from ttc.errors import ConfigError
from ttc.identity.digests import InnerPart, reads

Missing = Literal["abstain", "renormalise"]


class EnsembleScorer:
    """See the module docstring."""

    def __init__(self, members: Sequence[Scorer], weights: Sequence[float] = (), missing: Missing = "abstain") -> None:
        """`weights` are those of `members`, in order; empty: all equal.

        Raises:
            ConfigError: no member, a weight that is not positive, or a wrong number of weights.
        """
        weights = weights or [1.0] * len(members)
        if not members or len(weights) != len(members):
            raise ConfigError(f"ensemble: {len(weights)} weights for {len(members)} members")
        if not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ConfigError(f"ensemble: weights must be > 0, got {list(weights)}")
        self._members, self._weights, self._missing = list(members), list(weights), missing
        self.whole_answers = any(isinstance(each, WholeAnswerScorer) and each.whole_answers for each in members)

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score with all members at once."""
        columns = await gather(member.score(prompts, on_usage) for member in self._members)
        read = (read_scores(*pair, len(prompts)) for pair in zip(self._members, columns, strict=True))
        return [self._combine(scores) for scores in zip(*read, strict=True)]

    def price(self, prompt: Prompt) -> Price:
        """The sum of the members' prices; a member without a price is charged when it reports its usage."""
        prices = [member.price(prompt) for member in self._members if isinstance(member, PricedScorer)]
        shapes = [price.shape for price in prices if price.shape is not None]
        return Price(
            sum(price.fixed for price in prices),
            sum(price.per_token for price in prices),
            sum(price.per_draw for price in prices),
            max((price.context for price in prices), default=0),
            max(shapes, key=lambda shape: shape.num_params, default=None),  # the largest, so FLOPs are never too few
            sum(price.calls for price in prices),
        )

    def prune(self, problem_id: str, path: Path) -> None:
        """See `ttc.core.SearchAware`."""
        for member in self._members:
            if isinstance(member, SearchAware):
                member.prune(problem_id, path)

    def release(self, problem_id: str) -> None:
        """Free what the members keep for a problem."""
        for member in self._members:
            member.release(problem_id)

    def _combine(self, scores: Sequence[Score]) -> Score:
        silent = [number for number, score in enumerate(scores) if score.value is None]
        if len(silent) == len(scores) or (silent and self._missing == "abstain"):
            reasons = "; ".join(f"member {number}: {scores[number].note}" for number in silent)
            return Score(None, note=f"no verdict of {reasons}")
        speaking = [
            (weight, score, score.value)
            for weight, score in zip(self._weights, scores, strict=True)
            if score.value is not None
        ]
        total = math.fsum(weight for weight, _, _ in speaking)
        value = math.fsum(weight * value for weight, _, value in speaking) / total
        lengths = {len(score.steps) for _, score, _ in speaking}
        if len(lengths) > 1:
            return Score(value)
        steps = [
            math.fsum(weight * score.steps[at] for weight, score, _ in speaking) / total for at in range(max(lengths))
        ]
        return Score(value, tuple(steps))


def _check(members: tuple[str, ...], weights: tuple[float, ...]) -> None:
    if weights and len(weights) != len(members):
        raise ConfigError(f"ensemble: {len(weights)} weights for {len(members)} members")
    for spec in members:
        _member(spec)


def _reads(*, members: tuple[str, ...], **_: object) -> list[InnerPart]:
    return [InnerPart(SCORERS, *_split(member)) for member in members]


@reads(_reads)
@checked_by(_check)
def ensemble(
    *,
    members: tuple[str, ...],
    weights: tuple[float, ...] = (),
    missing: Missing = "abstain",
    engine: Engine | None = None,
) -> EnsembleScorer:
    """Average several scorers.

    Args:
        members: NAME or NAME:MODEL each, with ?key=value&key=value for its parameters: prm:A,likelihood?measure=...
        weights: one for each member; absent: equal.
        missing: abstain (no score if a member has no verdict) or renormalise (average the others).
        engine: for members that need it; supplied by the command line.

    Raises:
        ConfigError: a member that cannot be made, or invalid weights.
    """
    return EnsembleScorer([_member(spec).create_scorer(engine) for spec in members], weights, missing)


def _member(spec: str) -> PartChoice:
    """A member with its parameters, checked; raises ConfigError for an invalid one."""
    plain, params = _split(spec)
    return PartChoice.of(SCORERS, plain, params)


def _split(spec: str) -> tuple[str, dict[str, str]]:
    """NAME or NAME:MODEL, and the parameters after the question mark."""
    plain, _, rest = spec.partition("?")
    return plain, overrides(rest.split("&")) if rest else {}
