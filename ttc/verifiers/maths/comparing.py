"""Compare the shapes of two answers under a policy: equal, different, or not decided without a numeric check.

The gold answer and the submitted one are treated alike, but for per cent and residues. Sets, tuples, intervals and
bases are equal only to their own kind; sets in any order, tuples in order. Where a spelling leaves its kind open, it is
read as the kind of the other side (`read_alike`): a tuple, a list of rows or a sum over i, j and k beside a matrix, 2:3
beside a number, 2 g beside a product with g. What needs more than exact arithmetic is handed to `decide`, which the
worker implements with many digits and this process leaves open.

Policy:
    percent    `gold`: 50 % equals 0.5, and where it is the gold, which may go without its sign, 50 too; `either`: 50 %
               equals 50 and 0.5, whichever is the gold; `unit`: 50 % equals 50 only; `value`: 50 % equals 0.5 only
    rounding   a decimal with at least so many significant digits and decimal places equals the exact value that it
               approximates to one unit in its last place; 0 turns this off. Two decimals are never equal by rounding
    relative, absolute    tolerances on numbers
    reading    what a bracketed or bare list is: as written (empty), always a `set`, always a `tuple`
    domain     what a variable runs over: pairs of a name and `integer`, `positive`, `positive integer`
    multiset   whether members of a set count as often as they stand there

An answer without a unit equals one with, but a number with pi beside degrees is in radians (60 degrees are pi/3); two
units must agree (5 cm is not 5 m, 500 cm is 5 m, 5 J is 5 N m, 5 mW is not 5 MW), and so must two directions (5 m/s
north is not 5 m/s south). Dates, telephone numbers and codes are equal by their spelling, 2019-2020 is not -1. Times
are equal as times, 10:20 is not 5:10, 15:30 is 3:30 pm; a time in several units equals one with a unit, 3 h 20 min is
200 min but not 200. A ratio with a zero equals only itself. 3 mod 7 is 10 mod 7, and 3 where that is submitted; 3 mod 7
is an answer for 3 only where a remainder is asked for, and x = 3 none for x = 3 mod 7. Of `x=1, y=2` the names, or
their order, are wanted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from ttc.answers.nodes import (
    UNITS,
    Term,
    constant_of,
    duration,
    exact,
    holds,
    renamed,
    unit,
    unit_and_way,
    unit_words,
    unnamed,
)
from ttc.answers.shapes import by_clock, components, entries, in_letters, least_residue, matrix_rows
from ttc.answers.words import word_key

Ternary: TypeAlias = bool | None
"""True, False, or None: not decided."""
Percent: TypeAlias = Literal["gold", "either", "unit", "value"]
Reading: TypeAlias = Literal["", "set", "tuple"]
MAX_MATCHED = 64
"""Members of a set beyond which only exact arithmetic compares."""


@dataclass(frozen=True, slots=True)
class EqualityPolicy:
    """What counts as equal; see the module."""

    percent: Percent = "gold"
    rounding: int = 6
    relative: float = 0.0
    absolute: float = 0.0
    reading: Reading = ""
    domain: tuple[tuple[str, str], ...] = ()
    multiset: bool = True


class Decide:
    """Leaves open what exact arithmetic cannot decide; the worker's subclass computes."""

    def equal(self, left: Term, right: Term, slack: Fraction) -> Ternary:
        """Whether two expressions have the same value, to within `slack`."""
        return None

    def proportional(self, left: Term, right: Term, positive: bool) -> Ternary:
        """Whether left = c * right for one constant c (of positive sign)."""
        return None

    def constant_apart(self, left: Term, right: Term) -> Ternary:
        """Whether left = right + c for one constant c."""
        return None


