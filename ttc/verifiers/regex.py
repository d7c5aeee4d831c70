r"""Regular expressions: patterns that must, and patterns that must not, occur in the answer.

A target is a pattern, or {"require": [...], "forbid": [...]} with at least one of them; the syntax is that of Python's
`re`. The score is the share of patterns that hold, and `parts` has each of them. Patterns come from task files, texts
from models: Python's engine backtracks, so matching runs in a killable worker, and a pattern that takes too long on a
hostile text is the verdict `timeout`, not a hang. Cost: 0.3 ms a verdict. Left out: captured groups and their values.

Args:
    where: What is searched: the whole text after the thinking, the final answer found in it (box, tag, ####, line), or
        all: the thinking, `</think>` and the text.
    whole: Whether a pattern must match all of it instead of occurring in it.
    ignore_case: Whether case does not matter.
    timeout_s: Limit of one verdict in the worker, in seconds that it runs.
    workers: Worker processes, started when first needed.
    allow_truncated: Whether a text that was cut may pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import (
    Canary,
    Card,
    Clock,
    TargetVerifier,
    answer_part,
    by_parts,
    known_fields,
    read_answer,
)
from ttc.verifiers.workers.pool import MEMORY_MB, Pool, text_pool, without_reply

VERSION = "2"
Where: TypeAlias = Literal["text", "final", "all"]
MAX_CHARS = 200_000
MAX_PATTERN = 10_000
_FIELDS = ("require", "forbid")
_READS: Mapping[Where, str] = {
    "text": "the text after the thinking",
    "final": "the final after the thinking",
    "all": "the thinking, </think> and the text",
}


@dataclass(frozen=True, slots=True)
class Patterns:
    """What must and what must not occur."""

    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()


def regex(
    *,
    where: Where = "text",
    whole: bool = False,
    ignore_case: bool = False,
    timeout_s: float = 1.0,
    workers: int = 8,
    allow_truncated: bool = False,
) -> RegexVerifier:
    """Return the verifier of regular expressions."""
    return RegexVerifier(text_pool(workers, timeout_s, "patterns"), where, whole, ignore_case, allow_truncated)


def read_patterns(target: TargetLike) -> Patterns:
    """Read a target: a pattern, or {"require": [...], "forbid": [...]}.

    Raises:
        ConfigError: naming the field that is unknown, of the wrong type, or does not compile.
    """
    fields = target if isinstance(target, Mapping) else {"require": [target]}
    known_fields(fields, _FIELDS)
    patterns = Patterns(*(tuple(_patterns(fields, name)) for name in _FIELDS))
    if not patterns.require and not patterns.forbid:
        raise ConfigError("target needs a pattern to require or to forbid")
    return patterns


class RegexVerifier(TargetVerifier[Patterns]):
    """Searches patterns; see the module."""

    name = "regex"
    read = staticmethod(read_patterns)

    def __init__(self, pool: Pool, where: Where, whole: bool, ignore_case: bool, allow_truncated: bool) -> None:
        self._workers = pool
        self._pool, self._where, self._whole, self._allow_truncated = pool, where, whole, allow_truncated
        self._flags = int(re.MULTILINE | (re.IGNORECASE if ignore_case else 0))
        flags = "".join("ny"[flag] for flag in (whole, ignore_case, allow_truncated))
        self.version = f"regex-{VERSION}-{where}-{flags}"
        self.card = Card(
            self.name,
            self.version,
            inputs=f'target: a pattern or {{"require", "forbid"}}; reads {_READS[where]}',
            max_s=pool.timeout_s + 0.5,
            limits=f"{MAX_CHARS} characters, {MEMORY_MB} MB (limit), {pool.timeout_s:g} s in a worker (timeout)",
            partial_credit="the share of patterns that hold",
            correct_when="every required pattern matches and no forbidden one does",
            weaknesses=("a pattern sees characters, not meaning", "a pattern may time out on a text made for it"),
            canaries=(
                Canary(r"\d{3}", "123", "correct"),
                Canary(r"\d{3}", "12x", "incorrect"),
                Canary({"forbid": ["x"]}, "12x", "incorrect" if not whole else "correct"),
            ),
        )

    async def judge(self, goal: Patterns, submission: Submission, clock: Clock) -> Verdict:
        """Search the patterns in a worker."""
        text = self._searched(submission)
        if isinstance(text, Verdict):
            return text
        request = {"call": "search", "text": text, "flags": self._flags, "whole": self._whole}
        reply = await self._pool.run({**request, "patterns": [*goal.require, *goal.forbid]})
        clock.waited = reply.waited
        return _judged(goal, reply.data["found"]) if reply.status == "ok" else without_reply(reply)

    def _searched(self, submission: Submission) -> str | Verdict:
        if self._where == "final":
            final = read_answer(submission, "exact", self._allow_truncated)
            return final if isinstance(final, Verdict) else final.final or ""
        part = answer_part(submission, self._allow_truncated, MAX_CHARS)
        if isinstance(part, Verdict) or self._where == "text":
            return part
        return f"{submission.thinking}</think>{part}"


def _judged(patterns: Patterns, found: list[bool]) -> Verdict:
    count = len(patterns.require)
    parts = {f"require {i}": float(hit) for i, hit in enumerate(found[:count])}
    parts |= {f"forbid {i}": float(not hit) for i, hit in enumerate(found[count:])}
    return by_parts(parts, "all hold")


def _patterns(fields: Mapping[str, object], name: str) -> list[str]:
    listed = fields.get(name, [])
    if not isinstance(listed, (list, tuple)):
        raise ConfigError(f"target.{name} must be a list of patterns, got {listed!r}"[:300])
    for i, pattern in enumerate(listed):
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
            raise ConfigError(f"target.{name}[{i}] must be a pattern, got {pattern!r}"[:300])
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as exc:
            raise ConfigError(f"target.{name}[{i}]: {pattern!r} is not a regular expression: {exc}"[:300]) from exc
    return list(listed)
