r"""A reward made of several verifiers: weighted parts, hard vetoes, weights that change over the steps of a training.

    [parts.answer]                          [[known]]
    verifier = "math"                       target = "4"
    weight = 1.0                            text = '\boxed{4}'
                                            status = "correct"
    [parts.form]
    verifier = "format"                     [[known]]
    weight = [[0, 0.5], [200, 0.1]]         target = "4"
    params = { answer = "box" }             text = '\boxed{5}'
                                            status = "incorrect"

The score is the mean of the parts' scores by weight, and `Verdict.parts` has each part's score by its name. The whole
is correct when every part that counts (it has a weight at this step, or a veto) is correct. A part with `veto = true`
that is incorrect makes the whole incorrect with score 0. A counting part without a verdict leaves the whole without
one, under that part's status and with no score, never 0; one with `optional = true` is left out instead.

Weights are numbers, or points (step, weight) joined by straight lines; `at(step)` is the reward of a step. A target is
handed to every part, unless it is {"parts": {name: target}}. The known cases are the card's canaries, for step 0.
Cost: that of the parts, which run at once. Left out: products of parts, weights that are learnt.

Args:
    spec: The TOML file.
    step: The step of training whose weights count.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ttc.config.choices import PartChoice
from ttc.config.recipes import load_toml
from ttc.config.registry import VERIFIERS
from ttc.config.values import build
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.errors import ConfigError, RecordError
from ttc.identity.digests import InnerPart, reads
from ttc.records import decode
from ttc.verifiers.shared.contract import Canary, Card, Clock, card_of

VERSION = "1"
Schedule: TypeAlias = tuple[tuple[float, float], ...]


def _reads(*, spec: pathlib.Path, **_: object) -> list[InnerPart]:
    parts, _known = _read(spec)
    tables = [_table(table, f"{spec}: parts.{name}") for name, table in parts.items()]
    return [InnerPart(VERIFIERS, table.verifier, table.params) for table in tables]


@reads(_reads)
def composite(*, spec: pathlib.Path, step: int = 0) -> CompositeVerifier:
    """Return the verifier that a TOML file describes; raises ConfigError naming the field that is wrong."""
    parts, rows = _read(spec)
    components = [_part(name, table, f"{spec}: parts.{name}") for name, table in parts.items()]
    try:
        canaries = tuple(decode(Canary, row) for row in rows)
    except RecordError as exc:
        raise ConfigError(f"{spec}: known: {exc}") from exc
    return CompositeVerifier(components, canaries, step)


@dataclass(frozen=True, slots=True)
class Part:
    """One verifier of a composite; `weight` is a number or points (step, weight) in order of the steps."""

    name: str
    verifier: Verifier
    weight: float | Schedule = 1.0
    veto: bool = False
    optional: bool = False

    def __post_init__(self) -> None:
        """Refuse weights that are negative or out of order."""
        points = self._points()
        steps = [step for step, _ in points]
        if not points or steps != sorted(set(steps)) or not all(0 <= weight < float("inf") for _, weight in points):
            raise ConfigError(f"composite: {self.name}.weight must be >= 0, its steps must rise, got {self.weight!r}")

    def weight_at(self, step: float) -> float:
        """The weight at a step: on the line between its neighbours, constant before the first and after the last."""
        points = self._points()
        for (left, low), (right, high) in itertools.pairwise(points):
            if left <= step <= right:
                return low + (high - low) * (step - left) / (right - left)
        return points[0][1] if step < points[0][0] else points[-1][1]

    def _points(self) -> Schedule:
        return self.weight if isinstance(self.weight, tuple) else ((0.0, self.weight),)


class CompositeVerifier:
    """Several verifiers as one; see the module."""

    name = "composite"

    def __init__(self, parts: Sequence[Part], canaries: tuple[Canary, ...], step: int = 0) -> None:
        """Join `parts`; `canaries` are known cases of the whole at step 0."""
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ConfigError(f"composite: two parts have one name: {', '.join(names)}")
        self._parts, self._canaries = tuple(parts), canaries
        self._weights = {part.name: part.weight_at(step) for part in parts}
        if not sum(self._weights.values()) > 0:
            raise ConfigError(f"composite: no part has a weight at step {step}")
        self.version = f"composite-{VERSION}-{_digest(parts, self._weights)}"
        self.card = self._card()

    def at(self, step: int) -> CompositeVerifier:
        """The same verifiers under the weights of `step`."""
        return CompositeVerifier(self._parts, self._canaries, step)

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Ask every part and join the verdicts."""
        clock = Clock()
        pending = (part.verifier.verify(_target(target, part.name), submission) for part in self._parts)
        verdicts = dict(zip(self._parts, await asyncio.gather(*pending), strict=True))
        scores = {part.name: verdict.score for part, verdict in verdicts.items() if verdict.score is not None}
        answers = ((verdict.extracted, verdict.span) for verdict in verdicts.values() if verdict.extracted is not None)
        extracted, span = next(answers, (None, None))
        total = dataclasses.replace(self._join(verdicts), parts=scores, extracted=extracted, span=span)
        return clock.stamp(total, self.version)

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Raise ConfigError, naming `item` and the part, when a part cannot use its target."""
        for part in self._parts:
            part.verifier.check_gold(_target(target, part.name), f"{item}: {part.name}" if item else part.name)

    async def close(self) -> None:
        """Close every part."""
        await asyncio.gather(*(part.verifier.close() for part in self._parts))

    def _join(self, verdicts: Mapping[Part, Verdict]) -> Verdict:
        vetoes = [part.name for part, verdict in verdicts.items() if part.veto and verdict.status == "incorrect"]
        if vetoes:
            return Verdict("incorrect", 0.0, reason=f"vetoed by {', '.join(vetoes)}")
        counting = {part: verdict for part, verdict in verdicts.items() if part.veto or self._weights[part.name] > 0}
        for part, verdict in counting.items():
            if verdict.score is None and not part.optional:
                return Verdict(verdict.status, reason=f"{part.name}: {verdict.reason}")
        scored = {part: verdict for part, verdict in counting.items() if verdict.score is not None}
        total = sum(self._weights[part.name] for part in scored)
        if not total:
            return Verdict("no_answer", reason="no part with a weight has a verdict")
        score = sum(self._weights[part.name] * (verdict.score or 0.0) for part, verdict in scored.items()) / total
        wrong = [part.name for part, verdict in scored.items() if not verdict.correct]
        return Verdict("incorrect" if wrong else "correct", score, reason=", ".join(wrong) or "all parts hold")

    def _card(self) -> Card:
        cards = {part.name: card_of(part.verifier) for part in self._parts}
        return Card(
            self.name,
            self.version,
            inputs="; ".join(f"{name}: {card.inputs if card else 'not declared'}" for name, card in cards.items()),
            max_s=max(card.max_s if card else 1.0 for card in cards.values()),
            limits="; ".join(f"{name}: {card.limits if card else 'not declared'}" for name, card in cards.items()),
            partial_credit=f"the mean of the parts' scores by weight {self._weights}; a veto makes it 0",
            correct_when="every part that has a weight or a veto is correct",
            weaknesses=tuple(f"{n}: {text}" for n, card in cards.items() if card for text in card.weaknesses)
            or ("its parts declare none",),
            canaries=self._canaries,
        )


def _read(spec: pathlib.Path) -> tuple[Mapping[str, object], Sequence[Any]]:
    """The tables of the parts, by name, and the known cases."""
    tables = load_toml(spec)
    parts, canaries = tables.pop("parts", None), tables.pop("known", [])
    if tables or not isinstance(parts, Mapping) or not isinstance(canaries, list):
        raise ConfigError(f"{spec}: takes tables [parts.NAME] and [[known]], nothing else")
    return parts, canaries


def _part(name: str, table: object, where: str) -> Part:
    read = _table(table, where)
    verifier = PartChoice.of(VERIFIERS, read.verifier, read.params).create_verifier()
    return Part(name, verifier, read.weight, read.veto, read.optional)


def _table(table: object, where: str) -> _Table:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table")
    params = table.get("params", {})
    if not isinstance(params, Mapping):
        raise ConfigError(f"{where}.params must be a table")
    rest = {name: value for name, value in table.items() if name != "params"}
    return dataclasses.replace(build(_Table, rest, where=f"{where}."), params=params)


@dataclass(frozen=True, slots=True)
class _Table:
    verifier: str
    weight: float | Schedule = 1.0
    veto: bool = False
    optional: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)


def _target(target: TargetLike, name: str) -> Any:
    """The target of one part; a part that is not named gets None."""
    own = isinstance(target, Mapping) and set(target) == {"parts"} and isinstance(target["parts"], Mapping)
    return target["parts"].get(name) if own else target


def _digest(parts: Sequence[Part], weights: Mapping[str, float]) -> str:
    rows = [(part.name, part.verifier.version, weights[part.name], part.veto, part.optional) for part in parts]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:8]
