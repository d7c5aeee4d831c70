"""Voting keys: equal keys mean the same answer, without looking at any target.

A key is made from the shape of the answer: exact rationals as such, other constants and expressions by their value
(nine digits, at three fixed points per variable), sets sorted, tuples and intervals in order, words case-folded; text
that is not in the grammar by its cleaned spelling. So equality of keys is an equivalence relation by construction.
Policy: units, currency, percent signs, degrees and the name on the left of `x = 5` are dropped, since the answers to
one question share them. Never raises; linear, with a cap, beyond which the key is a hash of the text.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ttc.answers.grammar import parse
from ttc.answers.nodes import Term
from ttc.answers.numeric import approximate, exact
from ttc.answers.plain import plain
from ttc.answers.shapes import shape
from ttc.answers.tokens import MAX_CHARS, Unparsed

_TINY = 1e-12
_TURNS = 3


def math_key(final: str) -> str:
    """The voting class of a mathematical answer."""
    if len(final) > 2 * MAX_CHARS:
        return hashed(final)
    text = plain(final)
    try:
        return shape_key(shape(parse(text)))
    except (Unparsed, RecursionError):
        return spelling_key(text)


def spelling_key(text: str) -> str:
    """The class of an answer by its cleaned spelling alone."""
    return "?" + re.sub(r"\s+", "", text)


def text_key(final: str) -> str:
    """The class of words: case, white space and outer quotes do not matter."""
    words = " ".join(final.split()).strip("\"'`").rstrip(".").casefold()
    return words if len(words) <= MAX_CHARS else hashed(words)


def hashed(text: str) -> str:
    """The class of a text too long to look at."""
    return "#" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def shape_key(node: Term) -> str:
    """The class of a shape."""
    text: str = _RULES[node.op](node)
    return text


def _scalar(node: Term) -> str:
    return _value(node.args[0])


def _value(node: Term) -> str:
    value = exact(node)
    if value is not None:
        return str(value)
    if node.op == "inf":
        return "inf"
    if node.op == "neg" and node.args[0].op == "inf":
        return "-inf"
    return fingerprint(node) or "?" + repr(node)


def fingerprint(node: Term) -> str:
    """The value of an expression at three fixed points, to nine digits; empty where it has none."""
    from mpmath import fp  # type: ignore[import-untyped]

    names = sorted(node.symbols())
    values = []
    for turn in range(_TURNS if names else 1):
        # The points depend on the names alone, so equal functions get equal keys however they are written; nine digits
        # are few enough to hide rounding, and many enough that different functions do not meet at all three points.
        point = {name: _coordinate(name, turn) for name in names}
        try:
            value = approximate(node, point, fp)
        except (ArithmeticError, ValueError, TypeError, RecursionError):
            values.append("?")
            continue
        if not _TINY < abs(value) < float("inf"):
            return ""
        if not names and (short := _short_rational(value)) is not None:
            return str(short)
        values.append(_nine(value))
    return "~" + "~".join(values) if set(values) != {"?"} else ""


def _nine(value: Any) -> str:
    if isinstance(value, complex):
        parts = [0.0 if abs(part) < _TINY * abs(value) else part for part in (value.real, value.imag)]
        return f"{parts[0]:.9g}{parts[1]:+.9g}i" if parts[1] else f"{parts[0]:.9g}"
    return f"{value:.9g}"


def _short_rational(value: Any) -> Fraction | None:
    """The rational with a small denominator that the value of a constant is: cos(pi/3) is 1/2."""
    if getattr(value, "imag", 0) and abs(value.imag) > _TINY * abs(value):
        return None
    if abs(value) > 1e6:
        return None
    near = Fraction(value.real).limit_denominator(1000)
    return near if abs(near - Fraction(value.real)) <= _TINY * abs(value) else None


def _coordinate(name: str, turn: int) -> float:
    """A fixed pseudo-random number for a variable: in (1.2, 3.2), (0.1, 0.9) and (-3.2, -1.2) in turn."""
    part = zlib.crc32(f"{name}/{turn}".encode("utf-8", "surrogatepass")) / 2**32
    return (1.2 + 2 * part, 0.1 + 0.8 * part, -1.2 - 2 * part)[turn]


def _quantity(node: Term) -> str:
    return _value(node.args[0])


def _named(node: Term) -> str:
    return shape_key(node.args[1])


def _member(node: Term) -> str:
    """A member of a set of assignments keeps its name: x = 1, y = 2."""
    return f"{node.args[0]}={shape_key(node.args[1])}" if node.op == "named" else shape_key(node)


def _set(node: Term) -> str:
    return "{" + "|".join(sorted({_member(item) for item in node.args})) + "}"


def _tuple(node: Term) -> str:
    return "(" + ",".join(_member(item) for item in node.args) + ")"


def _brackets(node: Term) -> str:
    return "[" + ",".join(_member(item) for item in node.args) + ",]"


def _interval(node: Term) -> str:
    low, high, left, right = node.args
    return f"{'[' if left else '('}{shape_key(low)},{shape_key(high)}{']' if right else ')'}"


def _union(node: Term) -> str:
    return "U".join(sorted({shape_key(item) for item in node.args}))


def _ratio(node: Term) -> str:
    values = [exact(item.args[0]) if item.op == "scalar" else None for item in node.args]
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(values) and numbers[0]:
        return ":".join(str(value / numbers[0]) for value in numbers)
    return ":".join(shape_key(item) for item in node.args)


def _matrix(node: Term) -> str:
    return "M" + ";".join(",".join(shape_key(cell) for cell in row) for row in node.args)


def _relation(node: Term) -> str:
    operators, *operands = node.args
    sides = [shape_key(shape(operand)) for operand in operands]
    if len(operands) == 2 and operators[0] in (">", ">="):
        operators, sides = ({">": "<", ">=": "<="}[operators[0]],), sides[::-1]
    if set(operators) <= {"=", "!="}:
        sides = sorted(sides)
    return sides[0] + "".join(op + side for op, side in zip(operators, sides[1:], strict=True))


_RULES: Mapping[str, Any] = {
    "scalar": _scalar, "quantity": _quantity, "named": _named, "set": _set, "tuple": _tuple, "brackets": _brackets,
    "interval": _interval, "union": _union, "ratio": _ratio, "matrix": _matrix, "rel": _relation,
    "base": lambda node: f"{node.args[0]}_{node.args[1]}", "empty": lambda node: "{}",
    "text": lambda node: text_key(node.args[0]),
}  # fmt: skip
