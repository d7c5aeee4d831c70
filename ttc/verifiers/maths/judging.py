"""Judge two mathematical answers with numbers and, where the grammar ends, with `math-verify`; runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttc.answers.grammar import parse
from ttc.answers.nodes import Term
from ttc.answers.numeric import TooCostly
from ttc.answers.plain import plain
from ttc.answers.shapes import shape
from ttc.answers.tokens import Unparsed
from ttc.verifiers.maths.comparing import Comparison, Policy
from ttc.verifiers.maths.deciding import Digits
from ttc.verifiers.maths.symbolic import math_verify_equal


def judge(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compare request["gold"] with request["answer"] under request["policy"].

    Returns {"equal": true | false | null, "reason": how it was decided, or why not}; a computation that would be too
    costly is {"status": "limit"}.
    """
    gold, answer = plain(request["gold"]), plain(request["answer"])
    try:
        left, right = read(gold), read(answer)
        if left is not None and right is not None:
            equal = Comparison(Policy(**request["policy"]), Digits()).same(left, right)
            return {"equal": equal, "reason": "numeric" if equal is not None else "undecided"}
        return {"equal": math_verify_equal(gold, answer), "reason": "math_verify"}
    except TooCostly as exc:
        return {"status": "limit", "equal": None, "reason": str(exc)}
    except Unparsed as exc:
        return {"equal": None, "reason": str(exc)}


def read(text: str) -> Term | None:
    """The shape of a plain answer, or None when it is not in the grammar."""
    try:
        return shape(parse(text))
    except (Unparsed, RecursionError):
        return None
