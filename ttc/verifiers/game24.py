r"""Game of 24: make 24 from four numbers with + - * / and parentheses, each number exactly once.

A target is the list of numbers, `[1, 1, 4, 6]`, or {"numbers": [1, 1, 4, 6]}. Reading and arithmetic are those of
`countdown`: one expression, exact fractions, nothing evaluated as code. Left out: powers, roots, concatenated digits.

Args:
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

from ttc.verifiers.shared.contract import Canary
from ttc.verifiers.shared.numbers import NumbersVerifier

VALUE = 24
_CANARIES = (
    Canary([3, 3, 8, 8], r"\boxed{\frac{8}{3 - \frac{8}{3}}}", "correct"),
    Canary([3, 3, 8, 8], "Answer: 8 ÷ (3 − 8/3) = 24", "correct"),
    Canary([3, 3, 8, 8], "<answer>3 * 8</answer>", "incorrect"),
    Canary([3, 3, 8, 8], "I cannot do it.", "no_answer"),
)


def game24(*, allow_truncated: bool = False) -> NumbersVerifier:
    """Return the verifier of the Game of 24."""
    return NumbersVerifier("game24", use_all=True, fixed=VALUE, allow_truncated=allow_truncated, canaries=_CANARIES)