class Comparison:
    """One policy and one way to decide; `same` compares two shapes."""

    def __init__(self, policy: EqualityPolicy, decide: Decide) -> None:
        self.policy, self.decide = policy, decide

    def same(self, left: Term, right: Term) -> Ternary:
        """Compare two shapes."""
        if left == right:
            return True
        left, right = read_alike(left, right)
        if left.op == "named" or right.op == "named":
            return self._named(left, right)
        left, right = _as_duration(left, right), _as_duration(right, left)
        if "duration" in (left.op, right.op):
            return self._durations(left, right)
        if {left.op, right.op} == {"scalar", "quantity"} or left.op == right.op == "quantity":
            return self._quantities(left, right)
        if "time" in (left.op, right.op):
            return self._times(left, right)
        if _assignments(left) or _assignments(right):
            return self._assigned(left, right)
        left, right = self._read(left), self._read(right)
        if left.op != right.op:
            return False
        if left.op in _IN_ANY_ORDER:
            return self._unordered(left.args, right.args)
        if left.op in _IN_ORDER:
            return self._ordered(left.args, right.args)
        rule = getattr(self, f"_{left.op}", None)
        return rule(left, right) if rule else False

    def _read(self, node: Term) -> Term:
        listing = self.policy.reading and node.op in ("set", "tuple", "brackets")
        return Term(self.policy.reading, node.args) if listing else node

    # -- numbers ---------------------------------------------------------------------------------------------------
    def _scalar(self, left: Term, right: Term) -> Ternary:
        return self.scalars(left.args[0], right.args[0])

    def scalars(self, left: Term, right: Term) -> Ternary:
        """Compare two expressions."""
        if left == right:
            return True
        if left.has("inf") or right.has("inf"):
            return False
        right = _with_constant(right, left)
        first, second = exact(left), exact(right)
        if first is not None and second is not None:
            return first == second or abs(first - second) <= self._slack(left, right, first, second)
        digits = first if first is not None else second
        slack = self._slack(left, right, digits, digits)
        from ttc.answers.normal import constant_apart, identical  # most answers are rational and never come here

        if _absorbing(left, right):
            equal = constant_apart(left, right)
            return equal if equal is not None else self.decide.constant_apart(left, right)
        equal = identical(left, right)
        if equal or (equal is False and not slack):
            return equal
        return self.decide.equal(left, right, slack)

    def _slack(self, left: Term, right: Term, first: Fraction | None, second: Fraction | None) -> Fraction:
        scale = max((abs(value) for value in (first, second) if value is not None), default=Fraction(0))
        allowed = max(Fraction(self.policy.absolute), Fraction(self.policy.relative) * scale)
        return max(allowed, self._last_place(left, right, first, second))

    def _last_place(self, left: Term, right: Term, first: Fraction | None, second: Fraction | None) -> Fraction:
        """One unit in the last place of the decimal, when one side is a long decimal and the other is exact."""
        digits = [_digits(left), _digits(right)]
        if (digits[0] is None) == (digits[1] is None) or not self.policy.rounding:
            return Fraction(0)
        decimal, others, value = (left, right, first) if digits[0] is not None else (right, left, second)
        count = digits[0] if digits[0] is not None else digits[1]
        other = exact(others)
        value = value if value is not None else exact(decimal)
        if count is None or count < self.policy.rounding or not value or (other is not None and _terminates(other)):
            return Fraction(0)
        last = _magnitude(value) + 1 - count
        return Fraction(10) ** last if last <= -self.policy.rounding else Fraction(0)

    def _quantities(self, left: Term, right: Term) -> Ternary:
        (first, first_unit), (second, second_unit) = _with_unit(left), _with_unit(right)
        if "%" in (first_unit, second_unit) and first_unit != second_unit:
            return self._percents(first, first_unit, second, second_unit)
        if first_unit != second_unit and (angles := _radians(first, first_unit, second, second_unit)):
            return self.scalars(*angles)
        if not first_unit or not second_unit or first_unit == second_unit:
            return self.scalars(first, second)
        (first_unit, first_way), (second_unit, second_way) = unit_and_way(first_unit), unit_and_way(second_unit)
        factors = _conversion(first_unit, second_unit)
        if factors is None or (first_way != second_way and first_way and second_way):
            return False
        # In the unit of the first, which is the gold's: an absolute tolerance is meant in it.
        return self.scalars(first, _scaled(second, factors[1] / factors[0]))

    def _percents(self, first: Term, first_unit: str, second: Term, second_unit: str) -> Ternary:
        if first_unit and second_unit:
            return False
        percent, bare = (first, second) if first_unit else (second, first)
        bare_gold = self.policy.percent == "gold" and not first_unit
        readings = {"unit": (percent,), "value": (_scaled(percent, Fraction(1, 100)),)}
        accepted = readings.get("value" if bare_gold else self.policy.percent, readings["unit"] + readings["value"])
        return any_of([self.scalars(reading, bare) for reading in accepted])

    # -- structures ------------------------------------------------------------------------------------------------
    def _named(self, left: Term, right: Term) -> Ternary:
        left, right = _with_index(left, right)
        names = [node.args[0] if node.op == "named" else "" for node in (left, right)]
        if _names_another(left, right) or _names_another(right, left):
            return False
        if "rel" in (left.op, right.op):
            equations = [_equation(node) for node in (left, right)]
            both = equations[0] is not None and equations[1] is not None
            return self._rel(equations[0], equations[1]) if both else False  # type: ignore[arg-type]
        if all(names) and not _same_name(*names):
            return False
        if not all(names) and _in_another_order("".join(names)):
            return False
        bodies = [unnamed(left), unnamed(right)]
        arguments = [name.partition("(")[2].removesuffix(")") for name in names]
        if all(argument.isalpha() for argument in arguments) and arguments[0] != arguments[1]:
            if arguments[0] in bodies[1].symbols() or arguments[1] in bodies[0].symbols():
                return False
            bodies[1] = renamed(bodies[1], arguments[1], arguments[0])
        return self.same(bodies[0], bodies[1])

    def _times(self, left: Term, right: Term) -> Ternary:
        """Times by the clock; beside a gold that is none, what may be one is a ratio: 10:20 for 1:2."""
        if left.op == right.op:
            if not left.args[2] and not right.args[2]:
                return left.args == right.args
            first, second = by_clock(left), by_clock(right)
            return first[:2] == second[:2] and (first[2] == second[2] or "" in (first[2], second[2]))
        sides = left, as_ratio(right)
        # 15:30 is no half, as 1:2 is, and 1:2 is no time.
        return False if {"time", "scalar"} & {sides[0].op, sides[1].op} else self.same(*sides)

    def _durations(self, left: Term, right: Term) -> Ternary:
        """Times in several units; a bare number says nothing of its unit."""
        if "scalar" in (left.op, right.op):
            return False
        sides = [Term("quantity", node.args) if node.op == "duration" else node for node in (left, right)]
        return self.same(sides[0], sides[1])

    def _assigned(self, left: Term, right: Term) -> Ternary:
        """Values with names: by the names, or in their order where one side has none."""
        items = (*left.args, *right.args) if left.op == right.op == "set" else ()
        roots = [_ROOTS.fullmatch(str(item.args[0])) for item in items if item.op == "named"]
        if roots and all(roots) and len({root[1] for root in roots if root}) == 1:
            return self._unordered(list(map(unnamed, left.args)), list(map(unnamed, right.args)))
        if _assignments(left) and _assignments(right):
            first, second = (sorted(side.args, key=lambda item: str(item.args[0])) for side in (left, right))
            names = [[item.args[0] for item in side] for side in (first, second)]
            return names[0] == names[1] and all_of([self.same(a, b) for a, b in zip(first, second, strict=True)])
        if left.op not in ("set", "tuple", "brackets") or right.op not in ("set", "tuple", "brackets"):
            return False
        return self._ordered(_by_axes(left.args), _by_axes(right.args))

    def _ordered(self, left: Sequence[Term], right: Sequence[Term]) -> Ternary:
        if len(left) != len(right):
            return False
        return all_of([self.same(a, b) for a, b in zip(left, right, strict=True)])

    def _unordered(self, left: Sequence[Term], right: Sequence[Term]) -> Ternary:
        """Equality of sets: every member of each has an equal in the other, and as often."""
        if not self.policy.multiset:
            left, right = list(dict.fromkeys(left)), list(dict.fromkeys(right))
        elif len(left) != len(right):
            return False
        counts = [_counts(side) for side in (left, right)]
        left, right = list(counts[0]), list(counts[1])
        if any(counts[0][item] != counts[1][item] for item in set(left) & set(right)):
            return False
        common = set(left) & set(right)
        rest_left = [item for item in left if item not in common]
        rest_right = [item for item in right if item not in common]
        if len(rest_left) > MAX_MATCHED or len(rest_right) > MAX_MATCHED:
            return False
        if self.policy.multiset:
            return all_of([self._as_often(item, rest_left, rest_right, counts) for item in (*rest_left, *rest_right)])
        table = [[self.same(a, b) for b in right] for a in rest_left]
        back = [[self.same(a, b) for a in left] for b in rest_right]
        return all_of([any_of(row) for row in (*table, *back)])

    def _as_often(
        self, item: Term, left: Sequence[Term], right: Sequence[Term], counts: Sequence[Mapping[Term, int]]
    ) -> Ternary:
        """Whether a member stands as often on both sides, however it is spelt: 12 is 12 apples, 1/2 is 0.5."""
        # The gold's side comes first in every comparison.
        rows = [self.same(member, item) for member in left], [self.same(item, member) for member in right]
        if None in rows[0] or None in rows[1]:
            return None
        sums = [
            sum(often[member] for member, same in zip(members, row, strict=True) if same)
            for members, row, often in zip((left, right), rows, counts, strict=True)
        ]
        return sums[0] == sums[1] > 0

    def _interval(self, left: Term, right: Term) -> Ternary:
        return left.args[2:] == right.args[2:] and self._ordered(left.args[:2], right.args[:2])

    def _text(self, left: Term, right: Term) -> Ternary:
        return word_key(left) in (word_key(right), _unlabelled(word_key(right)))

    def _matrix(self, left: Term, right: Term) -> Ternary:
        if [len(row) for row in left.args] != [len(row) for row in right.args]:
            return False
        return all_of([self._ordered(a, b) for a, b in zip(left.args, right.args, strict=True)])

    def _ratio(self, left: Term, right: Term) -> Ternary:
        if len(left.args) != len(right.args):
            return False
        sides = [[_with_unit(item)[0] for item in node.args] for node in (left, right)]
        base = [side[0] for side in sides]
        if any(exact(item) == 0 for side in sides for item in side):
            return all_of([self.scalars(a, b) for a, b in zip(sides[0], sides[1], strict=True)])
        return all_of(
            [
                self.scalars(Term("mul", (a, base[1])), Term("mul", (b, base[0])))
                for a, b in zip(sides[0], sides[1], strict=True)
            ]
        )

    def _residue(self, left: Term, right: Term) -> Ternary:
        """Classes of whole numbers, by their least members."""
        least = least_residue(left), least_residue(right)
        same_modulus = self.same(left.args[1], right.args[1])
        same_residue = least[0] == least[1] if None not in least else self.same(left.args[0], right.args[0])
        return all_of([same_modulus, same_residue, len(left.args) == len(right.args)])

    def _rel(self, left: Term, right: Term) -> Ternary:
        first, second = _difference(left), _difference(right)
        if left.args[0] == right.args[0]:
            sides = all_of([self.scalars(a, b) for a, b in zip(left.args[1:], right.args[1:], strict=True)])
            if sides or first is None:
                return sides
        if first is None or second is None or first[0] != second[0]:
            return False
        positive = first[0] not in ("=", "!=")
        from ttc.answers.normal import multiples

        equal = multiples(first[1], second[1], positive)
        return equal if equal is not None else self.decide.proportional(first[1], second[1], positive)


