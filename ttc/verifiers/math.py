"""Mathematics: fractions to intervals, exactly where possible, numerically and by `math-verify` where not.

The cascade, from cheap to dear: the spelling (`spelled`), exact and structural comparison and normal forms in this
process (`proved`, tens of microseconds), values with 60 and 130 digits in a killable worker (`sampled`, about 1 ms),
and `math_verify` there (about 10 ms) where the gold is not in the grammar. Text of the model is parsed, never run.
A value is not enough: an answer that restates the question or is left unevaluated is incorrect (`maths.asked`). Of a
target with several parts, (a) 5, (b) 12, each must be right. Formulas of logic are compared by their truth tables.
An answer that asks for too much work is incorrect, with the limit as the reason; a time-out is tried once more on
a fresh worker and is then no verdict. Left out: geometry, answers in sentences.

Args:
    timeout_s: Limit of one verdict in the worker, in seconds that it runs.
    workers: Worker processes, started when first needed.
    rules: asked (the answer has the form that the question asks for), or value (any expression of the right value, 50 %
        is 50 and 0.5, sets without multiplicity: the policy of published graders).
    require: any kind of equality, or proved: then agreement at sample points alone is incorrect.
    percent: What 50 % equals: what the question asks for, or else 0.5, and 50 where the gold has the sign (asked); 50
        and 0.5 (either), 50 (unit), 0.5 (value).
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
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ttc.answers import Extraction, extract
from ttc.answers.extract import MAX_BOXES, OR_WORD, unit_behind
from ttc.answers.grammar import SIZES, TooLarge
from ttc.answers.keys import spelling_key
from ttc.answers.kinds import OPPOSITES, verdict_of
from ttc.answers.nodes import PERCENTS, Term, exact, unit
from ttc.answers.plain import plain
from ttc.answers.shapes import shape_of
from ttc.answers.words import text_key
from ttc.config.values import at_least
from ttc.core import Form, Status, Submission, Target, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.maths.asked import asks, asks_base, asks_percent, domains, fault, other_way, scalars
from ttc.verifiers.maths.beside import read_beside, without_domain
from ttc.verifiers.maths.comparing import (
    Comparison,
    Decide,
    EqualityPolicy,
    Percent,
    Reading,
    Ternary,
    as_ratio,
    read_alike,
)
from ttc.verifiers.maths.parts import answers_of_parts, labelled, whole_of
from ttc.verifiers.shared.contract import (
    ALL_OR_NOTHING,
    MAX_S,
    MAX_TEXT,
    Canary,
    Card,
    Clock,
    TargetVerifier,
    decided,
    read_answer,
    read_gold,
)
from ttc.verifiers.workers.pool import Pool, WorkerReply

VERSION = "18"
_STATUSES: Mapping[str, Status] = {"timeout": "timeout", "error": "error"}
LONG_TEXT = 50_000
"""Characters beyond which a text is searched in a thread, so that an event loop is not held up."""


def math(
    *,
    timeout_s: float = 1.5,
    workers: int = 2,
    rules: Rules = "asked",
    require: Literal["any", "proved"] = "any",
    percent: Literal["asked", "either", "unit", "value"] = "asked",
    rounding: int = 6,
    tolerance: float = 0.0,
    kind: Literal["math", "number"] = "math",
    allow_truncated: bool = False,
    memory_mb: int = 2048,
) -> MathVerifier:
    """Return the verifier of mathematical answers."""
    at_least("math", 0, rounding=rounding, tolerance=tolerance)
    by_value = rules == "value"
    read_as: Percent | None = ("either" if by_value else None) if percent == "asked" else percent
    policy = EqualityPolicy(read_as or "gold", rounding, tolerance, multiset=not by_value)
    reading = MathReading(rules, require, read_as is None, kind, allow_truncated)
    return MathVerifier(policy, Pool(workers=workers, timeout_s=timeout_s, memory_mb=memory_mb), reading)


Rules: TypeAlias = Literal["asked", "value"]


@dataclass(frozen=True, slots=True)
class MathReading:
    """How targets and answers are read: the rules, the kind of answers, and whether the question says what 50 % is."""

    rules: Rules
    require: str
    percent_asked: bool
    kind: str
    allow_truncated: bool


class MathVerifier(TargetVerifier[Target]):
    """Compares final answers with a target; see the module."""

    name = "math"
    read = staticmethod(read_gold)

    def __init__(self, policy: EqualityPolicy, pool: Pool, reader: MathReading) -> None:
        self._workers = pool
        self._policy, self._pool, self._reader = policy, pool, reader
        settings = json.dumps([dataclasses.asdict(policy), dataclasses.asdict(reader)])
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        self.version = f"math-{VERSION} math-verify-{importlib.metadata.version('math-verify')} policy-{digest}"
        self.card = _card(self.name, self.version, pool)

    async def judge(self, goal: Target, submission: Submission, clock: Clock) -> Verdict:
        """Compare the final answer with the target's."""
        reading = functools.partial(read_answer, submission, self._reader.kind, self._reader.allow_truncated)
        extraction = await asyncio.to_thread(reading) if len(submission.text) > LONG_TEXT else reading()
        if ")" in goal.gold and (golds := labelled(_bare(goal.gold))):
            return await self._by_parts(goal, golds, submission, extraction, clock)
        if isinstance(extraction, Verdict) and extraction.reason == "hedge":
            extraction = self._parts(goal, submission.text) or extraction
        if isinstance(extraction, Extraction) and extraction.method in ("last_number", "box", "phrase"):
            extraction = _with_unit(extraction, submission.text)
        return extraction if isinstance(extraction, Verdict) else await self._compare(goal, extraction, clock)

    async def _by_parts(
        self, goal: Target, golds: tuple[str, ...], submission: Submission, reading: Extraction | Verdict, clock: Clock
    ) -> Verdict:
        """The verdict on the answers to the parts of a question, which are right together: (a) 5, (b) 12."""
        is_open = isinstance(reading, Extraction) or reading.reason in ("no_answer", "hedge")
        final = reading.final or "" if isinstance(reading, Extraction) else ""
        find = functools.partial(extract, kind=self._reader.kind)
        answers = answers_of_parts(submission.text, final, len(golds), find) if is_open else ()
        if not answers:
            return reading if isinstance(reading, Verdict) else decided(False, reading, "not an answer to each part")
        verdicts = [
            await self._compare(dataclasses.replace(goal, gold=gold, alternatives=()), Extraction(answer), clock)
            for gold, answer in zip(golds, answers, strict=True)
        ]
        # One wrong part makes the whole wrong, whatever is not known of the others.
        verdict = min(verdicts, key=lambda verdict: (verdict.status == "correct", verdict.status != "incorrect"))
        return dataclasses.replace(verdict, extracted="; ".join(answers))

    def _parts(self, goal: Target, text: str) -> Extraction | None:
        """Several boxes of one clause, or alternatives, as one answer, where the target has as many parts.

        Alternatives of one value are that value: 1/2 or 0.5.
        """
        hit = extract(text, self._reader.kind)
        if not hit.parts:
            return None
        in_order = not OR_WORD.search(text, *(hit.span or ()))
        for gold in goal.answers:
            try:
                whole = whole_of(_bare(gold), hit.parts, in_order)
                if all(quick(_bare(gold), part, self._policy_for(goal)) for part in hit.parts[:MAX_BOXES]):
                    return Extraction(hit.parts[0], hit.span, "boxes")
            except TooLarge:
                return None  # such a gold has no parts; `check_gold` names it
            if whole is not None:
                return Extraction(whole, hit.span, "boxes")
        return None

    def check(self, goal: Target) -> None:
        """Raise ConfigError when an answer of the target is too large or does not verify against itself."""
        for text in goal.answers:
            if defect := _defect(text, self._policy_for(goal)):
                raise ConfigError(f"the gold {text[:80]!r} {defect}")

    def _policy_for(self, gold: Target) -> EqualityPolicy:
        order: Reading = "tuple" if not gold.order and asks("order", gold.question) else gold.order
        policy = dataclasses.replace(
            self._policy, absolute=gold.tolerance, reading=order, domain=gold.domain or domains(gold.question)
        )
        if gold.percent:
            return dataclasses.replace(policy, percent=gold.percent)
        asked = self._reader.percent_asked and asks_percent(gold.question)
        return dataclasses.replace(policy, percent="unit") if asked else policy

    async def _compare(self, gold: Target, found: Extraction, clock: Clock) -> Verdict:
        final = found.final or ""
        policy = self._policy_for(gold)
        texts = [_bare(text) + (f" \\text{{{gold.unit}}}" if gold.unit else "") for text in gold.answers]
        form: Form = "any" if self._reader.rules == "value" else gold.form
        try:
            results = [weigh(text, final, policy, form, gold.question) for text in texts]
        except TooLarge as exc:
            return decided(False, found, f"limit: {exc}")
        if reason := next((how for equal, how in results if equal), ""):
            return decided(True, found, reason)
        open_texts = [text for text, (equal, _) in zip(texts, results, strict=True) if equal is None]
        if not open_texts:
            reasons = [how for _, how in results]
            if set(reasons) == {UNPARSED}:
                return Verdict("unparseable", reason=UNPARSED, extracted=found.final, span=found.span)
            return decided(
                False, found, next((how for how in reasons if how not in ("different", UNPARSED)), "different")
            )
        return await self._ask(open_texts, found, policy, clock)

    async def _ask(self, texts: list[str], found: Extraction, policy: EqualityPolicy, clock: Clock) -> Verdict:
        undecided = Verdict("unparseable", extracted=found.final, span=found.span)
        rejected = ""
        for text in texts:
            call = "maths" if shape_of(_plain(text)) is not None else "latex"
            request = {"call": call, "gold": text, "answer": found.final, "policy": dataclasses.asdict(policy)}
            reply = await self._reply(request, clock)
            equal, reason = reply.data.get("equal"), str(reply.data.get("reason") or reply.status)
            if equal is True and self._reader.require == "any":
                return decided(True, found, reason)
            if equal is not None or reply.status == "limit":
                # What the answer itself caused is a wrong answer, so that nobody can choose to have no verdict.
                rejected = "different" if equal is False else "not proved" if equal else f"limit: {reason}"
            else:
                undecided = dataclasses.replace(
                    undecided, status=_STATUSES.get(reply.status, "unparseable"), reason=reason
                )
        # One alternative without a verdict leaves the whole without one, when no other was met.
        return decided(False, found, rejected) if rejected and not undecided.reason else undecided

    async def _reply(self, request: Mapping[str, Any], clock: Clock) -> WorkerReply:
        """What the worker says; a time-out, which a busy machine may have caused, is asked once more."""
        for _ in range(2):
            start = time.perf_counter()
            reply = await self._pool.run(request)
            # In line for a worker and for the event loop.
            clock.waited += time.perf_counter() - start - reply.seconds
            if reply.status != "timeout":
                break
        return reply


