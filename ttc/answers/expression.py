r"""Arithmetic expressions as answers: `(3+5)*2`, `\frac{24}{3} \times 1`, `6 ÷ (1 − 3/4) = 24`.

    read_expression(text) -> Expression      its exact value, the whole numbers it uses, and what it claims to equal

Only + - * /, parentheses, signs and unsigned whole numbers are understood, in plain, Unicode or LaTeX spelling; the
text is parsed by the grammar of answers, its values are exact rationals, and nothing is evaluated as code. Two finals
are in one voting class when value and numbers are the same: in a numbers game both are right or both are wrong.
Left out: powers, roots, factorials, decimals, mixed numbers, units; each is refused with its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ttc.answers.canonical import spelling_key
from ttc.answers.grammar import parse
from ttc.answers.nodes import Term
from ttc.answers.tokens import TooLarge, Unparsed, plain

MAX_CHARS = 1000
MAX_NUMBERS = 64
MAX_DIGITS = 12

_NAMES = {"pow": "a power", "fn": "a function", "quantity": "a unit or a percent sign", "sym": "a letter"}


class ZeroDivision(ArithmeticError):
    """The expression divides by zero."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression: its `value`, the `numbers` it uses, sorted, and the values of the other sides of its equation."""

    value: Fraction
    numbers: tuple[int, ...]
    claims: tuple[Fraction, ...] = ()


def read_expression(text: str) -> Expression:
    """Read an expression, alone or in an equation (`3*8 = 24`, `24 = 3*8`, `3*8 = 6*4 = 24`).

    Of an equation, the first side that is more than a number is the expression.

    Raises:
        Unparsed: anything else than the four operations on whole numbers; TooLarge beyond a cap.
        ZeroDivision: some side divides by zero.
    """
    if len(text) > MAX_CHARS:
        raise TooLarge(f"more than {MAX_CHARS} characters")
    try:
        node = parse(plain(text))
    except RecursionError as exc:
        raise TooLarge("nested too deeply") from exc
    sides = list(node.args[1:]) if node.op == "rel" else [node]
    if node.op == "rel" and set(node.args[0]) != {"="}:
        raise Unparsed("a relation that is not an equation")
    numbers = [_numbers(side) for side in sides]
    at = next((i for i, side in enumerate(sides) if side.op != "num"), 0)
    values = [_value(side) for side in sides]
    claims = tuple(value for i, value in enumerate(values) if i != at)
    return Expression(values[at], tuple(sorted(numbers[at])), claims)


def expression_key(final: str) -> str:
    """The voting class: value and numbers where it is an expression, else the spelling."""
    try:
        expression = read_expression(final)
    except (Unparsed, ZeroDivision):
        return spelling_key(final[:MAX_CHARS])
    # Both parts count: 3*8 and 4*6 are equal in value, but in a numbers game one may be right and the other wrong.
    return f"{expression.value} of {' '.join(map(str, expression.numbers))}"


def _numbers(node: Term) -> list[int]:
    """The whole numbers at the leaves; refuses every other kind of node before anything is computed."""
    if node.op == "num":
        value, digits = node.args
        if digits is not None or value.denominator != 1:
            raise Unparsed("a decimal or a mixed number")
        if value >= 10**MAX_DIGITS:
            raise TooLarge(f"a number of more than {MAX_DIGITS} digits")
        return [int(value)]
    if node.op not in ("add", "mul", "div", "neg"):
        raise Unparsed(f"{_NAMES.get(node.op, 'a ' + node.op)} in an expression")
    numbers = [number for child in node.children() for number in _numbers(child)]
    if len(numbers) > MAX_NUMBERS:
        raise TooLarge(f"more than {MAX_NUMBERS} numbers")
    return numbers


def _value(node: Term) -> Fraction:
    if node.op == "num":
        return Fraction(node.args[0])
    parts = [_value(child) for child in node.children()]
    if node.op == "add":
        return sum(parts, Fraction(0))
    if node.op == "neg":
        return -parts[0]
    if node.op == "div":
        if not parts[1]:
            raise ZeroDivision("a division by zero")
        return parts[0] / parts[1]
    product = Fraction(1)
    for part in parts:
        product *= part
    return product
