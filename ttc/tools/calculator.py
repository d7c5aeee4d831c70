"""A calculator: + - * / and parentheses over numbers, exact; nothing is evaluated as code.

Decimals are fractions, and so is a result: `0.1+0.2` is 0.3, `1/3` stays 1/3; a decimal is returned where one was given
and the result is one. Left out: powers and functions.
"""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction

from ttc.agents.tool import ToolFailure, Use
from ttc.answers.grammar import Unparsed
from ttc.answers.keys import ZeroDivision, read_expression
from ttc.core import Problem

_DECIMAL = re.compile(r"(?<![\w.])(\d[\d,]*)?\.(\d+)(?![\w.])")


def calculator() -> Calculator:
    """Return the calculator."""
    return Calculator()


class Calculator:
    """Works out one expression."""

    name = "calculator"
    about = "the exact value of an expression of + - * / and parentheses over numbers, such as (12+30)*2.5"

    def start(self, problem: Problem) -> Use:
        """See `Tool.start`; it has no state."""
        return _value


async def _value(argument: str) -> str:
    expression = argument.strip().removesuffix("=")
    whole = _DECIMAL.sub(_as_fraction, expression)
    try:
        value = read_expression(whole).value
    except ZeroDivision as exc:
        raise ToolFailure("division by zero") from exc
    except Unparsed as exc:
        raise ToolFailure(f"not an expression of + - * / over numbers: {exc}") from exc
    return str(value) if whole == expression else _as_decimal(value)


def _as_fraction(match: re.Match[str]) -> str:
    """A decimal as a fraction of whole numbers."""
    digits = f"{match[1] or 0}{match[2]}".replace(",", "")
    return f"({int(digits)}/{10 ** len(match[2])})"


def _as_decimal(value: Fraction) -> str:
    """A value as a decimal where it is one, else as a fraction."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest > 1:
        return str(value)
    with localcontext(prec=4 * len(str(value))):
        return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