_IN_ANY_ORDER, _IN_ORDER = frozenset({"set", "union", "cases"}), frozenset({"tuple", "without", "case", "brackets"})
"""Shapes that are equal by their members: these in any order, those in the same one."""


# -- shapes that are read as the kind of the other side ----------------------------------------------------------------
def read_alike(left: Term, right: Term) -> tuple[Term, Term]:
    """Two shapes, each read as the kind that the other is where its spelling leaves that open."""
    if left.op == right.op:
        return left, right
    if reading := _READINGS.get((right.op, left.op)):
        return left, reading(right, left)
    if reading := _READINGS.get((left.op, right.op)):
        return reading(left, right), right
    return left, right


# -- how a shape is read beside one of another kind --------------------------------------------------------------------
def _in_letters(node: Term, beside: Term) -> Term:
    """A quantity beside an expression in the letters of its unit: 2 g is 2 times g, 2mg is 2 times m times g."""
    product = in_letters(Term("quantity", node.args))
    is_product = product.op != "quantity" and beside.symbols() and product.symbols() == beside.symbols()
    return Term("scalar", (product,)) if is_product else node


def _as_point(node: Term, _beside: Term) -> Term:
    """A vector by its i, j and k; C(1, 2) beside a pair, where no binomial coefficient has such numbers."""
    inner = node.args[0]
    if parts := components(inner, len(_beside.args)):
        return Term("tuple", tuple(Term("scalar", (item,)) for item in parts))
    if inner.op != "fn" or inner.args[0] != "choose" or exact(inner):
        return node
    return Term("tuple", tuple(Term("scalar", (item,)) for item in inner.args[1:]))


