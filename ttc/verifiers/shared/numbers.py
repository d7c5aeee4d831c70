"""What the numbers games share: read numbers, use each once, compare an exact value with the target.

Signs are accepted beside the four operations. For targets and numbers that are not negative this opens no way that
subtraction does not: a signed expression is worth plus or minus an unsigned one over the same numbers, and an unsigned
one of negative value can be turned around.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from ttc.answers import Extraction
from ttc.answers.grammar import TooLarge, Unparsed
from ttc.answers.keys import MAX_INTEGER, MAX_NUMBERS, Expression, ZeroDivision, read_expression
from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import (
    ALL_OR_NOTHING,
    MAX_S,
    Canary,
    Card,
    Clock,
    TargetVerifier,
    decided,
    known_fields,
    read_answer,
)

VERSION = "4"
MAX_TEXT = MAX_NUMBERS * (MAX_INTEGER + 2)
"""Characters of numbers written as one string."""
_FIELDS = ("numbers", "target", "solution")


@dataclass(frozen=True, slots=True)
class Game:
    """The numbers to use, the value to reach, and one solution where it is known."""

    numbers: tuple[int, ...]
    target: Fraction
    solution: str = ""


class NumbersVerifier(TargetVerifier[Game]):
    """Judges expressions; see `countdown` and `game24`."""

    def __init__(
        self, name: str, *, use_all: bool, fixed: int | None, allow_truncated: bool, canaries: tuple[Canary, ...]
    ) -> None:
        self.name = name
        self._use_all, self._fixed, self._allow_truncated = use_all, fixed, allow_truncated
        self.version = f"{name}-{VERSION}-{'all' if use_all else 'some'}{'-truncated' if allow_truncated else ''}"
        once = "every number exactly once" if use_all else "each number at most once"
        self.card = Card(
            name,
            self.version,
            inputs='target {"numbers", "target"}, perhaps with a "solution"; reads the final answer as an expression',
            max_s=MAX_S,
            limits=f"{MAX_NUMBERS} numbers of {MAX_INTEGER} digits, 1000 characters (limit); linear in the text",
            partial_credit=ALL_OR_NOTHING + "; `parts` tells numbers and value apart",
            correct_when=f"the expression uses {once} and is worth the target, exactly; + - * / and parentheses only",
            weaknesses=(
                "a chain of steps over several equations is unparseable: one expression is asked for",
                "a target without a solution is not checked for having one",
            ),
            canaries=canaries,
        )

    def read(self, target: TargetLike) -> Game:
        """See `read_game`."""
        return read_game(target, self._fixed)

    async def judge(self, goal: Game, submission: Submission, clock: Clock) -> Verdict:
        """Whether the final answer is an expression that reaches the target."""
        extraction = read_answer(submission, "expression", self._allow_truncated)
        return extraction if isinstance(extraction, Verdict) else self._judge(goal, extraction)

    def check(self, goal: Game) -> None:
        """Raise ConfigError when the target's own solution is wrong."""
        if goal.solution and not (verdict := self._judge(goal, Extraction(goal.solution))).correct:
            raise ConfigError(f"the solution {goal.solution[:80]!r} does not verify: {verdict.reason}")

    def _judge(self, game: Game, found: Extraction) -> Verdict:
        try:
            expression = read_expression(found.final or "")
        except TooLarge as exc:
            return Verdict("incorrect", 0.0, reason=f"limit: {exc}", extracted=found.final, span=found.span)
        except Unparsed as exc:
            return Verdict("unparseable", reason=str(exc), extracted=found.final, span=found.span)
        except ZeroDivision as exc:
            return Verdict("incorrect", 0.0, reason=str(exc), extracted=found.final, span=found.span)
        wrong = self._wrong_numbers(game, expression)
        off = _wrong_value(game, expression)
        parts = {"numbers": float(not wrong), "value": float(not off)}
        reason = wrong or off or "the target, with the numbers"
        return dataclasses.replace(decided(not (wrong or off), found, reason), parts=parts)

    def _wrong_numbers(self, game: Game, expression: Expression) -> str:
        """What is wrong with the use of numbers; empty when nothing is."""
        available, spent_numbers = Counter(game.numbers), Counter(expression.numbers)
        if extra := spent_numbers - available:
            return f"uses {min(extra)} more often than it is given"
        unused = available - spent_numbers
        return f"does not use {min(unused)}" if self._use_all and unused else ""


def _wrong_value(game: Game, expression: Expression) -> str:
    if expression.value != game.target:
        return f"is worth {str(expression.value)[:40]}, not {game.target}"
    return "its own equation is false" if any(claim != game.target for claim in expression.claims) else ""


def read_game(target: TargetLike, fixed: int | None) -> Game:
    """Read {"numbers": [...], "target": n, "solution": "..."}; with a `fixed` value the numbers alone will do.

    Raises:
        ConfigError: naming the field that is missing, unknown or of the wrong type.
    """
    fields = target if isinstance(target, Mapping) else {"numbers": target}
    known_fields(fields, _FIELDS)
    numbers = fields.get("numbers")
    if isinstance(numbers, str):
        numbers = [_number(word) for word in numbers[:MAX_TEXT].replace(",", " ").split()]
    if not isinstance(numbers, (list, tuple)) or not 1 <= len(numbers) <= MAX_NUMBERS or not all(map(_fits, numbers)):
        raise ConfigError(f"target.numbers must be a list of whole numbers >= 0, got {fields.get('numbers')!r}"[:300])
    value = fields.get("target", fixed)
    if value is None or not _fits(value):
        raise ConfigError(f"target.target must be a whole number >= 0, got {value!r}"[:300])
    if fixed is not None and value != fixed:
        raise ConfigError(f"target.target must be {fixed}, got {value!r}")
    solution = fields.get("solution", "")
    if not isinstance(solution, str):
        raise ConfigError(f"target.solution must be a string, got {solution!r}"[:300])
    return Game(tuple(numbers), Fraction(value), solution)


def _number(word: str) -> int | str:
    return int(word) if word.isdecimal() and len(word) <= MAX_INTEGER else word


def _fits(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**MAX_INTEGER
