"""The contract of verifiers: the card that each declares, and the common reading of targets and answers.

A card says what a verifier takes, how it decides, and what it gets wrong; its `name` and `version` stand on it. The
version names everything that may change a verdict (code, libraries, settings), so a verdict can be traced, remembered
and judged again. Canaries are known cases that hold for the settings at hand: a service runs them before it takes work
and refuses to start when one fails.

    class MyVerifier:
        name = "mine"

        def __init__(self) -> None:
            self.version = "mine-1"
            self.card = Card(self.name, self.version, inputs=..., max_s=1.0, limits=..., ...)

Most are `TargetVerifier`s: they read the target, then judge. The policy on endings: a text that was cut
(`finish_reason` length or abort) is not finished, so it has no answer (`no_answer`, reason `truncated` or `aborted`),
unless the verifier was made with `allow_truncated`, and then its answer counts like any other.

Left out: a schema of targets; `check_gold` checks one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from ttc.answers.extract import MAX_FINAL, Extraction, answer_start
from ttc.answers.kinds import extract
from ttc.config.values import nearest, parse
from ttc.core import FinishReason, Form, Status, Submission, Target, TargetLike, Verdict, Verifier, written
from ttc.errors import ConfigError, MissingExtra

Goal = TypeVar("Goal")
ALL_OR_NOTHING = "none: the score is 1 when correct, 0 when incorrect, absent without a verdict"
"""The partial-credit rule of a verifier that gives none."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A known case: `text` held to `target` must get `status`."""

    target: TargetLike
    text: str
    status: Status
    thinking: str = ""
    finish_reason: FinishReason = "stop"

    @property
    def submission(self) -> Submission:
        """What the verifier is given."""
        return Submission(self.text, self.thinking, self.finish_reason)


@dataclass(frozen=True, slots=True)
class Card:
    """A verifier's declaration; every field is required and says something.

    Attributes:
        name: of the verifier, as in the registry.
        version: everything that may change a verdict: code, libraries and settings.
        inputs: what a target is, and which part of a submission is read.
        max_s: seconds of work after which a verdict is there at the latest; waiting for a worker does not count.
        limits: the caps on size, depth, memory and processes, and which status a text beyond them gets.
        partial_credit: what the score between 0 and 1 means.
        correct_when: the binary rule: when the status is correct.
        weaknesses: known wrong verdicts and ways to fool it, one each.
        canaries: known cases under these settings; at least one is correct and one is not.
    """

    name: str
    version: str
    inputs: str
    max_s: float
    limits: str
    partial_credit: str
    correct_when: str
    weaknesses: tuple[str, ...]
    canaries: tuple[Canary, ...]

    def __post_init__(self) -> None:
        """Refuse a card with a field that says nothing."""
        for field in dataclasses.fields(self):
            if not getattr(self, field.name):
                raise ConfigError(f"the card of verifier {self.name!r}: {field.name} is empty")
        if not (math.isfinite(self.max_s) and self.max_s > 0):
            raise ConfigError(f"the card of verifier {self.name!r}: max_s must be > 0, got {self.max_s}")
        statuses = {canary.status == "correct" for canary in self.canaries}
        if statuses != {True, False}:
            raise ConfigError(f"the card of verifier {self.name!r}: canaries must show a correct and another verdict")


@runtime_checkable
class Declared(Protocol):
    """A verifier that has a card; every verifier of this package has."""

    @property
    def card(self) -> Card:
        """What it declares."""
        ...


def card_of(verifier: Verifier) -> Card | None:
    """The verifier's card; None for a verifier from elsewhere that declares none."""
    return verifier.card if isinstance(verifier, Declared) else None


def library(name: str) -> str:
    """`name-1.2.3`, or `no-name` where it is not installed."""
    try:
        return f"{name}-{importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no-{name}"


MAX_TEXT = 1_000_000
"""Characters of a text beyond which it is not searched for an answer."""
MAX_S = 3.0
"""Seconds within which a verifier that works in this process decides on the longest text."""
PLAIN_LIMITS = (
    f"a text of more than {MAX_TEXT:,} characters or a final answer of more than {MAX_FINAL:,} is `incorrect`; time "
    "grows in proportion to the text; no processes"
)
"""What those verifiers say of their limits."""

_CUT = {"length": "truncated", "abort": "aborted"}
_FIELDS = ("answer", "alternatives", "tolerance", "unit", "percent", "type", "question", "form", "domain")
_DOMAINS = ("real", "positive", "integer", "positive integer")


