"""Judge two mathematical answers with numbers and, where the grammar ends, with `math-verify`; runs in the worker.

Numbers: two expressions are equal when they agree at every sample point where both are defined on the real line.
Agreement is judged by how the difference behaves as the precision grows: a true zero shrinks with it, a tiny difference
(1/2^99 against 1/2^98, e^-300 against e^-400) does not. Expressions with variables need at least three such points. The
points lie in the variables' domain: small and large numbers of both signs and, where a function breaks (absolute value,
minimum, floor, root, logarithm), whole numbers, several sizes, and beside every number that the two sides name. What is
proved does not come here (`ttc.answers.normal`). A difference below 10^-100 in relative terms would pass for zero, so
sums with a term that small or that large are not decided.

`math-verify` is the last resort, where the gold is not in the grammar (sums, integrals, limits, vectors); the answer
may have no command that the gold lacks, nor be much longer. Its alarms are off, the worker has its own limits. Guards
against its measured faults: a parse that lost a number or a letter of the source is refused, sequences with dots are
refused, and equality must hold in both directions. latex2sympy is a grammar: it runs no text as code.
"""

from __future__ import annotations

import functools
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from mpmath import mp  # type: ignore[import-untyped]

from ttc.answers.grammar import Unparsed, parse
from ttc.answers.nodes import Term, TooCostly, Undefined, approximate, exact
from ttc.answers.plain import plain
from ttc.answers.shapes import shape
from ttc.verifiers.maths.comparing import Comparison, Decide, EqualityPolicy, Ternary


