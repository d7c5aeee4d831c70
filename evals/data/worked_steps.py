"""Arithmetic worked out line by line: expressions as trees, every legal next step from one, and the exact step checker.

A step reduces one pair of neighbouring numbers of what remains, `71*3=213`; a number is written with its sign, so the
pair (-29, +56) is `-29+56=27`. A factor may be split into its leading part and the rest, `47*30=1410`, then
`47*8=376`, then `1410+376=1786`. The packaged family's worked solutions are made of these steps.

A path is right while each line is a legal step with the right value from what remains of the expression. A line that
begins with `Wait, ` goes back: it must be a right step from some state that the path had reached before, so it can mend
a path that had gone wrong. A step with a final answer is right when that is the expression's value. Other text
(thinking marks, a hand-over) has no label.

Cost: microseconds per step. Left out: division, fractions, steps on numbers that are not neighbours, steps that are
written in another way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ttc import answers
from ttc.core import Problem, TargetLike
from ttc.errors import ConfigError
from ttc.verifiers.steps import StepLabels

STEP_DELIMITER = "\n\n"
WAIT = "Wait, "
MAX_TEXT = 1_000

_TOKEN = re.compile(r"\d+|[-+*()]")


@dataclass(frozen=True, slots=True)
class Sum:
    """Signed terms; a number carries its own sign, so its `sign` field is always 1."""

    terms: tuple[tuple[int, Node], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Factors, left to right."""

    factors: tuple[Node, ...]


Node = int | Sum | Product


@dataclass(frozen=True, slots=True)
class Reduction:
    """One legal step: `left` is written before the equals sign, `value` after it.

    `rebuild` replaces the pair by a number; `split` marks the first part of a split product.
    """

    left: str
    value: int
    rebuild: Callable[[int], Node]
    split: bool = False

    @property
    def line(self) -> str:
        """The step as it is written."""
        return f"{self.left}={self.value}"

    @property
    def rest(self) -> Node:
        """What remains after it."""
        return self.rebuild(self.value)


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
    if isinstance(node, int):
        return
    terms = list(node.terms) if isinstance(node, Sum) else [(1, factor) for factor in node.factors]
    build = _sum if isinstance(node, Sum) else _product
    for i, (sign, term) in enumerate(terms):

        def inside(new: Node, i: int = i, sign: int = sign) -> Node:
            return build([*terms[:i], (sign, new), *terms[i + 1 :]])

        def merged(new: Node, i: int = i) -> Node:
            return build([*terms[:i], (1, new), *terms[i + 2 :]])

        for inner in reductions(term):
            yield _within(inner, inside)
        following = terms[i + 1][1] if i + 1 < len(terms) else None
        if isinstance(term, int) and isinstance(following, int):
            summed = Reduction(f"{term}{following:+d}", term + following, lambda value: value)
            for pair in [summed] if isinstance(node, Sum) else _pair_reductions(term, following):
                yield _within(pair, merged)


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
    factors = [(1, node)]
    while at < len(tokens) and tokens[at] == "*":
        node, at = _parse_atom(tokens, at + 1)
        factors.append((1, node))
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


def _product(factors: list[tuple[int, Node]]) -> Node:
    """Build a product of factors, whose signs are their own; a lone one stands alone."""
    return factors[0][1] if len(factors) == 1 else Product(tuple(factor for _, factor in factors))


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


_STEP = re.compile(r"(Wait, )?(-?\d+[+*-]-?\d+)=(-?\d+)")


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


@dataclass(frozen=True, slots=True)
class WorkedStep:
    """One parsed line of work."""

    wait: bool
    left: str
    value: int


def parse_step(line: str) -> WorkedStep | None:
    """Read one line of work, without its delimiter; None when it is not a step."""
    match = _STEP.fullmatch(line)
    if match is None or len(line) > MAX_TEXT:
        return None
    return WorkedStep(match[1] is not None, match[2], int(match[3]))


@dataclass(frozen=True, slots=True)
class WorkedPath:
    """How far a path of steps has come, and whether it is still right.

    `states` are the expressions that may remain (several when one line fits two equal pairs). `seen` are all states
    that the path was in while on track, to which `Wait, ` may return.
    """

    states: frozenset[Node]
    seen: frozenset[Node]
    on_track: bool = True

    @classmethod
    def start(cls, expression: Node) -> WorkedPath:
        """Return the progress of an empty path."""
        states = frozenset({expression})
        return cls(states, states)

    @property
    def done(self) -> bool:
        """Return whether the path is right and only the value remains."""
        return self.on_track and any(isinstance(state, int) for state in self.states)

    def step(self, line: str) -> WorkedPath:
        """Follow one line; a wrong or illegal one leaves the track until a `Wait, ` mends it."""
        step = parse_step(line)
        if step is None:
            return WorkedPath(self.states, self.seen, on_track=False)
        reached = frozenset(
            reduction.rest
            for state in self._sources(step)
            for reduction in reductions(state)
            if reduction.left == step.left and reduction.value == step.value
        )
        if not reached:
            return WorkedPath(self.states, self.seen, on_track=False)
        return WorkedPath(reached, self.seen | reached)

    def _sources(self, step: WorkedStep) -> frozenset[Node]:
        if step.wait:
            return self.seen
        return self.states if self.on_track else frozenset()


_QUESTION = re.compile(r"[\d(-][\d+*() -]*")
_MARKS = re.compile(r"</?think>")


class ArithmeticSteps:
    """The exact checker as a `StepChecker`: problems of the task `arithmetic`."""

    name = "arithmetic"
    version = "arithmetic-steps-1"

    async def check(self, problem: Problem, target: TargetLike, steps: Sequence[str]) -> StepLabels:
        """Label every step; `target` is not needed, the value is computed. Raises ConfigError for another problem."""
        question = _QUESTION.search(problem.messages[-1].content)
        try:
            truth = parse(question[0].strip() if question else "")
        except ValueError as exc:
            raise ConfigError(f"problem {problem.id!r} asks for no expression of whole numbers: {exc}") from exc
        progress, labels = WorkedPath.start(truth), list[float | None]()
        for step in steps:
            bare = _MARKS.sub("", step).strip()
            if parse_step(bare) is not None:
                progress = progress.step(bare)
                labels.append(float(progress.on_track))
            else:
                final = answers.extract(bare, "math").final
                labels.append(None if final is None else float(final == str(evaluate(truth))))
        return StepLabels(tuple(labels), self.version)
