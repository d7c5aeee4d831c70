"""The last resort: `math-verify` on what the toolkit's own grammar does not know (sums, integrals, limits, vectors).

Runs in the worker only, on expressions that latex2sympy parsed; its alarms are off, the worker has its own limits.
Guards against its measured faults: a parse that lost a number or a letter of the source is refused, sequences with
dots are refused, and equality must hold in both directions. latex2sympy is a grammar: it runs no text as code.
"""

from __future__ import annotations

import re
from typing import Any

from ttc.answers.tokens import Unparsed
from ttc.verifiers.maths.comparing import Ternary

_ATOM = re.compile(r"\d+(?:\.\d+)?|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_DOTS = re.compile(r"\.\.|\\(?:[lcvd]?dots|dotsc|dotsb)")
_UNITS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{")


def math_verify_equal(gold: str, answer: str) -> Ternary:
    """Whether `math-verify` finds the two plain answers equal in both directions; raises Unparsed when it cannot."""
    from math_verify import verify

    left, right = _parse(gold), _parse(answer)
    if left == right:
        return True
    options = {"timeout_seconds": None, "numeric_precision": 50, "raise_on_error": True}
    try:
        return bool(verify([left], [right], **options) and verify([right], [left], **options))
    except Exception as exc:
        # sympy fails in many ways on odd expressions; each means that there is no verdict.
        raise Unparsed(f"math-verify: {type(exc).__name__}") from exc


def _parse(text: str) -> Any:
    from latex2sympy2_extended import latex2sympy

    if _DOTS.search(text) or _UNITS.search(text):
        raise Unparsed("dots or words")
    try:
        parsed = latex2sympy(text, is_real=True, convert_degrees=False, normalization_config=None)
    except Exception as exc:
        # The generated parser fails in many ways on text outside its grammar; each means the same here.
        raise Unparsed(f"math-verify: {type(exc).__name__}") from exc
    if parsed is None:
        raise Unparsed("math-verify: nothing parsed")
    lost = set(_ATOM.findall(text)) - set(_ATOM.findall(str(parsed)))
    if lost:
        raise Unparsed(f"math-verify lost {sorted(lost)[0]!r}")
    return parsed