def judge(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compare request["gold"] with request["answer"] under request["policy"].

    Returns {"equal": true | false | null, "reason": how it was decided, or why not}; a computation that would be too
    costly is {"status": "limit"}.
    """
    gold, answer = plain(request["gold"]), plain(request["answer"])
    try:
        left, right = read(gold), read(answer)
        if left is not None and right is not None:
            policy = EqualityPolicy(**request["policy"])
            equal = Comparison(policy, Digits(dict(policy.domain))).same(left, right)
            return {"equal": equal, "reason": "sampled" if equal is not None else "undecided"}
        if left is not None or not _comparable(gold, answer):
            return {"equal": None, "reason": "not in the grammar of answers"}
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


_COMMAND = re.compile(r"\\[A-Za-z]+")
_LONG_NUMBER = re.compile(r"\d{4}|!")
_POWER = re.compile(r"[\d)]\s*\^")


def _comparable(gold: str, answer: str) -> bool:
    """Whether an answer may go to math-verify: no work in it that the gold does not have."""
    commands = set(_COMMAND.findall(answer)) <= set(_COMMAND.findall(gold)) | {r"\frac", r"\cdot", r"\times", r"\sqrt"}
    costly = any(kind.search(answer) and not kind.search(gold) for kind in (_LONG_NUMBER, _POWER))
    return commands and not costly and len(answer) <= 2 * len(gold) + 40


_ATOM = re.compile(r"\d+(?:\.\d+)?|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_DOTS = re.compile(r"\.\.|\\(?:[lcvd]?dots|dotsc|dotsb)")
_WORDS = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}")
"""What would be a product of letters: 3 apples and 20 pears are not 20 apples and 3 pears."""
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

    if _DOTS.search(text) or _UNITS.search(text) or _WORDS.search(text):
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


_POINTS = 8
_NEEDED = 3
_MOST_POINTS = 64
_MOST_LITERALS = 6
MAX_NODES = 300
"""Nodes of both sides beyond which nothing is sampled."""
_BREAKS = frozenset(
    {"abs", "min", "max", "floor", "ceil", "sqrt", "root", "ln", "log", "factorial", "binom", "choose", "gcd", "lcm"}
)
_WIDE = (Fraction(10), Fraction(100), Fraction(10**4), Fraction(10**7), Fraction(10**12))
_WHOLE = (0, 1, 2, 3, 4, 6, 9, 10, 25, 99, 1000, 10**6, -1, -2, -5, -10, -1000)
_EXTREME = 10**60
_LOW, _HIGH = 60, 130
_SHRINK = Fraction(1, 10**40)


class Digits(Decide):
    """Decides with 60 and 130 digits, over the domains of the variables."""

    def __init__(self, domain: Mapping[str, str] | None = None) -> None:
        self._domain = domain or {}

    def _points(self, left: Term, right: Term) -> list[dict[str, Any]]:
        names = sorted(left.symbols() | right.symbols())
        if sum(1 for side in (left, right) for _ in side.walk()) > MAX_NODES:
            raise TooCostly(f"more than {MAX_NODES} nodes")
        if _unequal_sizes(left) or _unequal_sizes(right):
            raise TooCostly("a sum with a term too small or too large")
        made = (_within(point, self._domain) for point in (*_points(names), *_far_points(names, left, right)))
        # Agreement at one point counts once, however often it is drawn.
        unlike = {tuple(point.items()): point for point in made if point is not None}
        return [*unlike.values()][:_MOST_POINTS]

    def equal(self, left: Term, right: Term, slack: Fraction) -> Ternary:
        """Whether two expressions have the same value, to within `slack`."""
        names = sorted(left.symbols() | right.symbols())
        decisions = []
        for point in self._points(left, right):
            agrees = _agree(left, right, point, slack)
            # One point apart is a proof of difference; agreement at one point may be chance, so expressions need more.
            if agrees is False:
                return False
            if agrees:
                decisions.append(True)
        return True if len(decisions) >= (_NEEDED if names else 1) else None

    def proportional(self, left: Term, right: Term, positive: bool) -> Ternary:
        """Whether left = c * right for one constant c (of positive sign): left(p) right(q) = left(q) right(p)."""
        points = [point for point in self._points(left, right) if _defined(left, right, point)]
        # What is zero everywhere, as x = x says, is a multiple of everything, and says nothing.
        others = [point for point in points if not (_is_zero(left, point) or _is_zero(right, point))]
        if len(others) < _NEEDED + 1:
            return False if len(points) > _NEEDED else None
        base = others[0]
        if not all(_vanishes(functools.partial(_cross, left, right, base, other)) for other in points[1:]):
            return False
        signs = {_sign(left, base) * _sign(right, base)}
        if 0 in signs:
            return None
        return signs == {1} if positive else True

    def constant_apart(self, left: Term, right: Term) -> Ternary:
        """Whether left = right + c for one constant c: left(p) - right(p) = left(q) - right(q)."""
        points = [point for point in self._points(left, right) if _defined(left, right, point)]
        if len(points) < _NEEDED + 1:
            return None
        return all(_vanishes(functools.partial(_shift, left, right, points[0], other)) for other in points[1:])


def _points(names: list[str]) -> Iterator[dict[str, Any]]:
    """Sample points: positive ones first, then mixed signs; the same in every process."""
    if not names:
        yield {}
        return
    for turn in range(_POINTS):
        rng = random.Random(zlib.crc32(f"{turn}/{','.join(names)}".encode()))
        signs = (1,) if turn < _POINTS // 2 else (-1, 1)
        yield {name: Fraction(rng.choice(signs) * rng.randrange(200_003, 2_500_007), 1_000_003) for name in names}


def _far_points(names: list[str], left: Term, right: Term) -> Iterator[dict[str, Any]]:
    """Larger numbers of both signs; where a function breaks, whole numbers and the neighbours of every literal."""
    if not names:
        return
    rng = random.Random(zlib.crc32(",".join(names).encode()))
    breaks = left.functions() | right.functions()
    values = [
        sign * size * Fraction(rng.randrange(1_000_003, 9_000_001), 1_000_003)
        for size in _WIDE[1:4]
        for sign in (1, -1)
    ]
    if breaks & _BREAKS or left.has("pow") or right.has("pow"):
        near = [
            sign * literal * factor + step
            for literal in sorted(_literals(left) | _literals(right))[-_MOST_LITERALS:]
            for factor, step in ((1, Fraction(1, 3)), (1, Fraction(-1, 3)), (1, 1), (3, Fraction(1, 7)), (literal, 1))
            for sign in (1, -1)
        ]
        values = [*map(Fraction, _WHOLE), *near[:30], *values] if breaks & _BREAKS else values
    for value in values:
        yield {name: value if len(names) == 1 or rng.random() < 1 / 2 else rng.choice(values) for name in names}


def _within(point: dict[str, Any], domain: Mapping[str, str]) -> dict[str, Any] | None:
    """The point moved into the domains of its variables; None where it cannot be."""
    moved = dict(point)
    for name, kind in domain.items():
        if name in moved and "integer" in kind:
            moved[name] = Fraction(round(moved[name]) or 1)
        if name in moved and "positive" in kind and moved[name] <= 0:
            return None
    return moved


def _literals(node: Term) -> set[Fraction]:
    return {abs(part.args[0]) for part in node.walk() if part.op == "num" and part.args[0]}


def _unequal_sizes(node: Term) -> bool:
    """Whether a sum has a constant term of a size at which the digits of another are lost."""
    terms = (term for part in node.walk() if part.op == "add" for term in part.args)
    return any(_extreme(term) for term in terms if not term.symbols())


def _extreme(node: Term) -> bool:
    value = exact(node)
    if value is not None:
        return bool(value) and not Fraction(1, _EXTREME) < abs(value) < _EXTREME
    return (node.op == "pow" and _large(exact(node.args[1]))) or any(map(_extreme, node.children()))


def _large(exponent: Fraction | None) -> bool:
    return exponent is not None and abs(exponent) > 60


def _value(node: Term, point: dict[str, Any]) -> Any:
    exact_point = {name: mp.mpf(value.numerator) / value.denominator for name, value in point.items()}
    return approximate(node, exact_point, mp)


def _defined(left: Term, right: Term, point: dict[str, Any]) -> bool:
    try:
        with mp.workdps(20):
            _value(left, point)
            _value(right, point)
    except (ArithmeticError, ValueError):
        return False
    return True


def _agree(left: Term, right: Term, point: dict[str, Any], slack: Fraction) -> Ternary:
    try:
        if _vanishes(lambda: _value(left, point) - _value(right, point)):
            return True
        if not slack:
            return False
        with mp.workdps(_HIGH):
            return bool(abs(_value(left, point) - _value(right, point)) <= mp.mpf(slack.numerator) / slack.denominator)
    except Undefined:
        # Where one side has no value nothing is learnt; a constant without a value equals nothing.
        return None if point else False
    except TooCostly:
        if point:
            return None
        raise
    except (ArithmeticError, ValueError):
        return None


def _vanishes(difference: Callable[[], Any]) -> bool:
    def to(digits: int) -> Any:
        with mp.workdps(digits):
            return difference()

    # A true zero is rounding noise, so 70 more digits make it smaller by far more than 40; a small difference stays.
    rough, fine = to(_LOW), to(_HIGH)
    if fine == 0:
        return True
    if rough == 0:
        rough, fine = fine, to(2 * _HIGH)
    return bool(abs(fine) <= abs(rough) * mp.mpf(_SHRINK.numerator) / _SHRINK.denominator)


def _cross(left: Term, right: Term, base: dict[str, Any], other: dict[str, Any]) -> Any:
    return _value(left, base) * _value(right, other) - _value(left, other) * _value(right, base)


def _is_zero(node: Term, point: dict[str, Any]) -> bool:
    return _vanishes(functools.partial(_value, node, point))


def _shift(left: Term, right: Term, base: dict[str, Any], other: dict[str, Any]) -> Any:
    return _value(left, base) - _value(right, base) - _value(left, other) + _value(right, other)


def _sign(node: Term, point: dict[str, Any]) -> int:
    value = _value(node, point)
    return 0 if value == 0 else 1 if value > 0 else -1