# -- two answers -------------------------------------------------------------------------------------------------------
UNPARSED = "not in the grammar of answers"
_PARTED = re.compile(r"\d, (?=\d{3}(?!\d))")
"""A space that makes two numbers of what would be one without it: 1, 500 is not 1,500."""
_LABELLED = re.compile(
    r"\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?\(\s*(?P<letter>[A-E])\s*\)(?P<value>.*)", re.DOTALL
)
"""The letter of a choice in brackets, and the value that may stand behind it: (B) 12."""
_LETTER = re.compile(r"\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?(?P<letter>[A-E])(?P<value>[\s.}]*)")
"""Such a letter without brackets, and nothing else."""
_STATISTIC = re.compile(
    r"[\s$]*(?:\\(?:text|textrm|mathrm|operatorname|mathbb)\s*\{\s*|\\)?"
    r"(?P<name>rank|nullity|dim|deg|Var|Cov|SD|E|pOH|pH)\s*\}?(?![A-Za-z_])[^=]{0,60}?(?:=|\\approx)"
)
"""What is said of a matrix, a chance or a solution, which is not told from a number later: Var(X) = 3."""
_NO_VALUE = re.compile(r"\A\s*,|\([A-E]\)|\b(?:or|and|not|nor|wrong|incorrect|false|except)\b")
"""What makes of a letter and what is behind it more, or less, than one choice."""
_INTEGER = re.compile(r"-?[0-9]+")
_LOGIC = re.compile(r"\\(?:neg|land|lor|to|implies|iff)(?![A-Za-z])")
"""Signs of a formula of logic."""


