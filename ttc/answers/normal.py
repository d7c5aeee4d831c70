r"""Prove that two expressions are equal, or that they are not: normal forms over exact numbers.

An expression is brought to a fraction of two polynomials with rational coefficients. Its atoms are the variables,
pi, e, i, fractional powers of primes (`\sqrt{12}` is 2 times 3^(1/2); powers of different primes, each exponent in
[0, 1), are linearly independent over the rationals: Besicovitch 1940), and everything else as it stands (`\sin x`, a
floor, the root of a sum). Equal when left - right has the numerator zero: that is a proof, whatever the atoms are.
Different, proved too, when what is left has no atom of the last kind and not both pi and e. Else not decided.
Fractions are equal as fractions: x/x is 1. Cost: bounded by MAX_TERMS products of monomials. Left out: nested roots
(`\sqrt{3+2\sqrt 2}`), trigonometric identities, exponents with variables; those are sampled. Formulas of logic have
their truth tables (`same_formula`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeAlias

from ttc.answers.nodes import Term, exact

Ternary: TypeAlias = bool | None
Monomial: TypeAlias = tuple[tuple[str, Fraction], ...]
"""Atoms with exponents, sorted; the empty one is 1."""
Polynomial: TypeAlias = dict[Monomial, Fraction]
Quotient: TypeAlias = tuple[Polynomial, Polynomial]
MAX_TERMS = 4000
MAX_EXPONENT = 40
MAX_PRIME = 10_000
_ONE: Monomial = ()


class TooLong(ArithmeticError):
    """The normal form would take more work than is allowed."""


def _quotient(node: Term) -> Quotient | tuple[None, Polynomial]:
    """A term as a fraction of two polynomials; without one above where it would take too much work."""
    try:
        return _Forms().quotient(node)
    except TooLong:
        return None, {}


def identical(left: Term, right: Term) -> Ternary:
    """Whether two expressions are equal; None when neither equality nor difference is proved."""
    top, _ = _quotient(Term("add", (left, Term("neg", (right,)))))
    return True if top == {} else False if top and _independent(top) else None


def constant_apart(left: Term, right: Term) -> Ternary:
    """Whether left = right + c for one number c; None when it is not decided."""
    top, bottom = _quotient(Term("add", (left, Term("neg", (right,)))))
    if top is None or set(bottom) != {_ONE}:
        return True if top == {} else None
    if all(name[:2] in ("p:", "c:") for mono in top for name, _ in mono):
        return True
    return False if _independent(top) else None


def multiples(left: Term, right: Term, positive: bool) -> Ternary:
    """Whether left = c * right for one rational c (positive, where asked); None when it is not decided."""
    (first, below), (second, under) = _quotient(left), _quotient(right)
    if not first or not second:
        return True if first == second == {} else None
    if set(below) != {_ONE} or set(under) != {_ONE}:
        return None
    if not (_independent(first) and _independent(second)):
        return None
    if set(first) != set(second):
        return None if any(name[0] == "p" for mono in (*first, *second) for name, _ in mono) else False
    ratios = {first[mono] / second[mono] for mono in first}
    if len(ratios) > 1:
        return None if any(name[0] == "p" for mono in first for name, _ in mono) else False
    scale = ratios.pop() * under[_ONE] / below[_ONE]
    return scale > 0 if positive else True


def line(node: Term, name: str) -> tuple[Fraction, Fraction] | tuple[None, None]:
    """The a and b of a x + b, where an expression in one variable is that."""
    top, bottom = _quotient(node)
    slope = ((f"s:{name}", Fraction(1)),)
    if not top or set(bottom) != {_ONE} or not {slope} <= set(top) <= {slope, _ONE}:
        return None, None
    return top[slope] / bottom[_ONE], top.get(_ONE, Fraction(0)) / bottom[_ONE]


def has_like_terms(node: Term) -> bool:
    """Whether a sum has terms that were not put together, as 5 sqrt(2) + sqrt(8) has; False where it is not known."""
    if node.op == "neg":
        return has_like_terms(node.args[0])
    if node.op != "add":
        return False
    whole, *terms = (_quotient(item)[0] for item in (node, *node.args))
    return whole is not None and len(whole) < sum(max(1, len(term or ())) for term in terms)


def _independent(top: Polynomial) -> bool:
    atoms = {name for mono in top for name, _ in mono}
    return not any(name.startswith("o") for name in atoms) and not {"c:pi", "c:e"} <= atoms


class _Forms:
    """Brings terms to quotients and counts the work."""

    def __init__(self) -> None:
        self.work = 0

    def quotient(self, node: Term) -> Quotient:
        """The node as a fraction of two polynomials. Raises TooLong."""
        rule = getattr(self, f"_{node.op}", None)
        return rule(*node.args) if rule else self._opaque(node)

    def _num(self, value: Fraction, _digits: int | None) -> Quotient:
        return _constant(value)

    def _sym(self, name: str) -> Quotient:
        kind = {"pi": "c:pi", "e": "c:e", "i": "i"}.get(name, f"s:{name}")
        return {((kind, Fraction(1)),): Fraction(1)}, {_ONE: Fraction(1)}

    def _neg(self, inner: Term) -> Quotient:
        top, bottom = self.quotient(inner)
        return {mono: -value for mono, value in top.items()}, bottom

    def _add(self, *items: Term) -> Quotient:
        top, bottom = self.quotient(items[0])
        for item in items[1:]:
            above, below = self.quotient(item)
            if below == bottom:
                top = _sum(top, above)
            else:
                top = _sum(self._times(top, below), self._times(above, bottom))
                bottom = self._times(bottom, below)
        return top, bottom

    def _mul(self, *items: Term) -> Quotient:
        top, bottom = self.quotient(items[0])
        for item in items[1:]:
            above, below = self.quotient(item)
            top, bottom = self._times(top, above), self._times(bottom, below)
        return top, bottom

    def _div(self, above: Term, below: Term) -> Quotient:
        (top, under), (over, bottom) = self.quotient(above), self.quotient(below)
        if not over:
            raise TooLong("a division by zero")
        return self._times(top, bottom), self._times(under, over)

    def _pow(self, base: Term, exponent: Term) -> Quotient:
        power = exact(exponent)
        if power is None:
            return self._opaque(Term("pow", (base, exponent)))
        if power.denominator == 1:
            return self._whole_power(base, int(power))
        value = exact(base)
        rooted = None if value is None else self._rooted(value, power)
        return rooted or self._opaque(Term("pow", (base, exponent)))

    def _whole_power(self, base: Term, power: int) -> Quotient:
        if abs(power) > MAX_EXPONENT:
            value = exact(Term("pow", (base, Term("num", (Fraction(power), None)))))
            if value is None:
                return self._opaque(Term("pow", (base, Term("num", (Fraction(power), None)))))
            return _constant(value)
        top, bottom = self.quotient(base)
        if power < 0:
            top, bottom = bottom, top
            if not bottom:
                raise TooLong("a division by zero")
        above: Polynomial = {_ONE: Fraction(1)}
        below: Polynomial = {_ONE: Fraction(1)}
        for _ in range(abs(power)):
            above, below = self._times(above, top), self._times(below, bottom)
        return above, below

    def _fn(self, name: str, *args: Term) -> Quotient:
        node = Term("fn", (name, *args))
        value = exact(node)
        if value is not None:
            return _constant(value)
        inner = exact(args[0]) if name in ("sqrt", "root") else None
        degree = Fraction(2) if name == "sqrt" else exact(args[1]) if name == "root" else None
        if inner is not None and degree is not None and degree.denominator == 1 and degree > 0:
            return self._rooted(inner, 1 / degree) or self._opaque(node)
        return self._opaque(node)

    def _quantity(self, inner: Term, unit: str) -> Quotient:
        if unit != "%":
            return self._opaque(Term("quantity", (inner, unit)))
        return self._div(inner, Term("num", (Fraction(100), None)))

    def _rooted(self, value: Fraction, power: Fraction) -> Quotient | None:
        """The positive power of a positive rational, by its primes; None when it is too large to factor."""
        top, bottom = _primes(value.numerator), _primes(value.denominator)
        if value <= 0 or top is None or bottom is None:
            return None
        factor, atoms = Fraction(1), []
        for prime in sorted({*top, *bottom}):
            whole, rest = divmod((top.get(prime, 0) - bottom.get(prime, 0)) * power, 1)
            if abs(whole) > MAX_EXPONENT:
                return None
            factor *= Fraction(prime) ** int(whole)
            if rest:
                atoms.append((f"p:{prime}", rest))
        return {tuple(sorted(atoms)): factor}, {_ONE: Fraction(1)}

    def _opaque(self, node: Term) -> Quotient:
        """An atom that is equal only to what is written alike, up to the normal form of its arguments."""
        return {((f"o:{self._key(node)}", Fraction(1)),): Fraction(1)}, {_ONE: Fraction(1)}

    def _key(self, node: Term) -> str:
        parts = [self._quotient_key(arg) if isinstance(arg, Term) else repr(arg) for arg in node.args]
        return f"{node.op}({';'.join(parts)})"

    def _quotient_key(self, node: Term) -> str:
        top, bottom = self.quotient(node)
        lead = bottom[min(bottom)]
        return "/".join(repr(sorted((mono, value / lead) for mono, value in side.items())) for side in (top, bottom))

    def _times(self, left: Polynomial, right: Polynomial) -> Polynomial:
        self.work += len(left) * len(right)
        if self.work > MAX_TERMS:
            raise TooLong("too many terms")
        product: Polynomial = {}
        for one, first in left.items():
            for other, second in right.items():
                mono, factor = _joined(one, other)
                product[mono] = product.get(mono, Fraction(0)) + first * second * factor
        return {mono: value for mono, value in product.items() if value}


def _constant(value: Fraction) -> Quotient:
    return ({_ONE: value} if value else {}), {_ONE: Fraction(1)}


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    total = dict(left)
    for mono, value in right.items():
        total[mono] = total.get(mono, Fraction(0)) + value
    return {mono: value for mono, value in total.items() if value}


def _joined(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """The product of two monomials, and the rational that whole powers of primes and of i leave."""
    if not left or not right:
        return left or right, Fraction(1)
    powers: dict[str, Fraction] = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, Fraction(0)) + power
    factor = Fraction(1)
    for name in [name for name in powers if name[0] in "pi"]:
        if name == "i":
            factor *= -1 if powers[name] % 4 >= 2 else 1
            powers[name] %= 2
        elif powers[name] >= 1:
            factor *= int(name[2:])
            powers[name] -= 1
    return tuple(sorted((name, power) for name, power in powers.items() if power)), factor


def _primes(value: int) -> Mapping[int, int] | None:
    """Primes to exponents; None when a factor is too large to be sure of."""
    exponents: dict[int, int] = {}
    prime = 2
    while prime <= MAX_PRIME and prime * prime <= value:
        while value % prime == 0:
            value //= prime
            exponents[prime] = exponents.get(prime, 0) + 1
        prime += 1 if prime == 2 else 2
    if value > MAX_PRIME * MAX_PRIME:
        return None
    if value > 1:
        exponents[value] = exponents.get(value, 0) + 1
    return exponents


# -- formulas of logic -------------------------------------------------------------------------------------------------
_LOGICAL = re.compile(
    r"\s*(?:(?P<letter>[A-Za-z])(?![A-Za-z])"
    r"|(?P<sign>\\(?:neg|sim|land|lor|to|implies|iff)(?![A-Za-z])|[()\[\]]))\s*"
)
_ARROWS: tuple[tuple[frozenset[str], Callable[[int, int], int]], ...] = (
    (frozenset({r"\iff"}), lambda left, right: ~(left ^ right)),
    (frozenset({r"\to", r"\implies"}), lambda left, right: ~left | right),
)
_CONNECTIVES: tuple[tuple[frozenset[str], Callable[[int, int], int]], ...] = (
    *_ARROWS,
    (frozenset({r"\lor"}), lambda left, right: left | right),
    (frozenset({r"\land"}), lambda left, right: left & right),
)
"""The signs between two formulas, weakest first, each with what it makes of two truth tables."""
MAX_LETTERS, MAX_SIGNS = 6, 100
"""Letters, and letters with signs, of a formula beyond which no truth table is made."""


def same_formula(gold: str, answer: str) -> bool | None:
    r"""Whether two formulas of logic hold together; None where one is none, or the answer is longer or has more arrows.

    So `q \lor \neg p` is `\neg p \lor q`. `p \to q` is not decided beside it, nor is a formula that was not simplified.
    """
    sides = [_logical_tokens(text) for text in (gold, answer)]
    letters = sorted({token for tokens in sides for token in tokens if token.isalpha()})
    if not all(sides) or len(letters) > MAX_LETTERS or not any(token.startswith("\\") for token in sides[0]):
        return None
    num_rows = 2 ** len(letters)
    tables = {letter: sum(1 << row for row in range(num_rows) if row >> at & 1) for at, letter in enumerate(letters)}
    first, second = (_table(list(reversed(tokens)), tables) for tokens in sides)
    if first is None or second is None:
        return None
    if (first ^ second) & (1 << num_rows) - 1:
        return False
    sizes = [sum(map(str.isalpha, tokens)) for tokens in sides]
    arrows = [{signs for signs, _ in _ARROWS if not signs.isdisjoint(tokens)} for tokens in sides]
    return True if sizes[1] <= sizes[0] and arrows[1] <= arrows[0] else None


def _logical_tokens(text: str) -> list[str]:
    """The letters, signs and brackets of a formula; nothing where a text has anything else."""
    tokens, at = list[str](), 0
    while len(tokens) < MAX_SIGNS and (match := _LOGICAL.match(text, at)):
        tokens.append(match["letter"] or match["sign"])
        at = match.end()
    return tokens if at == len(text) else []


def _table(tokens: list[str], tables: Mapping[str, int]) -> int | None:
    """The truth table of a formula, a bit for each row; None where its tokens, last one first, are no formula."""
    try:
        table = _joint_table(tokens, tables, 0)
    except (IndexError, KeyError):
        return None
    return None if tokens else table


def _joint_table(tokens: list[str], tables: Mapping[str, int], level: int) -> int:
    if level == len(_CONNECTIVES):
        return _single_table(tokens, tables)
    signs, join = _CONNECTIVES[level]
    left = _joint_table(tokens, tables, level + 1)
    while tokens and tokens[-1] in signs:
        tokens.pop()
        # p -> q -> r is p -> (q -> r); for the others it is all one.
        left = join(left, _joint_table(tokens, tables, level))
    return left


def _single_table(tokens: list[str], tables: Mapping[str, int]) -> int:
    token = tokens.pop()
    if token in (r"\neg", r"\sim"):
        return ~_single_table(tokens, tables)
    if token not in ("(", "["):
        return tables[token]
    table = _joint_table(tokens, tables, 0)
    if tokens.pop() not in (")", "]"):
        raise KeyError(token)
    return table
