"""Procedural arithmetic: an endless supply of problems, their exact values, and an exact step checker.

What: expressions of +, - and * over whole numbers, by level; every intermediate step of a worked
solution can be checked exactly, so a search, a reward model or a report can be held to the truth.

| level | operations | operands | second factor | largest value inside |
|-------|------------|----------|---------------|----------------------|
| 1     | 1          | 1..99    | 2..9          | 999                  |
| 2     | 2          | 1..99    | 2..9          | 999                  |
| 3     | 3..4       | 1..99    | 2..9          | 9,999                |
| 4     | 4..5       | 1..99    | 2..99         | 9,999                |
| 5     | 5..6       | 1..99    | 2..99         | 9,999                |
| 6     | 7..8       | 1..99    | 2..99         | 99,999               |
| 7     | 9..10      | 1..999   | 2..99         | 999,999              |

Splits: a hash of the expression's text, which is also its identity, decides between `train` and
`eval`; an expression therefore belongs to one split whatever the level, seed or wording.

Steps: one line reduces one pair of neighbouring numbers of what remains, `71*3=213`; a number is
written with its sign, so the pair (-29, +56) is `-29+56=27`. A factor may be split into its leading
part and the rest, `47*30=1410`, then `47*8=376`, then `1410+376=1786`. A line that begins with
`Wait, ` goes back: it must be a right step from any state that the path had reached before.

Cost: microseconds per step. Left out: division, fractions, steps on numbers that are not neighbours.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "eval"]

PROMPT = "Compute {expression}."
STEP_DELIMITER = "\n\n"
WAIT = "Wait, "
DEFAULT_LEVEL = 4
MAX_TEXT = 1_000
_EVAL_SHARE = 8  # one expression in eight is held out

_STEP = re.compile(r"(Wait, )?(-?\d+[+*-]-?\d+)=(-?\d+)")
_TOKEN = re.compile(r"\d+|[-+*()]")


@dataclass(frozen=True, slots=True)
class Level:
    """The ranges that one level draws from."""

    min_ops: int
    max_ops: int
    max_operand: int
    max_factor: int
    max_value: int


LEVELS: dict[int, Level] = {
    1: Level(1, 1, 99, 9, 999),
    2: Level(2, 2, 99, 9, 999),
    3: Level(3, 4, 99, 9, 9_999),
    4: Level(4, 5, 99, 99, 9_999),
    5: Level(5, 6, 99, 99, 9_999),
    6: Level(7, 8, 99, 99, 99_999),
    7: Level(9, 10, 999, 99, 999_999),
}


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
class Expression:
    """A problem: its canonical text, which is its identity, and its exact value."""

    text: str
    value: int

    @property
    def split(self) -> Split:
        """Return the split that this expression belongs to, decided by a hash of its text."""
        digest = hashlib.sha256(self.text.encode()).digest()
        return "eval" if digest[0] % _EVAL_SHARE == 0 else "train"

    @property
    def prompt(self) -> str:
        """Return the question as it is asked."""
        return PROMPT.format(expression=self.text)


@dataclass(frozen=True, slots=True)
class Reduction:
    """One legal step: `left` is written before the equals sign, `value` after it.

    `rebuild` puts a number in the place of the pair; `split` marks the first part of a split product.
    """

    left: str
    value: int
    rebuild: Callable[[int], Node]
    split: bool = False

    @property
    def result(self) -> Node:
        """Return what remains after the step."""
        return self.rebuild(self.value)

    @property
    def text(self) -> str:
        """Return the step as one line."""
        return f"{self.left}={self.value}"


@dataclass(frozen=True, slots=True)
class Step:
    """One parsed line of work."""

    wait: bool
    left: str
    value: int


def sample_expression(rng: random.Random, level: int, split: Split) -> Expression:
    """Draw one expression of a level that belongs to the split.

    Raises:
        ValueError: the level is not one of `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"level: {level} is not one of {sorted(LEVELS)}")
    spec = LEVELS[level]
    while True:
        drawn = _draw(rng, rng.randint(spec.min_ops, spec.max_ops), spec)
        if drawn is None:
            continue
        expression = Expression(drawn[0], drawn[2])
        if expression.split == split:
            return expression


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


def evaluate(node: Node) -> int:
    """Return the exact value of a node."""
    if isinstance(node, int):
        return node
    if isinstance(node, Sum):
        return sum(sign * evaluate(term) for sign, term in node.terms)
    value = 1
    for factor in node.factors:
        value *= evaluate(factor)
    return value


def expression(text: str) -> Expression:
    """Parse and evaluate a text; spaces are dropped.

    Raises:
        ValueError: as `parse`.
    """
    return Expression(text.replace(" ", ""), evaluate(parse(text)))


def reductions(node: Node) -> Iterator[Reduction]:
    """Yield every legal next step from what remains of an expression."""
    if isinstance(node, Sum):
        yield from _sum_reductions(node)
    if isinstance(node, Product):
        yield from _product_reductions(node)


def parse_step(line: str) -> Step | None:
    """Read one line of work, without its delimiter; None when it is not a step."""
    found = _STEP.fullmatch(line)
    if found is None or len(line) > MAX_TEXT:
        return None
    return Step(found[1] is not None, found[2], int(found[3]))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a path of steps has come, and whether it is still right.

    `states` are the expressions that may remain (several when one line fits two equal pairs);
    `seen` are all the states that the path was in while on track, which `Wait, ` may return to.
    """

    states: frozenset[Node]
    seen: frozenset[Node]
    on_track: bool = True

    @classmethod
    def start(cls, expression: Expression) -> "Progress":
        """Return the progress of an empty path."""
        states = frozenset({parse(expression.text)})
        return cls(states, states)

    @property
    def done(self) -> bool:
        """Return whether the path is right and only the value remains."""
        return self.on_track and any(isinstance(state, int) for state in self.states)

    def step(self, line: str) -> "Progress":
        """Follow one line; a wrong or illegal one leaves the track until a `Wait, ` mends it."""
        step = parse_step(line)
        if step is None:
            return Progress(self.states, self.seen, on_track=False)
        reached = frozenset(
            reduction.result
            for state in self._sources(step)
            for reduction in reductions(state)
            if reduction.left == step.left and reduction.value == step.value
        )
        if not reached:
            return Progress(self.states, self.seen, on_track=False)
        return Progress(reached, self.seen | reached)

    def right_value(self, left: str, wait: bool) -> int | None:
        """Return what a step with this left side must equal here; None when it is not legal."""
        for state in self._sources(Step(wait, left, 0)):
            for reduction in reductions(state):
                if reduction.left == left:
                    return reduction.value
        return None

    def _sources(self, step: Step) -> frozenset[Node]:
        if step.wait:
            return self.seen
        return self.states if self.on_track else frozenset()


def _draw(rng: random.Random, ops: int, spec: Level) -> tuple[str, str, int] | None:
    """Draw (text, kind, value) with exactly `ops` operations; None when out of range."""
    if ops == 0:
        value = rng.randint(1, spec.max_operand)
        return str(value), "number", value
    operator = rng.choices("+-*", (40, 30, 30))[0]
    if operator == "*":
        return _draw_product(rng, ops, spec)
    left_ops = rng.randrange(ops)
    left = _draw(rng, left_ops, spec)
    right = _draw(rng, ops - 1 - left_ops, spec)
    if left is None or right is None:
        return None
    value = left[2] + right[2] if operator == "+" else left[2] - right[2]
    if abs(value) > spec.max_value:
        return None
    return f"{left[0]}{operator}{_bracketed(right)}", "sum", value


def _draw_product(rng: random.Random, ops: int, spec: Level) -> tuple[str, str, int] | None:
    inner = _draw(rng, ops - 1, spec)
    if inner is None or not 2 <= inner[2] <= 999:
        return None
    factor = rng.randint(2, spec.max_factor if rng.random() < 0.3 else 9)
    value = inner[2] * factor
    if value > spec.max_value:
        return None
    pair = [_bracketed(inner), str(factor)]
    rng.shuffle(pair)
    return "*".join(pair), "product", value


def _bracketed(part: tuple[str, str, int]) -> str:
    return f"({part[0]})" if part[1] == "sum" else part[0]


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
    folded = tuple(
        (1, sign * term) if isinstance(term, int) else (sign, term) for sign, term in terms
    )
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