def weigh(
    gold: str, answer: str, policy: EqualityPolicy, form: Form = "any", question: str = ""
) -> tuple[Ternary, str]:
    """Compare two answers in this process: whether they are equal (None when it takes a worker), and how or why not.

    Raises TooLarge beyond the grammar's caps.
    """
    left, right = _plain(gold), _plain(answer)
    are_integers, letter = bool(_INTEGER.fullmatch(left) and _INTEGER.fullmatch(right)), ""
    if not are_integers:  # which leave nothing open
        (left, letter), (right, _) = without_domain(left, right, True), without_domain(right, left, False)
    if decision := _by_text(gold, answer, left, right, question):
        return decision
    first, second = shape_of(left), shape_of(right)
    if first is None:
        return None, ""
    if first.op == "base" and right.upper() == first.args[0] and asks_base(question, first.args[1]):
        return True, "digits"  # 1011 for 1011_2, where the question says in which base
    if first.op == "text" and text_key(left) in OPPOSITES:
        second = shape_of(_plain(verdict_of(right)))  # Yes, with a reason
    if second is None:
        return False, UNPARSED
    if not are_integers:
        first, second = read_beside(first, left, second, right, letter, question)
    if asks("chance", question) and {first.op, second.op} == {"ratio", "scalar"}:
        return False, "different"  # odds of 2:3 are no probability of 2/3
    first, second = read_alike(first, second)
    if asks("ratio", question):
        first, second = as_ratio(first), as_ratio(second)
    equal = Comparison(policy, Decide()).same(first, second)
    if equal is False:
        return False, "different"
    if reason := fault(first, second, form, question):
        return False, reason
    if form not in ("any", "expression") and _has_like_terms(first, second):
        return False, "unevaluated"
    return equal, "proved" if equal else ""


