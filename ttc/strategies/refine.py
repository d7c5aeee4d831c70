"""Refine: answer, get feedback, answer again, for a number of rounds.

Madaan et al. 2023, "Self-Refine"; Huang et al. 2023, "Large Language Models Cannot Self-Correct Reasoning Yet" (arXiv
2310.01798): without outside feedback there is nothing to gain. So the feedback comes from a checker without the answer
key:

    sums     a tool that recomputes every plain equality in the answer (1,200 x 3 = 3,600 and 7/2 = 3 1/2 too)
    scorer   the step that the scorer doubts most, where it is below `threshold`
    self     none: the model is asked to check its work (the baseline of the second paper)

A round without a complaint ends the refinement, except for `self`, which cannot tell; so does a conversation that fills
the context. Cost: up to rounds + 1 completions, and the scored answers. The last answer with a final stands. Left out:
several critics, trained critics.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.choosing.selection import fallback
from ttc.config.signatures import drawing
from ttc.config.values import at_least
from ttc.core import Answer, Candidate, Message, Problem, Prompt, Scorer
from ttc.errors import ConfigError
from ttc.session.session import Session

Feedback: TypeAlias = Literal["sums", "scorer", "self"]

_SELF = "Check your solution step by step for mistakes."
_AGAIN = "{complaint} Then solve the problem again and give its final answer."


@drawing(asks=lambda rounds: (rounds, 1))
async def refine(
    problem: Problem,
    session: Session,
    *,
    rounds: int = 2,
    feedback: Feedback = "sums",
    threshold: float = 0.5,
    step: str = "\n\n",
    scorer: Scorer | None = None,
) -> Answer:
    """Return the last answer of a chain of revisions.

    Args:
        problem: the question.
        session: the metered engine.
        rounds: most revisions.
        feedback: sums, scorer or self; see the module.
        threshold: a step with a lower score is complained about.
        step: text that ends a step, to quote the doubtful one.
        scorer: for feedback=scorer; higher is better.

    Raises:
        ConfigError: rounds < 0, or feedback=scorer without a scorer.
    """
    at_least("refine", 0, rounds=rounds)
    if not step:
        raise ConfigError("refine: step must not be empty: it is the text that ends a step")
    if feedback == "scorer" and scorer is None:
        raise ConfigError("refine: feedback=scorer needs a scorer: add --scorer prm:PATH")
    critic = _Critic(session, threshold, step, scorer if feedback == "scorer" else None)
    candidates: list[Candidate] = []
    prompt, stop_cause = session.render(), "done"
    for number in range(rounds + 1):
        last = number == rounds  # a complaint would have no effect, so the answer is not scored
        completions = await session.generate(prompt, 1, scorer=None if last else critic.scorer, least=0)
        if not completions:
            stop_cause = "no room"
            break
        completion = completions[0]
        candidate = session.candidate(prompt, completion)
        candidates.append(candidate)
        if last:
            break
        complaint = await _CRITICS[feedback](critic, prompt.then(completion), candidate)
        if complaint is None:
            stop_cause = "no complaint"
            break
        reply = Message("user", _AGAIN.format(complaint=complaint))
        messages = (*problem.messages, Message("assistant", candidate.text.strip()), reply)
        prompt = session.ask(messages, candidate.path)
    answered = [candidate for candidate in candidates if candidate.final is not None]
    return session.answer(answered[-1] if answered else fallback(candidates), candidates, stop_cause)


@dataclass(frozen=True, slots=True)
class _Critic:
    """Finds something to complain about, or None."""

    session: Session
    threshold: float
    step: str
    scorer: Scorer | None

    async def by_sums(self, whole: Prompt, candidate: Candidate) -> str | None:
        wrong = wrong_sums(candidate.thinking + "\n" + candidate.text)
        if wrong:
            return f"A calculator disagrees with: {'; '.join(wrong[:5])}."
        return None if candidate.final is not None else "There is no final answer."

    async def by_scorer(self, whole: Prompt, candidate: Candidate) -> str | None:
        if self.scorer is None:
            return None
        for score in await self.session.score(self.scorer, [whole]):
            levels = score.steps or (() if score.value is None else (score.value,))
            if levels and min(levels) < self.threshold:
                return self._doubt(whole, levels.index(min(levels)) if score.steps else None)
        return None

    def _doubt(self, whole: Prompt, place: int | None) -> str:
        steps = [text for text in whole.generated_text.split(self.step) if text.strip()]
        if place is None or place >= len(steps):
            return "A checker doubts this solution."
        return f"A checker doubts step {place + 1}: {steps[place].strip()}"

    async def by_self(self, whole: Prompt, candidate: Candidate) -> str | None:
        return _SELF


_CRITICS: Mapping[Feedback, Callable[[_Critic, Prompt, Candidate], Awaitable[str | None]]] = MappingProxyType(
    {"sums": _Critic.by_sums, "scorer": _Critic.by_scorer, "self": _Critic.by_self}
)

_MIXED = r"\d{1,6} \d{1,3}/\d{1,3}(?!\d)"
_NUMBER = rf"\(*-?(?:{_MIXED}|(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d{{1,15}})(?:\.\d{{1,15}})?)\)*"
_TIMES = r" [xX] |(?<!\b0)x(?=\d)"
"""A letter for the sign of multiplication; 2x + 3 is no product, and 0x10 is a number."""
_SUM = rf"{_NUMBER}(?:(?: ?[-+*/×] ?|{_TIMES}){_NUMBER}){{1,12}}"
# Neither side may be a part of more: of a longer sum, of 1,200, of 3 1/2, of 50 %, of "5 x $2", of "2 remainder 1".
_SIGNS = r"\-^*/+=)×÷–−"
_BEFORE = (
    rf"(?<![\w.{_SIGNS}])(?<![{_SIGNS}xX] )(?<![{_SIGNS}xX]\$)(?<![{_SIGNS}xX] \$)(?<!\d,)(?!(?<=\d )\d{{1,3}}/\d)"
)
_AFTER = (
    r"(?![\w(]|[.,]\d| \d{3}\b| \d+/\d| ?%| and \(?\d+/\d+(?! ?[-+*/=\d])| ?r(?:emainder)?\b)"
    r"(?! ?[-+*/^×÷–−]| [xX] )"
)
_EQUALITY = re.compile(rf"{_BEFORE}({_SUM}) ?= ?({_NUMBER}){_AFTER}")
_MIXED_NUMBER = re.compile(r"(\d+) (\d+/\d+)")
_STARS = str.maketrans("xX×", "***")
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
)


def wrong_sums(text: str) -> list[str]:
    """Return the equalities of `text` that do not hold, each once, in order.

    >>> wrong_sums("12+30*2=72, so 72/3=25")
    ['72/3=25']
    """
    sums: dict[str, None] = {}
    for match in _EQUALITY.finditer(text):
        left, right = _value(match[1]), _value(match[2])
        if left is not None and right is not None and abs(left - right) > _rounding(match[2]):
            sums[match[0].strip()] = None
    return list(sums)


def _rounding(number: str) -> Fraction:
    """What rounding to the decimals of `number` may change; zero if it has none."""
    decimals = number.rstrip(")").partition(".")[2]
    return Fraction(1, 2 * 10 ** len(decimals)) if decimals else Fraction(0)


def _value(text: str) -> Fraction | None:
    plain = _MIXED_NUMBER.sub(r"(\1+\2)", text.strip().replace(",", "")).translate(_STARS)
    try:
        return _evaluate(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not plain arithmetic")
