r"""Arithmetic of five families, each with its worked solution in short local steps.

    family      question                                              steps
    expression  Compute (23+48)*3-17.                                 23+48=71, 71*3=213, 213-17=196
    remainder   What is 347 mod 12?                                   347-240=107, 107-96=11
    gcd         What is the gcd of 84 and 36?                         84 mod 36=12, 36 mod 12=0
    digits      What is the sum of the digits of 98347?               9+8=17, 17+3=20, 20+4=24, 24+7=31
    largest     What is the largest of 37, 91, 24, 66?                37<91, 91>24, 91>66

Made to train models of some 10 to 50 million parameters on one GPU (`python -m train.gpu`), and to see what
reinforcement adds in each family. Level 1, 2 or 3 makes numbers and lists longer. Answers are whole numbers in a box
and are compared as they are, so nothing but the standard library judges them. Splits: a hash of the question puts one
in eight aside. Cost: microseconds. Left out: fractions, division with digits after the point.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from evals.data.worked_steps import STEP_DELIMITER, parse, reductions
from evals.task import Item, Split, Task, distinct
from evals.tasks.arithmetic import sample_expression
from ttc import seeds
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError, UnknownName

LEVELS = (1, 2, 3)
_HELD_OUT = 8


@dataclass(frozen=True, slots=True)
class WorkedExercise:
    """A question, its worked steps and its answer."""

    family: str
    level: int
    question: str
    steps: tuple[str, ...]
    value: int

    @property
    def split(self) -> Split:
        """The split that it belongs to, by a hash of its question."""
        return "train" if hashlib.sha256(self.question.encode()).digest()[0] % _HELD_OUT else "eval"

    @property
    def worked(self) -> str:
        """The steps as text, each ended by the delimiter of steps."""
        return "".join(step + STEP_DELIMITER for step in self.steps)


_Draft = tuple[str, list[str], int]
"""Question, steps, answer."""


def _expression(rng: random.Random, level: int) -> _Draft:
    problem = sample_expression(rng, level + 1, "train" if rng.random() < 0.5 else "eval")
    node, steps = parse(problem.text), []
    while not isinstance(node, int):
        step = next(each for each in reductions(node) if not each.split)
        steps.append(step.line)
        node = step.rest
    return problem.prompt, steps, node


def _remainder(rng: random.Random, level: int) -> _Draft:
    number, divisor = rng.randrange(10**level, 10 ** (level + 1)), rng.randint(3, 9 + 30 * (level - 1))
    steps, left = [], number
    for power in (1000, 100, 10, 1):
        times = left // (divisor * power)
        if times:
            steps.append(f"{left}-{divisor * power * times}={left - divisor * power * times}")
            left -= divisor * power * times
    return f"What is {number} mod {divisor}?", steps, left


def _gcd(rng: random.Random, level: int) -> _Draft:
    common, top = rng.randint(1, 12), 8 * 3**level
    first, second = common * rng.randint(2, top), common * rng.randint(2, top)
    question, steps = f"What is the gcd of {first} and {second}?", []
    while second:
        steps.append(f"{first} mod {second}={first % second}")
        first, second = second, first % second
    return question, steps, first


def _digits(rng: random.Random, level: int) -> _Draft:
    number = rng.randrange(10 ** (2 * level), 10 ** (2 * level + 2))
    first, *rest = map(int, str(number))
    steps, total = [], first
    for digit in rest:
        steps.append(f"{total}+{digit}={total + digit}")
        total += digit
    return f"What is the sum of the digits of {number}?", steps, total


def _largest(rng: random.Random, level: int) -> _Draft:
    numbers = rng.sample(range(10, 10 ** (level + 1)), 2 + 2 * level)
    steps, best = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{best}{'<' if best < number else '>'}{number}")
        best = max(best, number)
    return f"What is the largest of {', '.join(map(str, numbers))}?", steps, best


FAMILIES: Mapping[str, Callable[[random.Random, int], _Draft]] = MappingProxyType(
    {"expression": _expression, "remainder": _remainder, "gcd": _gcd, "digits": _digits, "largest": _largest}
)


def sample_exercise(rng: random.Random, family: str, level: int, split: Split) -> WorkedExercise:
    """Draw one exercise of a family and a level that belongs to the split."""
    while True:
        question, steps, value = FAMILIES[family](rng, level)
        exercise = WorkedExercise(family, level, question, tuple(steps), value)
        if exercise.split == split:
            return exercise


DEFAULT_LIMIT = 1000


def families(*, family: str | None = None, level: int | None = None, split: Split = "eval") -> Task:
    """Exercises of one family or all, at one level or all.

    Args:
        family: expression, remainder, gcd, digits or largest; absent: all in turn.
        level: 1, 2 or 3; absent: all in turn.
        split: eval (what is measured on) or train; no question is in both.
    """
    if family is not None and family not in FAMILIES:
        raise UnknownName("family", family, FAMILIES)
    if level is not None and level not in LEVELS:
        raise ConfigError(f"families: level must be one of {', '.join(map(str, LEVELS))}, got {level}")
    kinds = [(name, number) for number in LEVELS for name in FAMILIES]
    kinds = [kind for kind in kinds if family in (None, kind[0]) and level in (None, kind[1])]
    return Task(
        name="families",
        kind="exact",
        load=lambda limit, seed: _items(kinds, split, DEFAULT_LIMIT if limit is None else limit, seed),
        sampling=Sampling(max_tokens=256, temperature=1.0),
        params={"family": family, "level": level, "split": split},
        note="needs a model of its own: python -m train.gpu",
        procedural=True,
    )


def _items(kinds: Sequence[tuple[str, int]], split: Split, limit: int, seed: int) -> Iterator[Item]:
    rng = random.Random(seeds.derive(seed, "families", split))
    exercises = distinct(
        lambda _, number: sample_exercise(rng, *kinds[number % len(kinds)], split),
        lambda exercise: exercise.question,
        limit,
        f"families has fewer than {limit} exercises of these kinds",
    )
    for number, each in enumerate(exercises):
        name = f"families-{each.family}-{each.level}-{split}-{number}"
        meta = {"family": each.family, "level": each.level}
        problem = Problem(name, (Message("user", each.question),), "exact", meta)
        yield Item(problem, str(each.value), each.question, f"{each.family} {each.level}")