def _by_text(gold: str, answer: str, left: str, right: str, question: str) -> tuple[bool, str] | None:
    """What two texts decide before they are parsed, `left` and `right` in plain form; None where they do not."""
    sides = (gold, answer) if "=" in gold and "=" in answer else ()
    names = {match["name"] for match in map(_STATISTIC.match, sides) if match}
    if len(names) > 1 or other_way(gold, answer, question):
        return False, "different"
    if left and spelling_key(left) == spelling_key(right) and (_PARTED.search(left) or not _PARTED.search(right)):
        return True, "spelled"
    if _LOGIC.search(left):
        from ttc.answers.normal import same_formula  # seldom needed

        equal = same_formula(left, right)
        return None if equal is None else (equal, "proved" if equal else "different")
    letter = _LABELLED.fullmatch(gold)
    return _by_letter(letter, answer) if letter else None


def _by_letter(letter: re.Match[str], answer: str) -> tuple[bool, str] | None:
    """Whether an answer has the letter of a gold that is (B) or (B) 12; None where its value has to tell."""
    choice = _LABELLED.fullmatch(answer) or _LETTER.fullmatch(answer)
    if choice is None or (letter["value"].strip(" }") and choice["value"].strip(" }")):
        return None
    if choice["letter"] != letter["letter"]:
        return False, "different"
    return None if _NO_VALUE.search(choice["value"]) else (True, "letter")


