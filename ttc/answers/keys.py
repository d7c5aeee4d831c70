r"""Voting keys: equal keys mean the same answer, without looking at any target.

A key is made from the shape (`ttc.answers.shapes`): exact rationals as such, other constants and expressions by their
value (nine digits, at three fixed points per variable), sets sorted, tuples and intervals in order, words case-folded
(`text_key`, beside the shapes); text that is not in the grammar by its cleaned spelling. So equality of keys is an
equivalence relation by construction.
Policy: percent signs, units inside lists, and the name on the left of `x = 5` are dropped, since the answers to one
question share them. So are words that are no known unit: 25 students and 25 people are one count to whoever samples an
answer, though a verifier whose target says students refuses people. 5 m, 5 cm and $5 have keys of their own, and
`classes` lets a 5 without a unit vote with the only unit that there is. Never raises; linear, with a cap, beyond which
the key is a hash of the text.

In a numbers game the answer is the expression itself (`(3+5)*2`, `\frac{24}{3} \times 1`, `6 ÷ (1 − 3/4) = 24`):
`read_expression` gives its exact value, the whole numbers it uses and what it claims to equal, and its key is made of
value and numbers. Only + - * /, parentheses, signs and unsigned whole numbers count; powers, roots, factorials,
decimals, mixed numbers and units are refused, each by its name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ttc.answers.grammar import TooLarge, Unparsed, parse, parse_expression
from ttc.answers.nodes import Term, approximate, constant_of, duration, exact, holds, known_unit, renamed, unit, unnamed
from ttc.answers.plain import MAX_CHARS, plain
from ttc.answers.shapes import AXES, TINY, by_clock, components, least_residue, matrix_rows, shape
from ttc.answers.words import hashed, word_key

_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
"""A whole number that is spelt as its own key: most answers that are voted on, which need no grammar."""


def math_key(final: str) -> str:
    """The voting class of a mathematical answer."""
    if _PLAIN_NUMBER.fullmatch(final):
        return final
    if len(final) > 2 * MAX_CHARS:
        return hashed(final)
    text = plain(final)
    try:
        node = shape(parse(text))
        return shape_key(node) + _unit_key(node)
    except (Unparsed, RecursionError):
        return spelling_key(text)


UNIT_MARK = "\x1f"
"""Between the number and the unit of a key; no text has it, since it counts as white space."""


def _unit_key(node: Term) -> str:
    """The measure of a quantity, metres or metre, behind the mark; empty where a word is no known unit."""
    body = unnamed(node)
    body = duration(body.args) or body if body.op == "set" else body
    if body.op not in ("quantity", "duration") or body.args[1] == "%":
        return ""
    text = body.args[1]
    measure, known = unit(text), [word for word in text.split() if known_unit(word)]
    if not measure.dimension and len(known) == 1 and "/" not in text:
        measure = unit(known[0])  # 14 years old are 14 years
    return f"{UNIT_MARK}{measure.dimension} {measure.factor}" if measure.dimension else ""


def classes(keys: Iterable[str]) -> dict[str, str]:
    """The class of each key in a vote: 90 minutes are 1.5 hours, and a bare number joins its only amount."""
    all_keys = list(dict.fromkeys(keys))
    by_amount: dict[str, str] = {}
    amounts = {key: by_amount.setdefault(_amount(key), key) for key in all_keys}
    with_units: dict[str, set[str]] = {}
    for key in all_keys:
        number, mark, _ = key.partition(UNIT_MARK)
        if mark:
            with_units.setdefault(number, set()).add(amounts[key])
    return {key: next(iter(units)) if len(units := with_units.get(key, ())) == 1 else amounts[key] for key in all_keys}


def _amount(key: str) -> str:
    """A key with its number in the base unit of its measure; as it is where it has no unit or no rational number."""
    number, _, measure = key.partition(UNIT_MARK)
    dimension, _, factor = measure.rpartition(" ")
    if not dimension or not Fraction(factor) or not _RATIONAL.fullmatch(number):
        return key
    return f"{Fraction(number) * Fraction(factor)}{UNIT_MARK}{dimension}"


_RATIONAL = re.compile(r"-?\d{1,400}(?:/\d{1,400})?")


def same_class(first: str, second: str) -> bool:
    """Whether two keys alone are one class: 5 is 5 m, which is not 5 cm."""
    return len({*classes((first, second)).values()}) == 1


_JOIN = re.compile(r" (?!\d|\.|\\frac)|(?<![\d}]) ")
r"""A space that no spelling needs, unlike one between two numbers or a number and a fraction: `1 \frac{1}{2}`."""


_BRACED_INDEX = re.compile(r"([_^]) ?\{ ?(\w) ?\}")
"""An index or an exponent of one character in braces, which need not be there."""


def spelling_key(text: str) -> str:
    """The class of an answer by its cleaned spelling alone."""
    return "?" + _JOIN.sub("", _BRACED_INDEX.sub(r"\1\2", " ".join(text.split())))


def shape_key(node: Term) -> str:
    """The class of a shape."""
    return _KEY_RULES[node.op](node)


def _value_key(node: Term) -> str:
    value = exact(node)
    if value is not None:
        return str(value)
    if antiderivative := _antiderivative_key(node):
        return antiderivative
    if node.op == "inf":
        return "inf"
    if node.op == "neg" and node.args[0].op == "inf":
        return "-inf"
    return _fingerprint(node) or "?" + repr(node)


def _antiderivative_key(node: Term) -> str:
    """An expression in one variable up to its constant of integration, which has many names; empty for all else."""
    name = constant_of(node)
    rest = Term("add", tuple(item for item in node.args if item != Term("sym", (name,)))) if name else node
    if name in ("", "k") or len(rest.symbols()) != 1:
        return ""
    first, *others = _values(rest)
    steps = [None if first is None or other is None else other - first for other in others]
    return "+C" + _joined(steps) if any(step is not None for step in steps) else ""


_SAMPLES = 3
"""Points at which an expression with variables is computed."""


def _fingerprint(node: Term) -> str:
    """The value of an expression at three fixed points, to nine digits; empty where it has none."""
    values = _values(node)
    numbers = [value for value in values if value is not None]
    if not all(map(_is_sizable, numbers)):
        return ""
    if not node.symbols() and numbers and (short := _short_rational(numbers[0])) is not None:
        return str(short)
    return _joined(values) if numbers else ""


def _values(node: Term) -> list[Any]:
    """What an expression is at the fixed points, one for a constant; None where it has no value."""
    # The points depend on the names alone, so equal functions get equal keys however they are written; nine digits are
    # few enough to hide rounding, and many enough that different functions do not meet at all three points.
    return [_value_at(node, point) for point in _points(node.symbols())]


def _points(names: Iterable[str]) -> list[dict[str, float]]:
    listed = sorted(names)
    return [{name: _coordinate(name, sample) for name in listed} for sample in range(_SAMPLES if listed else 1)]


def _value_at(node: Term, point: Mapping[str, float]) -> Any:
    from mpmath import fp  # type: ignore[import-untyped]

    try:
        return approximate(node, point, fp)
    except (ArithmeticError, ValueError, TypeError, RecursionError):
        return None


def _joined(values: Iterable[Any]) -> str:
    return "".join("~?" if value is None else f"~{_nine(value)}" for value in values)


def _nine(value: Any) -> str:
    if isinstance(value, complex):
        parts = [0.0 if abs(part) < TINY * abs(value) else part for part in (value.real, value.imag)]
        return f"{parts[0]:.9g}{parts[1]:+.9g}i" if parts[1] else f"{parts[0]:.9g}"
    return f"{value:.9g}"


def _short_rational(value: Any) -> Fraction | None:
    """The rational with a small denominator that the value of a constant is: cos(pi/3) is 1/2."""
    if getattr(value, "imag", 0) and abs(value.imag) > TINY * abs(value):
        return None
    if abs(value) > 1e6:
        return None
    near = Fraction(value.real).limit_denominator(1000)
    return near if abs(near - Fraction(value.real)) <= TINY * abs(value) else None


def _coordinate(name: str, sample: int) -> float:
    """A fixed pseudo-random number for a variable: in (1.2, 3.2), (0.1, 0.9) and (-3.2, -1.2) in turn."""
    part = zlib.crc32(f"{name}/{sample}".encode("utf-8", "surrogatepass")) / 2**32
    return (1.2 + 2 * part, 0.1 + 0.8 * part, -1.2 - 2 * part)[sample]


def _member_key(node: Term) -> str:
    """A member of a set of assignments keeps its name: x = 1, y = 2."""
    return f"{node.args[0]}={shape_key(node.args[1])}" if node.op == "named" else shape_key(node)


_AXES = (["x", "y"], ["x", "y", "z"])
_ROOT = re.compile(r"(?<=\A[xz])_\d\Z|(?<=\Alambda)_\d\Z")
"""The number of one of several solutions, which are in no order."""


def _set_key(node: Term) -> str:
    """Members in any order; 3 hours and 20 minutes are one time, and x = 1, y = 2 are a point."""
    time = duration(node.args)
    point = {item.args[0]: shape_key(item.args[1]) for item in node.args if item.op == "named"}
    if len(point) == len(node.args) and sorted(point) in _AXES:
        return f"({','.join(point[name] for name in sorted(point))})"
    if len(point) == len(node.args) > 1 and len({_ROOT.sub("", name) for name in point} - {"", *point}) == 1:
        return "{" + "|".join(sorted(point.values())) + "}"
    return shape_key(time) if time else "{" + "|".join(sorted(map(_member_key, node.args))) + "}"


def _interval_key(node: Term) -> str:
    low, high, left, right = node.args
    return f"{'[' if left else '('}{shape_key(low)},{shape_key(high)}{']' if right else ')'}"


def _ratio_key(node: Term) -> str:
    values = [exact(item.args[0]) if item.op == "scalar" else None for item in node.args]
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(values) and numbers[0]:
        return ":".join(str(value / numbers[0]) for value in numbers)
    return ":".join(shape_key(item) for item in node.args)


def _residue_key(node: Term) -> str:
    whole = least_residue(node)
    residue = shape_key(node.args[0]) if whole is None else str(whole)
    return " mod ".join((residue, *map(shape_key, node.args[1:2])))


_INTEGERS = frozenset("klmnt")


def _named_key(name: str, body: Term) -> str:
    """What is said of a name: without it, but for z = 7 - 2x; the integer of a period may have any letter."""
    symbols = body.symbols()
    argument = name.partition("(")[2].removesuffix(")")
    if argument.isalpha() and argument in symbols and "x" not in symbols:
        return shape_key(renamed(body, argument, "x"))
    if name in ("x", "z") and body.op == "scalar" and symbols and symbols <= {"x", "y", "z"}:
        return _relation_key(Term("rel", (("=",), Term("sym", (name,)), body.args[0])))
    if len(symbols) == 1 and symbols <= _INTEGERS and holds(body, Term("sym", ("pi",))):
        body = renamed(body, next(iter(symbols)), "k")
    return shape_key(body)


def _brackets_key(node: Term) -> str:
    """A list in its order; a list of lists is a matrix."""
    rows = matrix_rows(node)
    return _matrix_key(rows) if rows else "[" + ",".join(_member_key(item) for item in node.args) + ",]"


def _matrix_key(rows: Iterable[Iterable[Term]]) -> str:
    return "M" + ";".join(",".join(shape_key(cell) for cell in row) for row in rows)


def _vector_key(node: Term) -> str:
    """A sum over the axes, 2i - 3j, as a tuple; empty for all else, and for an i alone."""
    axes = {AXES[name] for name in node.symbols() & AXES.keys()}
    if not axes or node.op != "add":
        return ""
    parts = components(node, 3 if 2 in axes else 2)
    return "(" + ",".join(map(_value_key, parts)) + ")" if parts else ""


def _equation_key(left: Term, right: Term) -> str:
    """An equation whatever stands on which side: 2x - y = 3 is y = 2x - 3; empty where it has no values."""
    zero = Term("add", (left, Term("neg", (right,))))
    if {"x", "y"} <= zero.symbols() and (heights := _heights(zero)):
        return _joined(heights)
    first, *others = _values(zero)
    if not others or not all(map(_is_sizable, (first, *others))):
        return ""
    return "=" + _joined(other / first for other in others)


def _heights(zero: Term) -> list[Any]:
    """The y of a line or a plane, on which `zero` is zero, at the fixed points; nothing for other curves."""
    heights, slopes = list[Any](), list[Any]()
    for point in _points(zero.symbols()):
        at = [_value_at(zero, point | {"y": y}) for y in (0.0, 1.0, 2.0)]
        if None in at or abs(at[2] - 2 * at[1] + at[0]) > TINY * max(map(abs, at)):
            return []
        slopes.append(at[1] - at[0])
        if not _is_sizable(slopes[-1]) or abs(slopes[-1] - slopes[0]) > TINY * max(map(abs, at)):
            return []
        heights.append(-at[0] / slopes[0])
    return heights if all(map(_is_sizable, heights)) else []


def _is_sizable(value: Any) -> bool:
    return value is not None and TINY < abs(value) < float("inf")


def _relation_key(node: Term) -> str:
    operators, *operands = node.args
    if operators == ("=",) and len(operands) == 2 and (equation := _equation_key(*operands)):
        return equation
    sides = [shape_key(shape(operand)) for operand in operands]
    if len(operands) == 2 and operators[0] in (">", ">="):
        operators, sides = ({">": "<", ">=": "<="}[operators[0]],), sides[::-1]
    if set(operators) <= {"=", "!="}:
        sides = sorted(sides)
    return sides[0] + "".join(op + side for op, side in zip(operators, sides[1:], strict=True))


_KEY_RULES: Mapping[str, Callable[[Term], str]] = {
    "scalar": lambda node: _vector_key(node.args[0]) or _value_key(node.args[0]),
    "quantity": lambda node: _value_key(node.args[0]),
    "named": lambda node: _named_key(*node.args),
    "duration": lambda node: _value_key(node.args[0]),
    "set": _set_key,
    "tuple": lambda node: "(" + ",".join(_member_key(item) for item in node.args) + ")",
    "brackets": _brackets_key,
    "interval": _interval_key,
    "without": lambda node: "\\".join(map(shape_key, node.args)),
    "union": lambda node: "U".join(sorted({shape_key(item) for item in node.args})),
    "ratio": _ratio_key,
    "matrix": lambda node: _matrix_key(node.args),
    "rel": _relation_key,
    "residue": _residue_key,
    "cases": lambda node: "|".join(sorted(map(shape_key, node.args))),
    "case": lambda node: " if ".join(map(shape_key, node.args)),
    "base": lambda node: f"{node.args[0]}_{node.args[1]}",
    "time": lambda node: "{}:{:02d}{}".format(*by_clock(node)),
    "empty": lambda node: "{}",
    "text": word_key,
    "designation": lambda node: str(node.args[0]),
}


# -- the expression of a numbers game ----------------------------------------------------------------------------------
MAX_EXPRESSION = 1000
MAX_NUMBERS = 64
MAX_INTEGER = 12

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
    if len(text) > MAX_EXPRESSION:
        raise TooLarge(f"more than {MAX_EXPRESSION} characters")
    try:
        node = parse_expression(plain(text))
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
        return spelling_key(final[:MAX_EXPRESSION])
    # Both parts count: 3*8 and 4*6 are equal in value, but in a numbers game one may be right and the other wrong.
    return f"{expression.value} of {' '.join(map(str, expression.numbers))}"


def _numbers(node: Term) -> list[int]:
    """The whole numbers at the leaves; refuses every other kind of node before anything is computed."""
    if node.op == "num":
        value, digits = node.args
        if digits is not None or value.denominator != 1:
            raise Unparsed("a decimal or a mixed number")
        if value >= 10**MAX_INTEGER:
            raise TooLarge(f"a number of more than {MAX_INTEGER} digits")
        return [int(value)]
    if node.op not in ("add", "mul", "div", "neg"):
        raise Unparsed(f"{_NAMES.get(node.op, 'a ' + node.op)} in an expression")
    numbers = [number for child in node.children() for number in _numbers(child)]
    if len(numbers) > MAX_NUMBERS:
        raise TooLarge(f"more than {MAX_NUMBERS} numbers")
    return numbers


def _value(node: Term) -> Fraction:
    value = exact(node)
    if value is None:  # the caps of `exact` lie beyond what MAX_NUMBERS numbers can make
        raise ZeroDivision("a division by zero")
    return value
