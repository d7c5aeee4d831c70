"""Compare what a script wrote with what it should write, as contest sites do.

White space at the ends of lines and empty lines at the end do not count. Lines that differ are equal when they have the
same number of words and each pair of words is the same text or the same decimal number (`1.0` is `1`). Exact numbers:
a tolerance belongs to a checker of the problem's own. Left out: problems with several right outputs.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

MAX_DIGITS = 400


def same_output(got: str, expected: str) -> bool:
    """Whether two outputs are equal."""
    left, right = _lines(got), _lines(expected)
    return len(left) == len(right) and all(_same_line(a, b) for a, b in zip(left, right, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(left: str, right: str) -> bool:
    if left == right:
        return True
    a, b = left.split(), right.split()
    return len(a) == len(b) and all(x == y or _same_number(x, y) for x, y in zip(a, b, strict=True))


def _same_number(left: str, right: str) -> bool:
    if max(len(left), len(right)) > MAX_DIGITS:
        return False
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False
