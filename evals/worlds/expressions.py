"""Expressions as trees, and every legal next step from one: how arithmetic is worked out line by line.

A step reduces one pair of neighbouring numbers of what remains, `71*3=213`; a number is written with
its sign, so the pair (-29, +56) is `-29+56=27`. A factor may be split into its leading part and the
rest, `47*30=1410`, then `47*8=376`, then `1410+376=1786`. A line that begins with `Wait, ` goes back to
a step that was due before. The packaged family's worked solutions are made of these steps.

Cost: microseconds per step. Left out: division, fractions, steps on numbers that are not neighbours.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

STEP_DELIMITER = "\n\n"
WAIT = "Wait, "
MAX_TEXT = 1_000

_TOKEN = re.compile(r"\d+|[-+*()]")


@dataclass(frozen=True, slots=True)
class Sum:
    """Signed terms; a number carries its own sign, so its `sign` field is always 1."""

    terms: tuple[tuple[int, "Node"], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Factors, left to right."""

    factors: tuple["Node", ...]


Node = int | Sum | Product


@dataclass(frozen=True, slots=True)
class Reduction:
    """One legal step: `left` is written before the equals sign, `value` after it.

    `rebuild` puts a number in the place of the pair; `split` marks the first part of a split product.
    """

    left: str
    value: int
    rebuild: Callable[[int], Node]
    split: bool = False


def parse(text: str) -> Node:
    """Read an expression of whole numbers, `+`, `-`, `*` and brackets.

    Raises:
        ValueError: the text is longer than `MAX_TEXT` or is not such an expression.
    """
    compact = text.replace(" ", "")
    if len(compact) > MAX_TEXT:
        raise ValueError(f"expression: longer than {MAX_TEXT} characters")
    tokens = _TOKEN.findall(compact)
    if "".join(tokens) != compact or not tokens:
        raise ValueError(f"expression: only digits, + - * and brackets are read, not {text[:40]!r}")
    node, rest = _parse_sum(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"expression: unexpected {tokens[rest]!r} in {text[:40]!r}")
    return node


def reductions(node: Node) -> Iterator[Reduction]:
    """Yield every legal next step from what remains of an expression."""
    if isinstance(node, Sum):
        yield from _sum_reductions(node)
    if isinstance(node, Product):
        yield from _product_reductions(node)


def _parse_sum(tokens: list[str], at: int) -> tuple[Node, int]:
    sign = 1
    if at < len(tokens) and tokens[at] == "-":
        sign, at = -1, at + 1
    node, at = _parse_product(tokens, at)
    terms = [(sign, node)]
    while at < len(tokens) and tokens[at] in "+-":
        sign = 1 if tokens[at] == "+" else -1
        node, at = _parse_product(tokens, at + 1)
        terms.append((sign, node))
    return _sum(terms), at


def _parse_product(tokens: list[str], at: int) -> tuple[Node, int]:
    node, at = _parse_atom(tokens, at)
    factors = [node]
    while at < len(tokens) and tokens[at] == "*":
        node, at = _parse_atom(tokens, at + 1)
        factors.append(node)
    return _product(factors), at


def _parse_atom(tokens: list[str], at: int) -> tuple[Node, int]:
    if at >= len(tokens):
        raise ValueError("expression: ends where a number is due")
    if tokens[at] == "(":
        node, at = _parse_sum(tokens, at + 1)
        if at >= len(tokens) or tokens[at] != ")":
            raise ValueError("expression: a bracket is not closed")
        return node, at + 1
    if not tokens[at].isdigit():
        raise ValueError(f"expression: {tokens[at]!r} where a number is due")
    return int(tokens[at]), at + 1


def _sum(terms: list[tuple[int, Node]]) -> Node:
    """Build a sum in normal form: numbers carry their sign, a lone positive term stands alone."""
    folded = tuple((1, sign * term) if isinstance(term, int) else (sign, term) for sign, term in terms)
    if len(folded) == 1 and folded[0][0] == 1:
        return folded[0][1]
    return Sum(folded)


def _product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def _sum_reductions(node: Sum) -> Iterator[Reduction]:
    terms = list(node.terms)
    for i, (sign, term) in enumerate(terms):

        def inside(new: Node, i: int = i, sign: int = sign) -> Node:
            return _sum([*terms[:i], (sign, new), *terms[i + 1 :]])

        for inner in reductions(term):
            yield _within(inner, inside)
        if i + 1 == len(terms):
            continue
        following = terms[i + 1][1]
        if isinstance(term, int) and isinstance(following, int):

            def merged(value: int, i: int = i) -> Node:
                return _sum([*terms[:i], (1, value), *terms[i + 2 :]])

            yield Reduction(f"{term}{following:+d}", term + following, merged)


def _product_reductions(node: Product) -> Iterator[Reduction]:
    factors = list(node.factors)
    for i, factor in enumerate(factors):

        def inside(new: Node, i: int = i) -> Node:
            return _product([*factors[:i], new, *factors[i + 1 :]])

        for inner in reductions(factor):
            yield _within(inner, inside)
        if i + 1 == len(factors):
            continue
        following = factors[i + 1]
        if isinstance(factor, int) and isinstance(following, int):

            def merged(new: Node, i: int = i) -> Node:
                return _product([*factors[:i], new, *factors[i + 2 :]])

            for pair in _pair_reductions(factor, following):
                yield _within(pair, merged)


def _within(inner: Reduction, place: Callable[[Node], Node]) -> Reduction:
    """Return the same step seen from the node around it."""
    return Reduction(inner.left, inner.value, lambda new: place(inner.rebuild(new)), inner.split)


def _pair_reductions(a: int, b: int) -> Iterator[Reduction]:
    """Yield a*b at once, then the first half of each split of one factor into leading part and rest."""
    yield Reduction(f"{a}*{b}", a * b, lambda value: value)
    if a < 1 or b < 1:
        return
    for part, rest in _parts(b):
        yield _split(f"{a}*{part}", a * part, (a, rest))
    for part, rest in _parts(a):
        yield _split(f"{part}*{b}", part * b, (rest, b))


def _split(left: str, value: int, rest: tuple[int, int]) -> Reduction:
    return Reduction(left, value, lambda new: Sum(((1, new), (1, Product(rest)))), split=True)


def _parts(number: int) -> Iterator[tuple[int, int]]:
    unit = 10 ** (len(str(number)) - 1)
    leading = number // unit * unit
    if 10 <= leading < number:
        yield leading, number - leading
        yield number - leading, leading
