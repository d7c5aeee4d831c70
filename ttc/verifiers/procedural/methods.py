"""How each task of reasoning-gym is scored here, and which are refused; audited against version 0.1.25.

By default the final answer must equal the stored one (`same`): the package's own rule also pays for a text that
merely contains it ("7 or 5"), and scorers of its own do so in several tasks. Exceptions are the two tables below: tasks
with many right answers, where either a scorer written here or, in the worker, the package's own decides. Its own is
used only where it reads the answer without running it as code, and there only a full score counts.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ttc.answers.grammar import Unparsed
from ttc.answers.keys import ZeroDivision, read_expression

_EXECUTES = "its scorer runs the answer as Python code"
_NO_ANSWER = "it stores no answer, so its scorer cannot be checked against one"

REFUSED: Mapping[str, str] = {
    "codeio": "it runs code to make problems, and no seed fixes them",
    "composite": "it is a mixture; name its parts",
    **dict.fromkeys(("intermediate_integration", "simple_integration"), _EXECUTES),
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER),
}
"""Tasks that are not offered, with the reason."""

OURS = frozenset({"countdown", "puzzle24", "n_queens", "number_sorting", "polynomial_multiplication"})
"""Tasks whose scorer runs the answer as code and is replaced by one in `SCORERS`, which gets the problem's data."""

THEIRS: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys((
        "arc_agi", "complex_arithmetic", "cryptarithm", "family_relationships", "game_of_life", "group_anagrams",
        "jugs", "knight_swap", "number_format", "palindrome_generation", "palindrome_partitioning",
        "polynomial_equations", "power_function", "rearc", "shortest_path", "tower_of_hanoi", "word_ladder",
    ), re.compile(r".*", re.DOTALL)),
    "kakurasu": re.compile(r"[01\s]+"),
    "quantum_lock": re.compile(r"[A-Z](\s*→\s*[A-Z])*"),
    "sokoban": re.compile(r"[LRUD]+"),
    "survo": re.compile(r"[\d\s]+"),
}  # fmt: skip
"""Tasks with many right answers or spellings, scored by the package; the pattern is what an answer must look like."""


def needs_worker(task: str) -> bool:
    """Whether judging the task takes the package, in its worker."""
    return task in OURS or task in THEIRS


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


def _numbers(text: str) -> list[float] | None:
    """A list of numbers, quoted or not, as Python or JSON write it; literals only."""
    try:
        value = ast.literal_eval(text.strip()) if len(text) <= MAX_CHARS else None
        return [float(item) for item in value] if isinstance(value, list) else None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _terms(text: str) -> Counter[str]:
    """The terms of an expanded polynomial; their order does not matter."""
    bare = re.sub(r"\s", "", text).replace("**", "^").replace("*", "").replace("−", "-")
    return Counter(term.removeprefix("+") for term in _TERM.findall(bare))


SCORERS: Mapping[str, Callable[[str, Mapping[str, Any], str], bool]] = {
    "countdown": lambda answer, data, _gold: _reaches(answer, data["numbers"], data["target"]),
    "puzzle24": lambda answer, data, _gold: _reaches(answer, data["numbers"], 24),
    "n_queens": lambda answer, data, _gold: any(same(answer, board) for board in data["valid_answers"]),
    "number_sorting": lambda answer, _data, gold: (
        (numbers := _numbers(answer)) is not None and numbers == _numbers(gold)
    ),
    "polynomial_multiplication": lambda answer, _data, gold: _terms(answer) == _terms(gold),
}
"""Scorers of our own, of the answer, the problem's data and the stored answer, by task."""
