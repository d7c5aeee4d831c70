"""A checker without a key: recompute every plain equality that a text states ("12+30*2=72").

Exact rationals on a small grammar (numbers, + - * / and parentheses), no eval; what it cannot read it leaves alone, so
silence is not approval.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

_NUMBER = r"\(*-?\d{1,15}(?:\.\d{1,15})?\)*"
_SUM = rf"{_NUMBER}(?: ?[-+*/] ?{_NUMBER}){{1,12}}"
_EQUALITY = re.compile(rf"(?<![\w.^*/+=)-])(?<![-^*/+=)] )({_SUM}) ?= ?({_NUMBER})(?![\w(]|\.\d)(?! ?[-+*/^])")
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
)


def wrong_sums(text: str) -> list[str]:
    """Return the equalities of `text` that do not hold, each once, in order.

    >>> wrong_sums("12+30*2=72, so 72/3=25")
    ['72/3=25']
    """
    found: dict[str, None] = {}
    for match in _EQUALITY.finditer(text):
        left, right = _value(match[1]), _value(match[2])
        if left is not None and right is not None and abs(left - right) > _rounding(match[2]):
            found[match[0].strip()] = None
    return list(found)


def _rounding(number: str) -> Fraction:
    """What rounding to the decimals of `number` may change; nothing where it has none."""
    decimals = number.rstrip(")").partition(".")[2]
    return Fraction(1, 2 * 10 ** len(decimals)) if decimals else Fraction(0)


def _value(text: str) -> Fraction | None:
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
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
