"""Numbers as they are written: thousands separators, exponents, repeating decimals, each an exact fraction."""

from __future__ import annotations

import re
from fractions import Fraction

from ttc.answers.nodes import Node, num
from ttc.answers.tokens import TooLarge

__all__ = ["number"]

MAX_DIGITS = 1000


def number(text: str) -> Node:
    """A number token as an exact fraction. Raises TooLarge beyond MAX_DIGITS digits."""
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of more than {MAX_DIGITS} digits")
    text = text.replace(",", "").replace(" ", "")
    if repeat := re.fullmatch(r"(\d*)\.(\d*)\\[a-z]+\{(\d+)\}", text):
        whole, fixed, cycle = repeat.groups()
        value = Fraction(int(cycle), 10 ** len(fixed) * (10 ** len(cycle) - 1))
        return num(value + Fraction(int((whole + fixed) or "0"), 10 ** len(fixed)))
    mantissa, _, exponent = text.lower().partition("e")
    whole, point, fraction = mantissa.partition(".")
    if exponent and abs(int(exponent)) > MAX_DIGITS:
        raise TooLarge("an exponent too large")
    value = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction)) * Fraction(10) ** int(exponent or 0)
    digits = len((whole + fraction).lstrip("0")) if point and fraction else None
    return num(value, digits)