def _as_matrix(node: Term, beside: Term) -> Term:
    """A list of lists, or a vector in brackets, as a matrix; a vector lies or stands as the matrix does."""
    if rows := matrix_rows(node):
        return Term("matrix", rows)
    items = entries(node)
    if not items or any(map(entries, items)):
        return node
    stands = all(len(row) == 1 for row in beside.args)
    return Term("matrix", tuple((item,) for item in items) if stands else (items,))


def _as_column(node: Term, _beside: Term) -> Term:
    r"""\binom{1}{2} beside a matrix: how a column of two is often typeset."""
    inner = node.args[0]
    if parts := components(inner, len(_beside.args)):
        return Term("matrix", tuple((Term("scalar", (item,)),) for item in parts))
    if inner.op != "fn" or inner.args[0] != "binom":
        return node
    return Term("matrix", tuple((Term("scalar", (item,)),) for item in inner.args[1:]))


def _as_list(node: Term, _beside: Term) -> Term:
    """Three items or more as a list in square brackets, in their order."""
    return Term("brackets", node.args) if len(node.args) > 2 and not any(map(entries, node.args)) else node


def _as_set(node: Term, _beside: Term) -> Term:
    """A list in square brackets as a set."""
    return Term("set", node.args)


def _as_quotient(node: Term, _beside: Term) -> Term:
    """A ratio of two beside a number: 2:3 is 2/3."""
    parts = [_with_unit(item) for item in node.args if item.op in ("scalar", "quantity")]
    if len(parts) != len(node.args) or len(parts) != 2 or any(unit_name for _, unit_name in parts):
        return node
    whole = exact(parts[1][0]) == 1
    return Term("scalar", (parts[0][0] if whole else Term("div", (parts[0][0], parts[1][0])),))


