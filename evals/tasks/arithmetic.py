"""Procedural arithmetic by level, held out from every training split; the target is the exact value.

Expressions of +, - and * over whole numbers, by level:

| level | operations | operands | second factor | largest value inside |
|-------|------------|----------|---------------|----------------------|
| 1     | 1          | 1..99    | 2..9          | 999                  |
| 2     | 2          | 1..99    | 2..9          | 999                  |
| 3     | 3..4       | 1..99    | 2..9          | 9,999                |
| 4     | 4..5       | 1..99    | 2..99         | 9,999                |
| 5     | 5..6       | 1..99    | 2..99         | 9,999                |
| 6     | 7..8       | 1..99    | 2..99         | 99,999               |
| 7     | 9..10      | 1..999   | 2..99         | 999,999              |

Splits: a hash of the expression's text, which is also its identity, decides between `train` and `eval`; an expression
therefore belongs to one split whatever the level, seed or wording. Problems never run out and cost microseconds;
problem i of a seed is the same whatever the limit. The question is bare (`Compute (23+48)*3-17.`): that is what the
packaged family was trained on. Written with spaces (`Compute (23 + 48) * 3 - 17.`) it is a wording that the family
never saw. Left out: division and fractions. How an expression is worked out step by step is in
`evals.data.worked_steps`.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from evals.task import Item, Split, Task, distinct
from ttc import seeds
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError

PROMPT = "Compute {expression}."
DEFAULT_LEVEL = 4
_EVAL_SHARE = 8  # one expression in eight is held out


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
class ArithmeticProblem:
    """A problem: its canonical text, which is its identity, and its exact value."""

    text: str
    value: int

    @property
    def split(self) -> Split:
        """Return the split that this expression belongs to."""
        return split_of(self.text)

    @property
    def prompt(self) -> str:
        """Return the question as it is asked."""
        return PROMPT.format(expression=self.text)


def split_of(text: str) -> Split:
    """Return the split that an expression belongs to, decided by a hash of its text."""
    return "eval" if hashlib.sha256(text.encode()).digest()[0] % _EVAL_SHARE == 0 else "train"


def sample_expression(rng: random.Random, level: int, split: Split) -> ArithmeticProblem:
    """Draw one expression of a level that belongs to the split.

    Raises:
        ValueError: the level is not one of `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"level: {level} is not one of {sorted(LEVELS)}")
    spec = LEVELS[level]
    while True:
        draft = _draw(rng, rng.randint(spec.min_ops, spec.max_ops), spec)
        if draft is not None and split_of(draft[0]) == split:
            return ArithmeticProblem(draft[0], draft[2])


def _draw(rng: random.Random, ops: int, spec: Level) -> tuple[str, str, int] | None:
    """Draw (text, kind, value) with exactly `ops` operations; None when out of range."""
    if ops == 0:
        value = rng.randrange(1, spec.max_operand + 1)
        return str(value), "number", value
    percent = 100 * rng.random()
    if percent >= 70:
        return _draw_product(rng, ops, spec)
    operator = "+" if percent < 40 else "-"
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
    factor = rng.randrange(2, (spec.max_factor if rng.random() < 0.3 else 9) + 1)
    value = inner[2] * factor
    if value > spec.max_value:
        return None
    pair = [_bracketed(inner), str(factor)]
    rng.shuffle(pair)
    return "*".join(pair), "product", value


def _bracketed(part: tuple[str, str, int]) -> str:
    return f"({part[0]})" if part[1] == "sum" else part[0]


DEFAULT_LIMIT = 1000

Wording = Literal["bare", "spaced"]


def arithmetic(*, level: int = DEFAULT_LEVEL, split: Split = "eval", wording: Wording = "bare") -> Task:
    """Evaluate expressions of +, - and * over whole numbers.

    Args:
        level: difficulty, 1 (one operation) to 7 (nine or ten).
        split: eval (what is measured on) or train; no expression is in both.
        wording: bare, or spaced for spaces around every operator.
    """
    if level not in LEVELS:
        raise ConfigError(f"arithmetic: level must be one of {sorted(LEVELS)}, got {level}")
    choices = {"split": (split, "eval"), "wording": (wording, "bare")}
    changed = {name: value for name, (value, default) in choices.items() if value != default}
    return Task(
        name="arithmetic",
        kind="number",
        load=lambda limit, seed: map(
            _WORDINGS[wording], _items(level, split, DEFAULT_LIMIT if limit is None else limit, seed)
        ),
        sampling=Sampling(max_tokens=512),
        params={"level": level, **changed},
        procedural=True,
    )


_UNREACHED = 20
"""Draws of a level reach all but this share of its problems before they repeat too often."""


def _single_operations(spec: Level) -> set[str]:
    """Every expression of one operation: a level with only these has so few that they can run out."""
    operands, factors = range(1, spec.max_operand + 1), range(2, spec.max_factor + 1)
    sums = {f"{left}{sign}{right}" for left in operands for right in operands for sign in "+-"}
    pairs = ((str(operand), str(factor)) for operand in operands[1:] for factor in factors)
    return sums | {text for pair in pairs for text in ("*".join(pair), "*".join(reversed(pair)))}


def _spaced(item: Item) -> Item:
    """The same item with spaces around its operators."""
    (message,) = item.problem.messages
    spaced_message = Message(message.role, re.sub(r"(?<=[\d)])([-+*])", r" \1 ", message.content))
    return replace(item, problem=replace(item.problem, id=f"{item.problem.id}-spaced", messages=(spaced_message,)))


_WORDINGS = MappingProxyType({"bare": lambda item: item, "spaced": _spaced})


def _items(level: int, split: Split, limit: int, seed: int) -> Iterator[Item]:
    shortage = f"arithmetic level {level} has fewer than {limit} distinct problems"
    if level == 1 and limit > DEFAULT_LIMIT:
        number = sum(split_of(text) == split for text in _single_operations(LEVELS[level]))
        if limit > number:
            most = number - number // _UNREACHED
            raise ConfigError(f"{shortage}, {number:,} in split {split}; lower the limit to {most} or less")
    expressions = distinct(
        lambda i, _: sample_expression(random.Random(seeds.derive(seed, "arithmetic", level, i)), level, split),
        lambda expression: expression.text,
        limit,
        shortage,
    )
    for number, expression in enumerate(expressions):
        name = f"arithmetic-l{level}-s{seed}-{'' if split == 'eval' else 'train-'}{number}"
        problem = Problem(name, (Message("user", expression.prompt),), "number", {"level": level})
        yield Item(problem, str(expression.value), expression.text, str(level))
