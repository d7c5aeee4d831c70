r"""Shapes of mathematical answers: what kind of object a parsed answer is, with the spelling removed.

    scalar    node                 a number or an expression
    quantity  node, unit           a scalar with a unit
    named     name, shape          x = 5 is the shape of 5 under the name x
    set       shapes...            also a list without brackets, an or of solutions, a plus-minus; in braces each once
    tuple     shapes...            (a, b), also an open interval, which is written alike; <a, b>
    brackets  shapes...            [a, b, c], and a list of lists
    interval  low, high, closed on the left, closed on the right (never open on both sides: that is a tuple)
    time      hour, minute, half of the day (am, pm or empty)
    duration  node, unit           a time in several units
    designation  spelling          a date, a telephone number or a code, which is never computed
    without    shape, shape        a set without the members of another, where it is no union of intervals
    cases      case...             a function by cases, each a value and its condition: |x| as x if x >= 0, -x if x < 0
    residue    shape, shape        3 mod 7; a third node is congruent to it, where that is more than a name
    text       spelling            words that mean nothing else; `text_key` says which are the same
    union ratio matrix rel base empty   as in `nodes`

Inequalities in one variable become intervals, and intervals of a union that meet are one; sets, tuples and intervals
stay distinct. Cost: linear in the answer. Left out: which shapes are one answer, which `ttc.answers.keys` says for a
vote and `ttc.verifiers.maths.comparing` beside a target.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ttc.answers.grammar import HALVES_AT_TWELVE, INFINITY, TooLarge, Unparsed, parse
from ttc.answers.nodes import CONSTANTS, Term, approximate, exact, known_unit, many, num, unnamed
from ttc.answers.words import text_key

_NUMBERS = {
    "real numbers": "R", "reals": "R", "integers": "Z", "rational numbers": "Q", "natural numbers": "N",
    "complex numbers": "C",
}  # fmt: skip
_ALL_NUMBERS = re.compile(rf"(?:the )?(?:set of )?(?:all |the )?(?:the )?(?P<kind>{'|'.join(_NUMBERS)})")
"""Words for a set of numbers: all integers, the set of real numbers."""
_NEGATIVE_INFINITY = frozenset({"negative infinity", "minus infinity"})
_SUBJECT = re.compile(r"\A(?:(?:(?:the )?(?:limit|series|integral|sequence)|it) )?(?:is )?(?=[a-z])")
"""What a verdict in words is about: the series converges, it is undefined."""
_SAME_WORDS = {
    "dne": "does not exist", "does not exist (dne)": "does not exist", "diverges to infinity": "infinity",
    "not defined": "undefined", "convergent": "converges", "divergent": "diverges",
}  # fmt: skip
"""Words that say the same."""
_ENDLESS = re.compile(
    r"(?:(?:the equation|it|this|the system|there) (?:has|is|are|have) )?"
    r"(?:infinitely many|infinite|an infinite number(?: of)?)(?: (?:solutions|values|numbers|roots|pairs))?"
)
"""Words for infinity where something is counted: infinitely many, there are infinitely many solutions."""
_NOTHING = re.compile(
    r"none|(?:the )?(?:empty|null) set|(?:the (?:system|equation)s? (?:is|are) )?inconsistent"
    r"|(?:(?:the equation|it|this|the system|there) (?:has|is|are|have|exists?) )?"
    r"no (?:(?:such|real|integer|integral|valid|possible|whole|natural|rational) )*"
    r"(?:solutions?|roots?|values?|numbers?|integers?|answers?|pairs?|triples?|zeros|x|n)"
    r"(?: (?:exists?|possible|for x))?"
)
"""Words for the empty set: none, the empty set, no solution, there are no real roots, the equation has no solutions."""
_FUNCTIONS = frozenset("fghFGHP")
"""Letters before a number in brackets that are functions of it: f(3) = 5."""
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
"""What a sign of order is from the other side."""
_INFINITE = Term("inf")
ALL = Term("tuple", (Term("scalar", (Term("neg", (_INFINITE,)),)), Term("scalar", (_INFINITE,))))
"""The real numbers, as an interval."""
TINY = 1e-12
"""Relative size of what is only a rounding error."""


def shape(node: Term) -> Term:
    """Return the shape of a parsed answer."""
    rule = _SHAPE_RULES.get(node.op)
    return rule(node) if rule else _scalar(node)


@functools.lru_cache(maxsize=4096)
def shape_of(text: str) -> Term | None:
    """The shape of a plain answer, or None where it is not in the grammar. Raises TooLarge beyond a cap."""
    try:
        return shape(parse(text))
    except TooLarge:
        raise
    except Unparsed:
        # Not in the grammar; a size cap, which is an Unparsed too, has been passed on.
        return None


def _words(node: Term) -> Term:
    words = text_key(node.args[0])
    if _NOTHING.fullmatch(words):
        return Term("empty")
    verdict = _SUBJECT.sub("", words)
    same = _SAME_WORDS.get(verdict, verdict)
    if same in INFINITY or _ENDLESS.fullmatch(words):
        return _scalar(_INFINITE)
    if same != words:
        return Term("text", (same,))
    if words in HALVES_AT_TWELVE:
        return Term("time", (12, 0, HALVES_AT_TWELVE[words]))
    if words in _NEGATIVE_INFINITY:
        return _scalar(Term("neg", (_INFINITE,)))
    numbers = _ALL_NUMBERS.fullmatch(words)
    return _scalar(Term("sym", (f"set:{_NUMBERS[numbers['kind']]}",))) if numbers else node


def _scalar(node: Term) -> Term:
    if node.op == "mul" and len(node.args) == 2 and _is_point(*node.args):
        return Term("named", (node.args[0].args[0], shape(node.args[1])))
    if node == Term("sym", ("set:R",)):
        return ALL
    if node.op == "add" and [arg.op for arg in node.args] == ["sym", "neg"] and node.args[0].args == ("set:R",):
        return _without(Term("without", (node.args[0], node.args[1].args[0])))
    node, unit = _lift_unit(node)
    if not unit and node.has("quantity"):
        node = in_letters(node)
    if _num_signs(node) == 1 and node.has("seq"):
        return Term("set", (shape(_with_sign(node, "neg")), shape(_with_sign(node, ""))))
    if _num_signs(node) == 1:
        return Term("set", (_with_unit(_with_sign(node, "neg"), unit), _with_unit(_with_sign(node, ""), unit)))
    return _with_unit(node, unit)


def _is_point(name: Term, place: Term) -> bool:
    """A capital letter before coordinates: A(1, 2)."""
    return name.op == "sym" and str(name.args[0])[0].isupper() and place.op == "seq" and place.args[:2] == ("(", ")")


def _num_signs(node: Term) -> int:
    return sum(item.op == "pm" for item in node.walk())


def _with_sign(node: Term, sign: str) -> Term:
    """The expression with one of the signs of its plus-minus, which may stand in a numerator."""
    if node.op == "pm":
        first, second = node.args
        second = Term("neg", (second,)) if sign else second
        return second if exact(first) == 0 else Term("add", (first, second))
    return node.with_parts(lambda part: _with_sign(part, sign))


def _with_unit(node: Term, unit: str) -> Term:
    return Term("quantity", (node, unit)) if unit else Term("scalar", (node,))


def _lift_unit(node: Term) -> tuple[Term, str]:
    """Move the unit of the last factor to the outside: -5 %, 1/2 %, 2 * 3 cm."""
    if node.op == "quantity":
        return node.args[0], node.args[1]
    if node.op == "add" and not node.symbols() and not any(child.has("quantity") for child in node.args[:-1]):
        inner, name = _lift_unit(node.args[-1])  # of the whole sum: 4 \sqrt{3} - 2 \pi cm^2
        is_length = name != "%" and known_unit(name.partition("^")[0]) is not None
        return (
            (Term("add", (*node.args[:-1], inner)), name) if is_length and exact(node.args[0]) is None else (node, "")
        )
    if node.op in ("neg", "mul", "div", "pm") and not any(child.has("quantity") for child in node.args[:-1]):
        inner, unit = _lift_unit(node.args[-1])
        return Term(node.op, (*node.args[:-1], inner)), unit
    return node, ""


_LETTER_UNIT = re.compile(r"(?:[A-Za-z]{1,3}(?:\^[23])?(?: (?!\Z)|\Z))+")
"""Words of up to three letters, each perhaps with a power, as products of variables are too: `m`, `mg`, `m^2 k`."""


def in_letters(node: Term) -> Term:
    """A term whose units are all of few letters, with these as variables: in (3 m)/2 - 1 the m is none of metres."""
    units = [item.args[1] for item in node.walk() if item.op == "quantity"]
    return _with_letters(node) if units and all(map(_LETTER_UNIT.fullmatch, units)) else node


def _with_letters(node: Term) -> Term:
    if node.op != "quantity":
        return node.with_parts(_with_letters)
    factors = [_with_letters(node.args[0])]
    for word in node.args[1].split():
        letters, _, power = word.partition("^")
        symbols = [Term("sym", (letter,)) for letter in letters]
        factors += [*symbols[:-1], Term("pow", (symbols[-1], num(int(power)))) if power else symbols[-1]]
    return Term("mul", tuple(factors))


_PARAMETERS = frozenset({"t", "s", "lambda", "mu"})
"""Letters that run along a line."""


def _sum(node: Term) -> Term:
    """A sum of vectors, entry by entry: (1, 2) + t(3, 4); any other sum as it is."""
    if not all(item.has("seq", "matrix") for item in node.args):
        return _scalar(node)
    parts = [shape(item) for item in node.args]
    rows = [
        [entry.args[0] for entry in part.args if isinstance(entry, Term) and entry.op == "scalar"] for part in parts
    ]
    is_sum = all(part.op == "tuple" and len(row) == len(part.args) for part, row in zip(parts, rows, strict=True))
    if not is_sum or len({*map(len, rows)}) != 1:
        return _scalar(node)
    return Term("tuple", tuple(_worked_out(Term("add", items)) for items in zip(*rows, strict=True)))


def _worked_out(node: Term) -> Term:
    """The shape of a number, as the rational that it is."""
    value = exact(node)
    return shape(node if value is None else num(value))


def _scaled(node: Term) -> Term:
    """A number times a matrix or a vector, entry by entry: 1/5 (3, 4) is (3/5, 4/5); any other product as it is."""
    top, below = node.args if node.op == "div" else (node, None)
    factors = list(top.args) if top.op in ("mul", "neg") else [top]
    blocks = [item for item in factors if item.op == "matrix" or (item.op == "seq" and item.args[:2] == ("(", ")"))]
    rest = [item for item in factors if item not in blocks[:1]]
    beside = [*rest, below or num(1)]
    if len(blocks) != 1 or any(item.has("matrix", "seq", "pm") or item.symbols() - _PARAMETERS for item in beside):
        return _scalar(node)
    sign = [num(-1)] if top.op == "neg" else []

    def entry(item: Term) -> Term:
        product = many("mul", [*sign, *rest, item])
        return _worked_out(Term("div", (product, below)) if below else product)

    (block,) = blocks
    if block.op == "matrix":
        return Term("matrix", tuple(tuple(map(entry, row)) for row in block.args))
    return Term("tuple", tuple(map(entry, block.args[2:])))


# -- brackets and lists ------------------------------------------------------------------------------------------------
def _sequence(node: Term) -> Term:
    opening, closing, *items = node.args
    shapes = tuple(shape(item) for item in items)
    if opening == "{":
        return Term("set", tuple(dict.fromkeys(_flat(items, shapes))))
    if (opening, closing) == ("(", ")"):
        return Term("tuple", shapes)
    if len(shapes) == 2 and not (opening + closing == "[]" and entries(shapes[0])):
        return Term("interval", (*shapes, opening == "[", closing == "]"))
    return Term("brackets", shapes)


_TRANSPOSE = Term("sym", ("T",))
"""The exponent that transposes a matrix."""


def _transpose(node: Term) -> Term | None:
    """The transpose of a matrix or of a row: (1, 2)^T; None for any other power."""
    base, exponent = node.args
    if exponent != _TRANSPOSE or base.op not in ("seq", "matrix"):
        return None
    inner = shape(base)
    rows = inner.args if inner.op == "matrix" else matrix_rows(inner) or (entries(inner),)
    return Term("matrix", tuple(zip(*rows, strict=True))) if len({*map(len, rows)}) == 1 else None


def entries(node: Term) -> tuple[Term, ...]:
    """The entries of what is written like a vector: (1, 2), [1, 2], <1, 2, 3>; nothing for any other shape."""
    if node.op == "interval":
        return node.args[:2] if node.args[2] and node.args[3] else ()
    return node.args if node.op in ("tuple", "brackets") else ()


def matrix_rows(node: Term) -> tuple[tuple[Term, ...], ...]:
    """The rows of a matrix that is written as a list of lists; nothing for any other shape."""
    rows = tuple(map(entries, entries(node)))
    return rows if rows and rows[0] and len({*map(len, rows)}) == 1 else ()


def _flat(nodes: Sequence[Term], shapes: Sequence[Term]) -> tuple[Term, ...]:
    """The members of a set: a plus-minus inside it contributes both, a set in braces is one member."""
    members = list[Term]()
    for node, item in zip(nodes, shapes, strict=True):
        members += item.args if item.op == "set" and node.op != "seq" else [item]
    return tuple(members)


def _list(node: Term) -> Term:
    shapes = tuple(shape(item) for item in node.args)
    if len(shapes) > 1 and any(item.op == "rel" for item in node.args) and (bounded := _conditions(shapes)):
        return bounded
    names = {item.args[0] for item in shapes if item.op == "named"}
    if len(names) == 1:
        bare = tuple(map(unnamed, shapes))
        return Term("named", (names.pop(), Term("set", _flat(node.args, bare))))
    return Term("set", _flat(node.args, shapes))


# -- conditions on one variable, and their unions, as intervals --------------------------------------------------------
def _conditions(shapes: tuple[Term, ...]) -> Term | None:
    """Conditions on one variable with commas between: x in R, x >= 1, x < 3, and x != 1, 2; None for all else."""
    names = {item.args[0] for item in shapes if item.op == "named"}
    if len(names) != 1 or shapes[0].op != "named":
        return None
    if (all_points := _all_points_left_out(shapes)) is not None:
        return Term("named", (names.pop(), _reals_without(all_points)))
    bodies = list(map(unnamed, shapes))
    bodies = [body for body in bodies if body != ALL] or bodies[:1]
    points = [point for body in bodies for point in _points_left_out(body)]
    rest = [body for body in bodies if not _points_left_out(body)]
    if points and len(rest) == 1 and (interval := _without_points(rest[0], points)):
        return Term("named", (names.pop(), interval))
    if len(bodies) == 2 and all(item.op == "named" for item in shapes) and (rays := _two_rays(*bodies)):
        return Term("named", (names.pop(), rays))
    return Term("named", (names.pop(), bodies[0])) if len(bodies) == 1 < len(shapes) else None


def _two_rays(first: Term, second: Term) -> Term | None:
    """What two bounds with a comma between mean: the interval x > 1, x < 3, or the union x > 3, x < 1; else None."""
    between = _intersection(first, second) or _intersection(second, first)
    low, high = map(_size, between.args[:2]) if between else (None, None)
    if low is None or high is None:
        return None
    return Term("union", (first, second)) if low > high else between


def _all_points_left_out(shapes: tuple[Term, ...]) -> list[Term] | None:
    """The points of x != 1, x != 2 and of x != 1, 2; None where something else is said of x."""
    all_points = list[Term]()
    for item in shapes:
        points = (item,) if item.op == "scalar" else _points_left_out(item.args[1]) if item.op == "named" else ()
        if not points and item.args[-1] != ALL:
            return None
        all_points += points
    return all_points or None


def _is_infinite(end: Term) -> bool:
    return end.op == "scalar" and end.args[0].has("inf")


def _size(end: Term) -> float | None:
    """The value of an end of an interval, for its order alone; None where it has none."""
    from mpmath import fp  # type: ignore[import-untyped]

    try:
        value = exact(end.args[0])
        return float(value if value is not None else approximate(end.args[0], {}, fp))
    except (ArithmeticError, ValueError, TypeError):
        return None


def _reals_without(points: Sequence[Term]) -> Term:
    """The reals without some points, as intervals."""
    sizes = [(_size(point), point) for point in dict.fromkeys(points)]
    if any(size is None for size, _ in sizes):
        return Term("without", (ALL, Term("set", tuple(points))))
    ends = [ALL.args[0], *(point for _, point in sorted(sizes, key=lambda pair: pair[0] or 0.0)), ALL.args[1]]
    return Term("union", tuple(Term("tuple", pair) for pair in pairwise(ends)))


def _without_points(body: Term, points: Sequence[Term]) -> Term | None:
    """An interval without some points inside it or at its ends; None for any other body."""
    whole = _ends(body) if body.op in ("interval", "tuple") else None
    sizes = sorted((size, point) for point in dict.fromkeys(points) if (size := _size(point)) is not None)
    if whole is None or len(sizes) < len({*points}) or any(not whole.low <= size <= whole.high for size, _ in sizes):
        return None
    low, high = whole.node.args[:2]
    left, right, pieces = whole.left, whole.right, list[Term]()
    for size, point in sizes:
        if size == whole.low:
            left = False
        elif size == whole.high:
            right = False
        else:
            pieces.append(span(low, point, left, False))
            low, left = point, False
    pieces.append(span(low, high, left, right))
    return pieces[0] if len(pieces) == 1 else Term("union", tuple(pieces))


def span(low: Term, high: Term, left: bool = False, right: bool = False) -> Term:
    """The interval with these ends, of which `left` and `right` say whether they belong to it."""
    return Term("interval", (low, high, left, right)) if left or right else Term("tuple", (low, high))


def _points_left_out(union: Term) -> tuple[Term, ...]:
    """The points that open intervals leave out of the reals; nothing for any other shape."""
    parts = union.args if union.op == "union" else ()
    whole = parts and all(part.op == "tuple" and len(part.args) == 2 for part in parts)
    if not whole or (parts[0].args[0], parts[-1].args[1]) != ALL.args:
        return ()
    linked = all(left.args[1] == right.args[0] for left, right in pairwise(parts))
    return tuple(part.args[1] for part in parts[:-1]) if linked else ()


def _without(node: Term) -> Term:
    """The reals without points or without an interval as a union; any other difference of sets as it is."""
    whole, rest = map(shape, node.args)
    are_points = rest.op == "set" and all(item.op == "scalar" for item in rest.args)
    if whole != ALL:
        return (_without_points(whole, rest.args) if are_points else None) or Term("without", (whole, rest))
    if are_points:
        return _reals_without(rest.args)
    if rest.op not in ("tuple", "interval") or (rest.op == "tuple" and len(rest.args) != 2):
        return Term("without", (whole, rest))
    low, high = rest.args[:2]
    left, right = rest.args[2:] or (False, False)
    return Term("union", (span(ALL.args[0], low, False, not left), span(high, ALL.args[1], not right)))


def _modular(node: Term) -> Term:
    """A residue under the name of what is congruent to it; a letter alone names one."""
    residue, modulus, *unknown = node.args
    body = Term("residue", (shape(residue), shape(modulus)))
    name = _name(unknown[0]) if unknown else ""
    letters = [term for term in unknown if term.symbols()]
    return Term("named", (name, body)) if name else Term("residue", (*body.args, *letters))


def _union(node: Term) -> Term:
    shapes = [shape(item) for item in node.args]
    names = {item.args[0] for item in shapes if item.op == "named"}
    if len(names) > 1:
        return Term("union", tuple(shapes))
    bare = _joined([_as_set(item.args[1]) if item.op == "named" else item for item in shapes])
    return Term("named", (names.pop(), bare)) if len(names) == 1 else bare


def _as_set(body: Term) -> Term:
    """The one value of x = 1 as a set, as it stands in a union."""
    return Term("set", (body,)) if body.op == "scalar" else body


MAX_JOINED = 64
"""Parts of a union that are looked at for common points."""


def _joined(parts: list[Term]) -> Term:
    """A union with intervals that meet or overlap as one: [2, 3) and [3, 4] are [2, 4]."""
    union = Term("union", tuple(parts))
    pieces = [piece for part in parts for piece in (part.args if part.op == "set" else (part,))]
    ends = [_ends(piece) for piece in pieces[:MAX_JOINED]]
    known = [end for end in ends if end is not None]
    joined = list[_Ends]()
    if len(known) < len(pieces):
        return union
    for part in sorted(known, key=lambda end: (end.low, not end.left)):
        if joined and joined[-1].meets(part):
            joined[-1] = joined[-1].with_part(part)
        else:
            joined.append(part)
    if len(joined) == len(pieces):
        return union
    whole = [end.shape() for end in joined]
    return whole[0] if len(whole) == 1 else Term("union", tuple(whole))


def _extent(end: Term) -> float | None:
    """The value of an end, which may be infinite."""
    if not _is_infinite(end):
        return _size(end)
    return {ALL.args[0]: -math.inf, ALL.args[1]: math.inf}.get(end)


@dataclass(frozen=True, slots=True)
class _Ends:
    """An interval or a point by its ends: their sizes, which order it, and whether each belongs to it."""

    node: Term
    low: float
    high: float
    left: bool
    right: bool

    def meets(self, other: _Ends) -> bool:
        """Whether nothing lies between this and `other`, which begins no earlier."""
        if other.node.args[0] == self.node.args[1]:
            return self.right or other.left
        return other.low < self.high - TINY * max(1.0, abs(self.high))

    def with_part(self, other: _Ends) -> _Ends:
        """Both together."""
        last = max(self, other, key=lambda end: (end.high, end.right))
        right = last.right or (self.node.args[1] == other.node.args[1] and (self.right or other.right))
        node = Term("interval", (self.node.args[0], last.node.args[1]))
        return _Ends(node, self.low, last.high, self.left, right)

    def shape(self) -> Term:
        """The interval, or the set of one point."""
        low, high = self.node.args[:2]
        if low == high:
            return Term("set", (low,))
        return span(low, high, self.left, self.right)


def _ends(part: Term) -> _Ends | None:
    """The ends of an interval, or of a point as a set of one; None for all else."""
    if part.op == "scalar":
        part = Term("interval", (part, part, True, True))
    if part.op not in ("interval", "tuple") or (part.op == "tuple" and len(part.args) != 2):
        return None
    low, high = (_extent(end) for end in part.args[:2])
    if low is None or high is None or low > high:
        return None
    left, right = part.args[2:] or (False, False)
    return _Ends(part, low, high, left, right)


# -- relations: names, equations, inequalities -------------------------------------------------------------------------
def _relation(node: Term) -> Term:
    operators, *operands = node.args
    if "~" in operators:
        return _approximation(operators, operands)
    if operators == ("in",) and (name := _name(operands[0])):
        return Term("named", (name, shape(operands[1])))
    if set(operators) == {"="}:
        return _equation(operands, node)
    if len(operators) > 1 and set(operators) <= {">", ">="}:
        operators, operands = tuple(FLIP[operator] for operator in reversed(operators)), operands[::-1]
    return _interval(operators, operands) or Term("rel", (operators, *operands))


def _approximation(operators: tuple[str, ...], operands: list[Term]) -> Term:
    """Read x = pi ~ 3.14 as pi, and x ~ 3.14, which has nothing more exact, as 3.14."""
    first = operators.index("~")
    if not _near(operands[first], operands[first + 1]):
        return Term("rel", (operators, *operands))
    if first or not _name(operands[0]):
        operators, operands = operators[:first], operands[: first + 1]
        return shape(Term("rel", (operators, *operands)) if operators else operands[0])
    return shape(Term("rel", (("=",) * (len(operands) - 1), *operands)))


def _near(left: Term, right: Term) -> bool:
    """Whether a decimal stands for the value before it, rounded or cut off in its last place."""
    from mpmath import fp

    if left.symbols() or right.symbols():
        return bool(_name(left))
    if right.op == "quantity" and right.args[1] == "%" and left.op != "quantity":
        return _near(Term("mul", (left, num(100))), right.args[0])
    first, second = exact(left), exact(right)
    decimal = right.args[0] if right.op == "neg" else right
    places = _places(decimal)
    if second is None or places is None or (first is not None and first.denominator == 1):
        return first is not None and first == second
    try:
        value = float(first) if first is not None else float(approximate(left, {}, fp))
    except (ArithmeticError, ValueError, TypeError):
        return False
    beyond = (abs(value) - abs(float(second))) * 10.0**places
    return value * second > 0 and -0.5 <= beyond < 1


_MOST_PLACES = 40
"""Decimal places of a literal that are counted at most."""


def _places(node: Term) -> int | None:
    """Decimal places of a literal: at most so many as its value needs."""
    if node.op != "num":
        return None
    places, value = 0, node.args[0]
    while value.denominator != 1 and places < _MOST_PLACES:
        value, places = value * 10, places + 1
    return places


def _equation(operands: list[Term], node: Term) -> Term:
    first, last = operands[0], operands[-1]
    if first.op == "sym" and any(first.symbols() & operand.symbols() for operand in operands[1:]):
        return Term("rel", node.args)  # n = n + 1 gives n no value
    if (name := _name(first)) and _consistent(operands[1:]) and not _is_product(name, last):
        return Term("named", (name, shape(last)))
    if len(operands) == 2 and (name := _name(last)) and not _lone_letter(first) and not _is_product(name, first):
        return Term("named", (name, shape(first)))
    if _label(first) and not any(operand.symbols() for operand in operands[1:]) and _consistent(operands[1:]):
        return Term("named", (_label_name(first), shape(last)))
    if first.op == last.op == "ratio" and (names := _names_of(first)) and len(last.args) == len(names):
        parts = [part for _, part in sorted(zip(names, last.args, strict=True), key=lambda pair: pair[0])]
        return Term("named", (":".join(sorted(names)), shape(Term("ratio", tuple(parts)))))
    constant = not any(operand.symbols() for operand in operands)
    return shape(last) if constant and _consistent(operands) else Term("rel", node.args)


def _names_of(node: Term) -> list[str]:
    """The letters of a ratio, a:b:c, each once; nothing for any other ratio."""
    names = [str(part.args[0]) for part in node.args if part.op == "sym"]
    return names if len(names) == len(node.args) == len(set(names)) else []


def _label(node: Term) -> bool:
    """A quantity of a figure, of capital letters and without a number: |AB|, NO/BO, V_1 : V_2."""
    capitals = node.symbols() and all(name[0].isupper() for name in node.symbols())
    return bool(capitals) and not node.has("num", "pow", "add", "neg")


def _label_name(node: Term) -> str:
    """What a label names: AB, BA and |AB| are one length."""
    inner = node.args[1] if node.op == "fn" and node.args[0] == "abs" else node
    points = inner.op == "mul" and all(factor.op == "sym" for factor in inner.args)
    return "".join(sorted(str(factor.args[0]) for factor in inner.args)) if points else repr(inner)


def _lone_letter(node: Term) -> bool:
    """A letter, perhaps times numbers: x = y gives neither a value."""
    factors = node.args if node.op == "mul" else (node,)
    return [factor.op for factor in factors if exact(factor) is None] == ["sym"]


def _consistent(operands: list[Term]) -> bool:
    """Whether all sides have one value: 5 + 3 = 8 is, 3/8 = 37.5 % is, pi = 3.14 is, 8 = 9 and log_8 2 = 3 are not."""
    sides = [(exact(inner), name) for inner, name in map(_lift_unit, operands)]
    as_values = {value / 100 if name == "%" else value for value, name in sides if value is not None}
    if len({value for value, _ in sides} - {None}) > 1 and len(as_values) > 1:
        return False
    return None not in {value for value, _ in sides} or _near_each_other(operands)


_ROUNDED = 0.05
"""How far, in relative terms, a rounded number may lie from the constant that it stands for."""


def _near_each_other(constants: Sequence[Term]) -> bool:
    """Whether constants, not all of them rational, may be one, rounded perhaps; also where nothing is known of them."""
    if any(node.symbols() or node.op not in _COMPUTED for node in constants):
        return True
    sizes = [size for node in constants if (size := _size(Term("scalar", (node,)))) is not None]
    return not sizes or max(sizes) - min(sizes) <= _ROUNDED * max(map(abs, sizes))


_COMPUTED = frozenset({"num", "sym", "add", "mul", "div", "neg", "pow", "fn"})


def _name(node: Term) -> str:
    """The name that an equation defines: x, x_1, f(x), f(3), (x, y); empty when the node is not a name."""
    match node:
        case Term("sym", (name,)) if name not in CONSTANTS:
            return str(name)
        case Term("mul", (Term("sym", (letter,)), Term("sym", (argument,)))):
            return _name_of_two(str(letter), str(argument))
        case Term("pow", (Term("sym", (letter,)), exponent)) if str(letter).isupper() and exact(exponent) == -1:
            return f"{letter}^-1"
        case Term("mul", (Term("pow", (Term("sym", (letter,)), exponent)), Term("sym", (argument,)))):
            return f"{letter}^-1({argument})" if letter in _FUNCTIONS and exact(exponent) == -1 else ""
        case Term("mul", (Term("sym", (letter,)), Term("seq", (_, _, *items)))) if str(letter)[:1] in _FUNCTIONS:
            arguments = [_name(item) for item in items]
            return f"{letter}({','.join(arguments)})" if all(arguments) else ""
        case Term("mul", (Term("sym", (letter,)), argument)) if letter in _FUNCTIONS:
            value = exact(argument)
            return "" if value is None else f"{letter}({value})"
        case Term("seq", ("(", _, *items)):
            names = [_name(item) for item in items]
            return f"({','.join(names)})" if all(names) else ""
    return ""


def _name_of_two(letter: str, argument: str) -> str:
    """The name that two letters beside each other are, f(x) or Delta x; empty where they are a product."""
    if letter == "Delta":
        return f"Delta {argument}"
    is_function = letter[0] in "fghFGHPpQqaST" or (letter.strip("'") == "y" and argument in ("x", "t"))
    is_function |= letter.endswith("'") and letter[0] != "y"
    is_function |= _without_mark(letter) == "r" and argument == "t"
    return f"{letter}({argument})" if is_function else ""


def _without_mark(letter: str) -> str:
    """A letter without an arrow or a hat above it."""
    return letter.rpartition(":")[2]


def _is_product(name: str, value: Term) -> bool:
    """Whether y(x) is y times x, as in y x = 5, and r(t) is r times t, where nothing hangs on the second letter."""
    letter, _, argument = name.partition("(")
    is_either = _without_mark(letter).rstrip("'") in ("y", "r")
    return bool(argument) and is_either and argument[:-1] not in value.symbols()


def _two_bounds(node: Term) -> Term:
    """Two bounds of one variable: x > 2 and x < 5. What is not that is the list of both."""
    low, high = shape(node.args[0]), shape(node.args[1])
    ends = [item.args[1] for item in (low, high) if item.op == "named" and item.args[1].op in ("interval", "tuple")]
    if len(ends) < 2 or low.args[0] != high.args[0]:
        return _list(Term("list", node.args))
    body = _intersection(*ends) or _intersection(*ends[::-1])
    return Term("named", (low.args[0], body)) if body else Term("set", (low, high))


def _intersection(below: Term, above: Term) -> Term | None:
    """What an interval without a lower end and one without an upper end have in common; None for all others."""
    if {below.op, above.op} - {"interval", "tuple"} or len(below.args) == len(above.args) == 3:
        return None
    if tuple(map(_is_infinite, (*below.args[:2], *above.args[:2]))) != (True, False, False, True):
        return None
    left = above.op == "interval" and above.args[2]
    right = below.op == "interval" and below.args[3]
    start, end = above.args[0], below.args[1]
    return span(start, end, left, right)


def _interval(operators: tuple[str, ...], operands: list[Term]) -> Term | None:
    """A chain of inequalities around one variable as an interval; None when it is not such a chain."""
    if len(operands) == 2 and any(operand.op == "neg" and _name(operand.args[0]) for operand in operands):
        operators = (FLIP.get(operators[0], ""),)
        operands = [operand.args[0] if operand.op == "neg" else Term("neg", (operand,)) for operand in operands]
    where = [i for i, operand in enumerate(operands) if operand.op in ("sym", "mul") and _name(operand)]
    if len(where) != 1 or any(operand.symbols() for i, operand in enumerate(operands) if i != where[0]):
        return None
    at, name = where[0], _name(operands[where[0]])
    if operators == ("!=",):
        return Term("named", (name, _reals_without([shape(operands[1 - at])])))
    if len(operands) == 2:
        operator = operators[0] if at == 0 else FLIP.get(operators[0], "")
        limit = shape(operands[1 - at])
        low, high = ALL.args
        interval = {
            "<": (low, limit, False, False), "<=": (low, limit, False, True),
            ">": (limit, high, False, False), ">=": (limit, high, True, False),
        }.get(operator)  # fmt: skip
    elif len(operands) == 3 and at == 1:
        interval = _between(operators, shape(operands[0]), shape(operands[2]))
    else:
        return None
    return None if interval is None else Term("named", (name, span(*interval)))


def _between(operators: tuple[str, ...], first: Term, last: Term) -> tuple[Term, Term, bool, bool] | None:
    if set(operators) <= {"<", "<="}:
        return first, last, operators[0] == "<=", operators[1] == "<="
    if set(operators) <= {">", ">="}:
        return last, first, operators[1] == ">=", operators[0] == ">="
    return None


_SHAPE_RULES: Mapping[str, Callable[[Term], Term]] = {
    "seq": _sequence, "pow": lambda node: _transpose(node) or _scalar(node), "list": _list,
    "union": _union, "rel": _relation, "meet": _two_bounds, "add": _sum,
    **dict.fromkeys(("mul", "div", "neg"), _scaled),
    "matrix": lambda node: Term("matrix", tuple(tuple(shape(cell) for cell in row) for row in node.args)),
    "without": _without, "mod": _modular, "cases": lambda node: Term("cases", tuple(map(shape, node.args))),
    "case": lambda node: Term("case", tuple(map(shape, node.args))),
    "ratio": lambda node: Term("ratio", tuple(shape(item) for item in node.args)),
    "text": _words, **dict.fromkeys(("base", "empty", "time", "duration", "designation"), lambda node: node),
}  # fmt: skip


# -- vectors over axes -------------------------------------------------------------------------------------------------
AXES = {f"{mark}{letter}": at for mark in ("", "hat:", "vec:") for at, letter in enumerate("ijk")}
"""The letters of the axes in their marks, each with its place."""


def components(node: Term, number: int) -> list[Term]:
    """The components of 2i - 3j + k; nothing where a term has none of these letters, or one has two terms.

    An i alone is the imaginary unit.
    """
    if node.symbols().isdisjoint(AXES):
        return []
    if node.op == "div" and node.args[1].symbols().isdisjoint(AXES):
        return [Term("div", (item, node.args[1])) for item in components(node.args[0], number)]
    parts: list[Term | None] = [None] * 3
    for term in node.args if node.op == "add" else (node,):
        minus = term.op == "neg"
        factors = term.args[0] if minus else term
        factors = factors.args if factors.op == "mul" else (factors,)
        axes = [AXES[item.args[0]] for item in factors if item.op == "sym" and item.args[0] in AXES]
        if len(axes) != 1 or parts[axes[0]] is not None:
            return []
        rest = [item for item in factors if item.op != "sym" or item.args[0] not in AXES]
        size = many("mul", rest) if rest else num(1)
        parts[axes[0]] = Term("neg", (size,)) if minus else size
    if number not in (2, 3) or any(parts[number:]):
        return []
    return [num(0) if item is None else item for item in parts[:number]]


# -- one spelling of a time and a residue -----------------------------------------------------------------------------
_NOON = 12


def by_clock(node: Term) -> tuple[int, int, str]:
    """Hour, minute and half of a time, which is known of 0:15 and 15:30, too; 80:15 and 15:30 am are as they stand."""
    hour, minute, half = node.args
    if hour > 2 * _NOON or (hour > _NOON and half == "am"):
        return hour, minute, half
    if not half and not 1 <= hour <= _NOON:
        half = "pm" if _NOON < hour < 2 * _NOON else "am"
    return (hour - 1) % _NOON + 1, minute, half


def least_residue(node: Term) -> Fraction | None:
    """The least residue of a class of whole numbers; None where it has none that is known."""
    values = [exact(item.args[0]) if item.op == "scalar" else None for item in node.args[:2]]
    residue, modulus = values
    return residue % modulus if residue is not None and modulus is not None and modulus > 0 else None