def read_gold(target: TargetLike) -> Target:
    """Read the target of an answer: a `Target`, a string, a number, or a mapping of the fields of its JSON form.

    `answer` is the gold and `type` the order; `domain` maps variables to real, positive, integer or positive integer.

    Raises:
        ConfigError: naming the field that is missing, unknown or of the wrong type.
    """
    target = written(target)
    fields: Mapping[str, Any] = target if isinstance(target, Mapping) else {"answer": target}
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise ConfigError(f"target has the unknown field {unknown[0]!r} (known: {', '.join(_FIELDS)})")
    alternatives = fields.get("alternatives") or ()
    if isinstance(alternatives, str) or not isinstance(alternatives, (list, tuple)):
        raise ConfigError(f"target.alternatives must be a list of strings, got {alternatives!r}")
    gold, *others = (_text(value) for value in (fields.get("answer"), *alternatives))
    tolerance = fields.get("tolerance") or 0.0
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise ConfigError(f"target.tolerance must be a number >= 0, got {tolerance!r}")
    return Target(
        gold,
        _words_of("question", fields.get("question")),
        parse("target.form", fields.get("form") or "", Form),
        _domain(fields.get("domain")),
        float(tolerance),
        _unit(fields.get("unit")),
        parse("target.percent", fields.get("percent") or "", Literal["", "unit", "value", "either"]),
        parse("target.type", fields.get("type") or "", Literal["", "set", "tuple"]),
        tuple(others),
    )


def _words_of(name: str, value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"target.{name} must be a string, got {value!r}"[:300])
    return value or ""


def _domain(value: object) -> tuple[tuple[str, str], ...]:
    pairs = {} if value is None else value
    if not isinstance(pairs, Mapping) or not all(kind in _DOMAINS for kind in pairs.values()):
        raise ConfigError(f"target.domain must map variables to {', '.join(_DOMAINS)}, got {value!r}"[:300])
    return tuple((str(name), str(kind)) for name, kind in pairs.items())


def _unit(value: object) -> str:
    bare = re.sub(r"\\(?:mathrm|text)\s*\{([^{}]*)\}", r"\1", _words_of("unit", value)).strip("$ ")
    return "degrees" if "circ" in bare else bare


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        several = "; of several right answers one is answer, and alternatives lists the others"
        hint = several if isinstance(value, (list, tuple)) else ""
        raise ConfigError(f"target.answer must be a string or a number, got {value!r}{hint}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"target.answer is {value}, which is no number to hold an answer to")
    text = str(value).strip()
    if not text:
        raise ConfigError("target.answer is empty")
    if len(text) > MAX_FINAL:
        raise ConfigError(f"target.answer has more than {MAX_FINAL} characters")
    return text


def unfinished(submission: Submission, allow_truncated: bool) -> str:
    """Why a submission has no final answer because of how it ended; empty when it counts."""
    return "" if allow_truncated else _CUT.get(submission.finish_reason, "")


def read_answer(submission: Submission, kind: str, allow_truncated: bool) -> Extraction | Verdict:
    """The final answer of a submission, or the verdict that there is none."""
    if reason := unfinished(submission, allow_truncated):
        return Verdict("no_answer", reason=reason)
    # What a text itself causes is a wrong answer, so that nobody can choose to have no verdict.
    if len(submission.text) > MAX_TEXT:
        return Verdict("incorrect", 0.0, reason="limit: text_too_long")
    extraction = extract(submission.text, kind)
    if extraction.final is not None:
        return extraction
    if extraction.reason == "too_long":
        return Verdict("incorrect", 0.0, reason="limit: too_long", span=extraction.span)
    return Verdict("no_answer", reason=extraction.reason, span=extraction.span)


def decided(equal: bool, extraction: Extraction, reason: str) -> Verdict:
    """A verdict of correct (score 1) or incorrect (score 0) on a final answer."""
    status, score = ("correct", 1.0) if equal else ("incorrect", 0.0)
    return Verdict(status, score, reason=reason, extracted=extraction.final, span=extraction.span)  # type: ignore[arg-type]


def by_parts(parts: Mapping[str, float], whole: str) -> Verdict:
    """A verdict on parts that hold (1) or not (0): the score is the share that holds, the reason what does not."""
    broken = [name for name, holds in parts.items() if not holds]
    share = sum(parts.values()) / len(parts)
    return Verdict("incorrect" if broken else "correct", share, parts, ", ".join(broken) or whole)


class Clock:
    """Seconds since it was made; `waited` are those of them that were spent in a queue."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.waited = 0.0

    def stamp(self, verdict: Verdict, version: str) -> Verdict:
        """Add version and seconds, less the time that was waited."""
        return dataclasses.replace(verdict, version=version, seconds=time.perf_counter() - self._start - self.waited)


MAX_ERROR = 300


@contextmanager
def naming(item: str) -> Iterator[None]:
    """Put `item` before the message of a ConfigError; a missing package is no fault of the item."""
    try:
        yield
    except MissingExtra:
        raise
    except ConfigError as exc:
        raise ConfigError(f"{item}: {exc}" if item else str(exc)) from exc


def jsonable(name: str, value: object) -> None:
    """Raise ConfigError when a field of a target cannot be sent to a worker as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"target.{name} is not JSON: {exc}"[:MAX_ERROR]) from exc


