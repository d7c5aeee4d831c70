"""Mathematics: fractions to intervals, exactly where possible, numerically and by `math-verify` where not.

The cascade, from cheap to dear: the spelling, exact and structural comparison in this process (tens of microseconds),
values with 60 and 130 digits in a killable worker (about 1 ms), `math-verify` there (about 10 ms). Text of the model is
parsed, never evaluated. Symmetric in the two answers. Left out: proofs, geometry, answers in sentences.

Args:
    timeout_s: Wall limit of one verdict in the worker, in seconds.
    workers: Worker processes, started when first needed.
    percent: What 50 % equals: 50 and 0.5 (either), 50 (unit), 0.5 (value).
    rounding: Significant digits from which a decimal may stand for an exact value; 0 for never.
    tolerance: Relative tolerance on numbers.
    kind: How answers are found: math, or number (then the last number of the text counts).
    allow_truncated: Whether a text that was cut may have an answer.
    memory_mb: Address space of a worker.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Mapping
from typing import Literal

from ttc.answers import Extraction, extract
from ttc.answers.canonical import shape, spelling_key
from ttc.answers.grammar import parse
from ttc.answers.nodes import Term
from ttc.answers.tokens import TooLarge, Unparsed, plain
from ttc.config.values import at_least
from ttc.core import Status, Submission, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.maths.comparing import Comparison, Decide, EqualityPolicy, Percent, Ternary
from ttc.verifiers.shared.contract import (
    ALL_OR_NOTHING,
    MAX_S,
    MAX_TEXT,
    Canary,
    Card,
    Clock,
    Gold,
    TargetVerifier,
    decided,
    read_answer,
    read_gold,
)
from ttc.verifiers.workers.pool import Pool

VERSION = "1"
_STATUSES: Mapping[str, Status] = {"timeout": "timeout", "limit": "limit", "error": "error"}
LONG_TEXT = 50_000
"""Characters beyond which a text is searched in a thread, so that an event loop is not held up."""


def math(
    *,
    timeout_s: float = 1.5,
    workers: int = 2,
    percent: Percent = "either",
    rounding: int = 6,
    tolerance: float = 0.0,
    kind: Literal["math", "number"] = "math",
    allow_truncated: bool = False,
    memory_mb: int = 2048,
) -> MathVerifier:
    """Return the verifier of mathematical answers."""
    at_least("math", 0, rounding=rounding, tolerance=tolerance)
    policy = EqualityPolicy(percent, rounding, tolerance)
    return MathVerifier(policy, Pool(workers=workers, timeout_s=timeout_s, memory_mb=memory_mb), kind, allow_truncated)


class MathVerifier(TargetVerifier[Gold]):
    """Compares final answers with a target; see the module."""

    name = "math"
    read = staticmethod(read_gold)

    def __init__(self, policy: EqualityPolicy, pool: Pool, kind: str, allow_truncated: bool) -> None:
        self._workers = pool
        self._policy, self._pool, self._kind, self._allow_truncated = policy, pool, kind, allow_truncated
        settings = json.dumps([dataclasses.asdict(policy), kind, allow_truncated])
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        self.version = f"math-{VERSION} math-verify-{importlib.metadata.version('math-verify')} policy-{digest}"
        self.card = _card(self.name, self.version, pool)

    async def judge(self, goal: Gold, submission: Submission, clock: Clock) -> Verdict:
        """Compare the final answer with the target's."""
        reading = functools.partial(read_answer, submission, self._kind, self._allow_truncated)
        extraction = await asyncio.to_thread(reading) if len(submission.text) > LONG_TEXT else reading()
        return extraction if isinstance(extraction, Verdict) else await self._compare(goal, extraction, clock)

    def check(self, goal: Gold) -> None:
        """Raise ConfigError when an answer of the target is too large or does not verify against itself."""
        for text in goal.answers:
            hit = extract(rf"\boxed{{{text}}}", "math")
            if hit.final is None:
                raise ConfigError(f"the gold {text[:80]!r} does not verify against itself: {hit.reason}")
            try:
                _shape(_plain(_bare(text)))
                same = quick(_bare(text), hit.final, self._policy_for(goal))
            except TooLarge as exc:
                raise ConfigError(f"the gold {text[:80]!r} is too large: {exc}") from exc
            if same is not True:
                raise ConfigError(f"the gold {text[:80]!r} does not verify against itself: {hit.final[:80]!r}")

    def _policy_for(self, gold: Gold) -> EqualityPolicy:
        return dataclasses.replace(self._policy, absolute=gold.tolerance, reading=gold.type)

    async def _compare(self, gold: Gold, found: Extraction, clock: Clock) -> Verdict:
        final = found.final or ""
        policy = self._policy_for(gold)
        texts = [_bare(text) + (f" \\text{{{gold.unit}}}" if gold.unit else "") for text in gold.answers]
        try:
            results = [quick(text, final, policy) for text in texts]
        except TooLarge as exc:
            return Verdict("limit", reason=str(exc), extracted=found.final, span=found.span)
        if True in results:
            return decided(True, found, "exact")
        open_texts = [text for text, result in zip(texts, results, strict=True) if result is None]
        if not open_texts:
            return decided(False, found, "different")
        return await self._ask(open_texts, found, policy, clock)

    async def _ask(self, texts: list[str], found: Extraction, policy: EqualityPolicy, clock: Clock) -> Verdict:
        undecided = Verdict("unparseable", extracted=found.final, span=found.span)
        rejected = False
        for text in texts:
            request = {"call": "maths", "gold": text, "answer": found.final, "policy": dataclasses.asdict(policy)}
            start = time.perf_counter()
            reply = await self._pool.run(request)
            # In line for a worker and for the event loop.
            clock.waited += time.perf_counter() - start - reply.seconds
            equal = reply.data.get("equal")
            if equal is True:
                return decided(True, found, str(reply.data["reason"]))
            if equal is False:
                rejected = True
            else:
                status = _STATUSES.get(reply.status, "unparseable")
                reason = str(reply.data.get("reason") or reply.status)
                undecided = dataclasses.replace(undecided, status=status, reason=reason)
        # One alternative without a verdict leaves the whole without one, when no other was met.
        all_rejected = rejected and not undecided.reason
        return decided(False, found, "different") if all_rejected else undecided