def _has_like_terms(gold: Term, answer: Term) -> bool:
    """Whether an answer for a constant that is no rational has a sum with terms that were not put together."""
    golds = list(scalars(gold))
    if gold == answer or any(node.symbols() or exact(node) is not None for node in golds):
        return False
    from ttc.answers.normal import has_like_terms

    return any(map(has_like_terms, scalars(answer))) and not any(map(has_like_terms, golds))


# -- golds and parts ---------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=4096)
def _defect(gold: str, policy: EqualityPolicy) -> str:
    """Why a gold holds no answer to itself: too large, alternatives, a denial; empty for nearly all."""
    bare = _bare(gold)
    hit = extract(rf"\boxed{{{bare}}}", "math")
    if hit.reason == "hedge":
        return (
            "does not verify against itself: a hedge; of several right answers one is answer, the others alternatives"
        )
    if hit.final is None:
        return f"does not verify against itself: {hit.reason}"
    try:
        shape_of(_plain(bare))
        same = quick(bare, hit.final, policy)
    except TooLarge as exc:
        return f"is too large: {exc}"
    return "" if same else f"does not verify against itself: {hit.final[:80]!r}"


def quick(gold: str, answer: str, policy: EqualityPolicy) -> Ternary:
    """Compare the values of two answers in this process; None when it takes a worker."""
    return weigh(gold, answer, policy)[0]


def _with_unit(extraction: Extraction, text: str) -> Extraction:
    r"""An answer with the unit behind it: of "It takes 2 hours." or `\boxed{2}$ hours` the answer in minutes is 120."""
    name = unit_behind(text, *extraction.span) if extraction.span else ""
    if not name or not (unit(name).dimension or name in PERCENTS or name in SIZES):
        return extraction
    return dataclasses.replace(extraction, final=rf"{extraction.final} \text{{{name}}}")


def _bare(gold: str) -> str:
    """A gold without the box, tag or #### that a dataset may have left around it."""
    if "boxed" not in gold and "####" not in gold and "<answer>" not in gold:
        return gold
    return extract(gold, "math").final or gold


# -- the card, and what is kept of texts -------------------------------------------------------------------------------
def _card(name: str, version: str, pool: Pool) -> Card:
    return Card(
        name,
        version,
        inputs="target: an answer, or {answer, alternatives, tolerance, unit, percent, type, question, form, domain}; "
        "reads the answer part",
        max_s=pool.timeout_s + MAX_S,
        limits=(
            f"{pool.timeout_s:g} s and {pool.memory_mb} MB in a worker for each alternative that takes one "
            f"(`timeout`, after a second try); caps on the text ({MAX_TEXT:,} characters) and on length, nesting, "
            "digits and cost of the answer (`incorrect`, with the limit as the reason)"
        ),
        partial_credit=ALL_OR_NOTHING,
        correct_when="the final answer is equal to the target or to an alternative under the policy, and has the form "
        "that the question asks for",
        weaknesses=(
            "equality beyond polynomials, fractions and roots is decided at sample points, not proved (`sampled`)",
            "a gold that the grammar does not know goes to math-verify, with its guarded faults",
            "without the question, a copied expression is known by its form only",
            "units are compared only where both sides have one",
        ),
        canaries=(
            Canary("1/2", r"so \boxed{0.5}", "correct"),
            Canary(r"\sqrt{8}", r"\boxed{2\sqrt{2}}", "correct"),
            Canary("4", r"\boxed{(1,2)}", "incorrect"),
            Canary("4", r"\boxed{4+1}", "incorrect"),
            Canary("4", "<think>4", "no_answer"),
        ),
    )


_plain = functools.lru_cache(maxsize=4096)(plain)
