r"""Countdown: reach a number from given ones with + - * / and parentheses, each number once.

A target is {"numbers": [19, 36, 55, 7], "target": 65}, perhaps with a "solution", which is then checked. The final
answer is one expression, alone or in an equation (`55 + 36 - 7 - 19 = 65`), in plain, Unicode or LaTeX spelling; it is
parsed, its value is an exact fraction, nothing is evaluated as code. Cost: 0.1 ms a verdict. Left out: powers,
concatenated digits, and answers given as a chain of steps.

Args:
    use_all: Whether every number must be used; else each at most once.
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

from ttc.verifiers.shared.contract import Canary
from ttc.verifiers.shared.numbers import NumbersVerifier

_GAME = {"numbers": [19, 36, 55, 7], "target": 65}
_CANARIES = (
    Canary(_GAME, "<answer>55 + 36 - 19 - 7</answer>", "correct"),
    Canary(_GAME, r"\boxed{55 + 36 - (19 + 7) = 65}", "correct"),
    Canary(_GAME, "<answer>55 + 36 - 19 - 7 * 1</answer>", "incorrect"),
    Canary(_GAME, "<answer>65</answer>", "incorrect"),
    Canary(_GAME, "<answer>__import__('os').getcwd()</answer>", "unparseable"),
)


def countdown(*, use_all: bool = True, allow_truncated: bool = False) -> NumbersVerifier:
    """Return the verifier of Countdown."""
    return NumbersVerifier(
        "countdown", use_all=use_all, fixed=None, allow_truncated=allow_truncated, canaries=_CANARIES
    )
