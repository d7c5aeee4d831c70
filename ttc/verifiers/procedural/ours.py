"""Scorers of our own: equality with the stored answer, and what replaces scorers that run answers as code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ttc.answers.canonical import ZeroDivision, read_expression
from ttc.answers.tokens import Unparsed

_WORDS = frozenset({"true", "false", "yes", "no"})
_TERM = re.compile(r"[+-]?[^+-]+")
MAX_CHARS = 4096


def same(answer: str, gold: str) -> bool:
    """Whether two answers are equal but for white space, a final stop, quotes, and how a number is written.

    Case matters, except for true, false, yes and no.
    """
    left, right = _plain(answer), _plain(gold)
    if left == right:
        return True
    if right.casefold() in _WORDS:
        return left.casefold() == right.casefold()
    if right[:1] in ("[", "{", "("):
        return re.sub(r"\s", "", left) == re.sub(r"\s", "", right)
    number = _number(right)
    return number is not None and _number(left) == number


def _plain(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.strip().split("\n")]
    return "\n".join(lines).strip("\"'`$").removesuffix(".").replace("\\dfrac", "\\frac").strip()


def _number(text: str) -> Fraction | None:
    bare = text.replace(",", "")
    if len(bare) > 100 or not re.fullmatch(r"[-+]?\d+(?:\.\d+|/\d+)?", bare):
        return None
    try:
        return Fraction(bare)
    except ZeroDivisionError:
        return None


def _reaches(answer: str, numbers: Sequence[int], target: int) -> bool:
    try:
        expression = read_expression(answer)
    except (Unparsed, ZeroDivision):
        return False
    return expression.numbers == tuple(sorted(numbers)) and {expression.value, *expression.claims} == {target}


def _countdown(answer: str, metadata: Mapping[str, Any], _gold: str) -> bool:
    return _reaches(answer, metadata["numbers"], metadata["target"])


def _puzzle24(answer: str, metadata: Mapping[str, Any], _gold: str) -> bool:
    return _reaches(answer, metadata["numbers"], 24)


def _n_queens(answer: str, metadata: Mapping[str, Any], _gold: str) -> bool:
    return any(same(answer, board) for board in metadata["valid_answers"])


def _number_sorting(answer: str, _metadata: Mapping[str, Any], gold: str) -> bool:
    return (numbers := _numbers(answer)) is not None and numbers == _numbers(gold)


def _numbers(text: str) -> list[float] | None:
    """A list of numbers, quoted or not, as Python or JSON write it; literals only."""
    try:
        value = ast.literal_eval(text.strip()) if len(text) <= MAX_CHARS else None
        return [float(item) for item in value] if isinstance(value, list) else None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _polynomial_multiplication(answer: str, _metadata: Mapping[str, Any], gold: str) -> bool:
    return _terms(answer) == _terms(gold)


def _terms(text: str) -> Counter[str]:
    """The terms of an expanded polynomial; their order does not matter."""
    bare = re.sub(r"\s", "", text).replace("**", "^").replace("*", "").replace("−", "-")
    return Counter(term.removeprefix("+") for term in _TERM.findall(bare))


SCORERS: Mapping[str, Callable[[str, Mapping[str, Any], str], bool]] = {
    "countdown": _countdown,
    "puzzle24": _puzzle24,
    "n_queens": _n_queens,
    "number_sorting": _number_sorting,
    "polynomial_multiplication": _polynomial_multiplication,
}