_READINGS: Mapping[tuple[str, str], Callable[[Term, Term], Term]] = {
    ("quantity", "scalar"): _in_letters,
    ("scalar", "tuple"): _as_point,
    ("scalar", "matrix"): _as_column,
    ("ratio", "scalar"): _as_quotient,
    ("set", "brackets"): _as_list,
    ("tuple", "brackets"): _as_list,
    ("brackets", "set"): _as_set,
    **{(kind, "matrix"): _as_matrix for kind in ("tuple", "brackets", "interval")},
}
"""How a shape of the first kind is read beside one of the second."""


def _by_axes(items: Sequence[Term]) -> Sequence[Term]:
    """Values of x, y and z in this order, which values without names have: y = -1, x = 2 is (2, -1)."""
    names = [item.args[0] for item in items if item.op == "named"]
    of_axes = len(names) == len(items) and set(names) <= set("xyz")
    return sorted(items, key=lambda item: str(item.args[0])) if of_axes else items


_ROOTS = re.compile(r"([xz]|lambda)_\d")
"""Names of the solutions of one equation, in no order."""


# -- verdicts, lists and digits ----------------------------------------------------------------------------------------
def all_of(values: Sequence[Ternary]) -> Ternary:
    """False if one is False, else None if one is open, else True."""
    return False if False in values else None if None in values else True


def any_of(values: Sequence[Ternary]) -> Ternary:
    """True if one is True, else None if one is open, else False."""
    return True if True in values else None if None in values else False


def _unlabelled(words: str) -> str:
    """Words without the letter of a choice before them: (E) ellipse."""
    return re.sub(r"\A\([a-j]\)\s+(?=\w{3})", "", words)


def _counts(items: Sequence[Term]) -> Mapping[Term, int]:
    return Counter(items)


def _assignments(node: Term) -> bool:
    """Whether every member of a list has a name of its own: x = 1, y = 2."""
    names = [item.args[0] for item in node.args if item.op == "named"] if node.op in ("set", "tuple") else []
    return len(names) > 1 and len(names) == len(node.args) == len(set(names))