def known_fields(target: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raise ConfigError for the first field of `target` that is not one of `fields`."""
    for name in target:
        if name not in fields:
            raise ConfigError(
                f"target.{name}: no such field{nearest(str(name), fields)} (known: {', '.join(fields)})"[:MAX_ERROR]
            )


def answer_part(submission: Submission, allow_truncated: bool, max_chars: int) -> str | Verdict:
    """The text after the thinking, or the verdict where there is none: cut, still thinking, blank or too long.

    A text without thinking is returned as it is, with its white space.
    """
    if reason := unfinished(submission, allow_truncated):
        return Verdict("no_answer", reason=reason)
    start = answer_start(submission.text)
    if start is None:
        return Verdict("no_answer", reason="unclosed_thinking")
    body = submission.text[start:].strip() if start else submission.text
    if len(body) > max_chars:
        return Verdict("incorrect", 0.0, reason=f"limit: more than {max_chars} characters")
    return body if body.strip() else Verdict("no_answer", reason="empty")


class Workers(Protocol):
    """Processes that a verifier uses."""

    def close(self) -> None:
        """End them."""
        ...


class TargetVerifier(ABC, Generic[Goal]):
    """Reads the target first, then judges the submission; a subclass says how it does both."""

    name: str
    version: str
    _workers: Workers | None = None

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Hold `submission` to `target`; a target that cannot be read, or that no answer meets, is an `error`."""
        clock = Clock()
        try:
            goal = self.read(written(target))
            verdict = await self.judge(goal, submission, clock)
            if not verdict.correct:
                self.check(goal)
        except ConfigError as exc:
            verdict = Verdict("error", reason=str(exc))
        return clock.stamp(verdict, self.version)

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Raise ConfigError, naming `item`, when the target cannot be read or does not verify against itself."""
        with naming(item):
            self.check(self.read(written(target)))

    async def close(self) -> None:
        """End its workers, if it has any."""
        if self._workers is not None:
            await asyncio.to_thread(self._workers.close)

    @abstractmethod
    def read(self, target: TargetLike) -> Goal:
        """What the target says. Raises ConfigError naming the field that is missing, unknown or of the wrong type."""

    @abstractmethod
    async def judge(self, goal: Goal, submission: Submission, clock: Clock) -> Verdict:
        """The verdict, without version and time; seconds in a queue are added to `clock.waited`."""

    def check(self, goal: Goal) -> None:
        """Raise ConfigError when a target does not verify against itself; never by default."""


class AnswerVerifier(TargetVerifier[Target]):
    """Holds one final answer to a `Target`; a subclass says when the two are equal.

    Args:
        kind: what to extract (`ttc.answers.extract`).
        allow_truncated: whether a text that was cut may have an answer.
    """

    read = staticmethod(read_gold)

    def __init__(self, kind: str, allow_truncated: bool) -> None:
        self._kind, self._allow_truncated = kind, allow_truncated

    async def judge(self, goal: Target, submission: Submission, clock: Clock) -> Verdict:
        """Whether the final answer matches."""
        extraction = read_answer(submission, self._kind, self._allow_truncated)
        if isinstance(extraction, Verdict):
            return extraction
        equal = self.matches(extraction, goal.answers)
        return decided(equal, extraction, "same" if equal else "different")

    @abstractmethod
    def matches(self, extraction: Extraction, answers: tuple[str, ...]) -> bool:
        """Whether the final answer is one of `answers`."""
