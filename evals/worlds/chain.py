"""Chains of operations modulo 10, worked one step at a time, where a wrong step may be noticed and done again.

    4a+3b*7c-2=<think>a4+3=7.b7*7=9.c9-2=7.</think>7
    4a+3b*7c-2=<think>a4+3=7.b7*7=8!9.c9-2=7.</think>7    the wrong product is marked by ! and done again

The operations are done from left to right, and only the last digit is carried on: 7*7 is 9. Letters name the steps, so
that a small model finds its place in the question. The smallest language in which a model writes itself into places
that no right text leads to: whoever learns from right texts alone never sees a mistake of its own, and so never learns
to notice it.

Summands are 1 to 3; factors are 3, 7 and 9, so that no chain falls to 0 and stays there. Nine operations on ten digits
are ninety facts, few enough for a model of thirty thousand parameters. Splits: a hash of the question puts one in six
aside for evaluation. Cost: microseconds. Left out: brackets and precedence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ttc import seeds
from ttc.errors import ConfigError

__all__ = ["NAMES", "OPERATIONS", "Chain", "Chains", "Split"]

Split = Literal["train", "eval"]
OPERATIONS = "+-*"
NAMES = "abcdefghij"
"""What the steps are called, in order."""
HELD_OUT = 6
"""One question in this many is for evaluation."""
_DIGITS = {"+": (1, 2, 3), "-": (1, 2, 3), "*": (3, 7, 9)}
_MAX_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class Chain:
    """A first digit, then (operation, digit) once per step."""

    first: int
    steps: tuple[tuple[str, int], ...]

    @property
    def question(self) -> str:
        """The prompt's text."""
        named = zip(NAMES, self.steps, strict=False)
        return f"{self.first}{''.join(f'{name}{operation}{digit}' for name, (operation, digit) in named)}="

    @property
    def value(self) -> int:
        """The right answer."""
        value = self.first
        for operation, digit in self.steps:
            value = apply(value, operation, digit)
        return value


def apply(value: int, operation: str, digit: int) -> int:
    """One step, modulo 10."""
    results = {"+": value + digit, "-": value - digit, "*": value * digit}
    return results[operation] % 10


class Chains:
    """All chains of `length` steps over some operations."""

    def __init__(self, length: int, operations: str) -> None:
        if not 1 <= length <= len(NAMES):
            raise ConfigError(f"chain: length must be from 1 to {len(NAMES)}, got {length}")
        if not operations or set(operations) - set(OPERATIONS):
            raise ConfigError(f"chain: operations must be some of {OPERATIONS}, got {operations!r}")
        self.length, self.operations = length, "".join(sorted(set(operations)))

    def draw(self, rng: random.Random, split: Split) -> Chain:
        """One chain of a split."""
        while True:
            steps = tuple(self._step(rng) for _ in range(self.length))
            chain = Chain(rng.randrange(10), steps)
            if (seeds.derive(0, "chain", chain.question) % HELD_OUT == 0) == (split == "eval"):
                return chain

    def distinct(self, split: Split, seed: int, limit: int) -> Iterator[Chain]:
        """`limit` different chains; chain i is the same whatever the limit. Raises ConfigError when they run out."""
        rng = random.Random(seeds.derive(seed, "chains", self.length, self.operations, split))
        questions: set[str] = set()
        repeats = 0
        while len(questions) < limit:
            chain = self.draw(rng, split)
            repeats = repeats + 1 if chain.question in questions else 0
            if repeats > _MAX_REPEATS:
                raise ConfigError(f"chain: fewer than {limit} different chains of {self.length} steps; lower the limit")
            if not repeats:
                questions.add(chain.question)
                yield chain

    def _step(self, rng: random.Random) -> tuple[str, int]:
        operation = rng.choice(self.operations)
        return operation, rng.choice(_DIGITS[operation])