def _as_duration(node: Term, beside: Term) -> Term:
    """A list of times from large to small beside a time: 3 hours and 20 minutes; all else as it is."""
    listed = node.op == "set" and beside.op in ("duration", "quantity")
    return (duration(node.args) if listed else None) or node


def as_ratio(node: Term) -> Term:
    """What may be a time by the clock as a ratio; all else as it is."""
    if node.op != "time" or node.args[2]:
        return node
    return Term("ratio", tuple(Term("scalar", (Term("num", (Fraction(part), None)),)) for part in node.args[:2]))


def _digits(node: Term) -> int | None:
    """Significant digits of a decimal literal; None for anything else."""
    inner = node.args[0] if node.op == "neg" else node
    digits: int | None = inner.args[1] if inner.op == "num" else None
    return digits


def _terminates(value: Fraction) -> bool:
    """Whether the decimal expansion of a rational ends, so that rounding is no excuse."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _magnitude(value: Fraction) -> int:
    """The power of ten of the first significant digit."""
    value = abs(value)
    guess = int((value.numerator.bit_length() - value.denominator.bit_length()) * math.log10(2)) - 2
    while Fraction(10) ** (guess + 1) <= value:
        guess += 1
    return guess


# -- units -------------------------------------------------------------------------------------------------------------
def _with_unit(node: Term) -> tuple[Term, str]:
    inner: Term = node.args[0]
    return inner, node.args[1] if node.op == "quantity" else ""


_PI = Term("sym", ("pi",))


def _radians(first: Term, first_unit: str, second: Term, second_unit: str) -> tuple[Term, Term] | None:
    """Two angles in radians, where one is in degrees and the other in radians, as a number with pi is; else None."""
    is_left, is_right = _in_degrees(first_unit), _in_degrees(second_unit)
    if is_left == is_right or not _in_radians(*((second, second_unit) if is_left else (first, first_unit))):
        return None
    turned = Term("mul", (first if is_left else second, _PI))
    return (_scaled(turned, Fraction(1, 180)), second) if is_left else (first, _scaled(turned, Fraction(1, 180)))


def _in_degrees(name: str) -> bool:
    measure = unit(name)
    return measure.dimension == "angle" and bool(measure.factor)


def _in_radians(node: Term, name: str) -> bool:
    return unit(name).dimension == "angle" if name else has_pi(node)


def has_pi(node: Term) -> bool:
    """Whether pi stands at or below a node."""
    return holds(node, _PI)


def _scaled(node: Term, factor: Fraction) -> Term:
    return node if factor == 1 else Term("mul", (node, Term("num", (factor, None))))


def _conversion(first: str, second: str) -> tuple[Fraction, Fraction] | None:
    """Factors that bring two units to a common one; None when they do not agree."""
    left, right = unit(first), unit(second)
    if left.dimension and right.dimension:
        if left == right:
            return Fraction(1), Fraction(1)  # radians, which have no factor
        if left.dimension == right.dimension and left.factor and right.factor:
            return left.factor, right.factor
        electric = _electric(first), _electric(second)
        return None if electric == (first, second) else _conversion(*electric)
    if _measures(first) != _measures(second):
        return None
    words = unit_words(first), unit_words(second)
    return (Fraction(1), Fraction(1)) if words[0] & words[1] or {"unit"} in words else None


_ELECTRIC = {"C": "coulomb", "F": "farad"}


def _electric(text: str) -> str:
    """A unit with its C as coulombs and its F as farads, which are read as degrees first."""
    if "degree" in text:
        return text
    return re.sub(r"(?<![A-Za-z])[CF](?![A-Za-z])", lambda match: _ELECTRIC[match[0]], text)


def _measures(text: str) -> list[set[str]]:
    """The known units of a unit of several words, above and below each slash."""
    levels = re.split(r"/|\bper\b", text)
    known = [{word for word in level.split() if word.partition("^")[0] in UNITS} for level in levels]
    return known if any(known[1:]) else known[:1]


# -- names and equations -----------------------------------------------------------------------------------------------
_INDEXED = re.compile(r"(?P<head>[A-Za-z])_(?P<index>[a-z])")


def _with_index(left: Term, right: Term) -> tuple[Term, Term]:
    """Two terms of a sequence by one index: a_k = 3k - 2 beside a_n = 3n - 2."""
    first, second = (_INDEXED.fullmatch(node.args[0]) if node.op == "named" else None for node in (left, right))
    if not first or not second or first["head"] != second["head"]:
        return left, right
    own, other = first["index"], second["index"]
    bodies = left.args[1], right.args[1]
    is_used = own in bodies[0].symbols() and other not in bodies[0].symbols() and own != other
    return left, Term("named", (left.args[0], renamed(bodies[1], other, own))) if is_used else right


def _names_another(node: Term, other: Term) -> bool:
    """Whether a list says something of another letter than the one that `node` is about: x = 1, y = 2 beside x."""
    if node.op != "named" or len(node.args[0]) != 1 or other.op not in ("set", "union"):
        return False
    return any(item.op == "named" and item.args[0].partition("_")[0] != node.args[0] for item in other.args)


_PLACES = frozenset({"r", "vec:r", "r(t)", "vec:r(t)", "(x,y)", "(x,y,z)"})
"""What the points of a line are called."""


def _same_name(first: str, second: str) -> bool:
    """Whether two names may stand for the same: x is not y, f(x) is not g(x), but y may be f(x)."""
    if first in _PLACES and second in _PLACES:
        return True
    (head, _, argument), (other_head, _, other_argument) = first.partition("("), second.partition("(")
    if argument and other_argument and argument != other_argument and not _interchangeable(argument, other_argument):
        return False
    is_y = "y" in (head.rstrip("'"), other_head.rstrip("'")) and head.count("'") == other_head.count("'")
    if is_y and bool(argument) != bool(other_argument):
        return "y)" not in (argument, other_argument)
    whole = [name.partition("_")[0] for name in (head, other_head)]
    return head == other_head or (whole[0] == whole[1] and whole[0] in (head, other_head))


def _in_another_order(name: str) -> bool:
    """Whether coordinates are named in another order than the usual one, which values without names have: (y, x)."""
    letters = name.strip("()").split(",")
    return set(letters) <= set("xyz") and letters != sorted(letters)


def _interchangeable(argument: str, other: str) -> bool:
    """Whether two arguments are letters that may be called otherwise: f(t) for f(x), (a, b) for (x, y), not (y, x)."""
    letters = [text.removesuffix(")").split(",") for text in (argument, other)]
    return all(letter.isalpha() for side in letters for letter in side) and sorted(letters[0]) != sorted(letters[1])


def _equation(node: Term) -> Term | None:
    """An equation as a relation: y = 2x + 1 has been read as the name y of a scalar."""
    if node.op == "rel":
        return node
    if node.op == "named" and node.args[1].op == "scalar" and len(node.args[0]) == 1:
        return Term("rel", (("=",), Term("sym", (node.args[0],)), node.args[1].args[0]))
    return None


_ABSORBS = re.compile(r"C(?:_[01])?")
"""Names that are hardly ever given to anything else: + C takes up any other constant."""


def _with_constant(node: Term, gold: Term) -> Term:
    """A sum with the gold's name for the constant of integration: x^2 + k beside x^2 + C."""
    own, other = constant_of(gold), constant_of(node)
    if not own or not other or own == "k" or own in node.symbols() or other in gold.symbols():
        return node
    return renamed(node, other, own)


def _absorbing(gold: Term, answer: Term) -> bool:
    """Whether both are antiderivatives in one variable with the same + C, so that ln|2x| + C is ln|x| + C."""
    name = constant_of(gold)
    one_variable = len(gold.symbols()) == 2 and gold.symbols() == answer.symbols()
    return bool(_ABSORBS.fullmatch(name)) and name == constant_of(answer) and one_variable


def _difference(node: Term) -> tuple[str, Term] | None:
    """A relation between two sides as an operator and left minus right; None for chains."""
    operators, *sides = node.args
    if len(sides) != 2 or operators[0] == "in":
        return None
    flipped = {">": "<", ">=": "<="}.get(operators[0])
    first, second = (sides[1], sides[0]) if flipped else (sides[0], sides[1])
    return flipped or operators[0], Term("add", (first, Term("neg", (second,))))