def quick(gold: str, answer: str, policy: EqualityPolicy) -> Ternary:
    """Compare two answers in this process; None when it takes a worker. Raises TooLarge beyond the grammar's caps."""
    left, right = _plain(gold), _plain(answer)
    if left and spelling_key(left) == spelling_key(right):
        return True
    first, second = _shape(left), _shape(right)
    if first is None or second is None:
        return None
    return Comparison(policy, Decide()).same(first, second)


def _bare(gold: str) -> str:
    """A gold without the box, tag or #### that a dataset may have left around it."""
    if "boxed" not in gold and "####" not in gold and "<answer>" not in gold:
        return gold
    return extract(gold, "math").final or gold


def _card(name: str, version: str, pool: Pool) -> Card:
    return Card(
        name,
        version,
        inputs="target: an answer, or {answer, alternatives, tolerance, unit, type}; reads the answer part",
        max_s=pool.timeout_s + MAX_S,
        limits=(
            f"{pool.timeout_s:g} s of wall and {pool.memory_mb} MB in a worker for each alternative that takes one "
            f"(`timeout`, `limit`); caps on the text ({MAX_TEXT:,} characters) and on length, nesting and digits of "
            "the answer before anything is parsed (`limit`)"
        ),
        partial_credit=ALL_OR_NOTHING,
        correct_when="the final answer is equal to the target or to an alternative under the policy",
        weaknesses=(
            "equality of expressions is decided at sample points with 60 and 130 digits, not proved",
            "what the grammar does not know goes to math-verify, with its guarded faults",
            "units are compared only where both sides have one",
        ),
        canaries=(
            Canary("1/2", r"so \boxed{0.5}", "correct"),
            Canary(r"\sqrt{8}", r"\boxed{2\sqrt{2}}", "correct"),
            Canary("4", r"\boxed{(1,2)}", "incorrect"),
            Canary("4", "<think>4", "no_answer"),
        ),
    )


_plain = functools.lru_cache(maxsize=4096)(plain)


@functools.lru_cache(maxsize=4096)
def _shape(text: str) -> Term | None:
    try:
        return shape(parse(text))
    except TooLarge:
        raise
    except Unparsed:
        # Not in the grammar; a size cap, which is an Unparsed too, has been passed on.
        return None
