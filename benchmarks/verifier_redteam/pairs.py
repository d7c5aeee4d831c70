"""A pair of the red team: a question, its gold, a text, and whether the text is right, known by construction.

A class of pairs is a function that draws one pair. Golds come from datasets (rows with a question and an answer) and,
where a dataset has none of the required form, from questions made here. A text is wrong because its answer was made
from another value than the gold, or because it has no single value.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PEN = ("apples", "dollars", "students", "books", "pages")
MAX_GOLD = 10**7


@dataclass(frozen=True, slots=True)
class Pair:
    """`text` answers `question`, whose answer is `gold`; `right` is whether it should be accepted."""

    question: str
    gold: str
    text: str
    right: bool
    verifier: str = "math"

    @property
    def target(self) -> object:
        """The target for our verifier: the gold and the question."""
        return self.gold if self.verifier == "choice" else {"answer": self.gold, "question": self.question}


@dataclass(frozen=True, slots=True)
class Fact:
    """A question with a whole number for an answer."""

    question: str
    value: int


@dataclass(frozen=True, slots=True)
class Golds:
    """Where facts come from: rows of datasets, and sums made afresh; half of each when there are rows."""

    rows: tuple[Fact, ...] = ()

    def fact(self, rng: random.Random, low: int = -(10**7), high: int = MAX_GOLD) -> Fact:
        """A question whose answer is a whole number in [low, high]."""
        for _ in range(20 if self.rows and rng.random() < 0.5 else 0):
            fact = rng.choice(self.rows)
            if low <= fact.value <= high:
                return fact
        value = rng.choice((rng.randint(2, 99), rng.randint(100, 999), rng.randint(1000, 99_999)))
        value = value if low <= value <= high else rng.randint(max(low, 2), min(high, 10_000))
        part = rng.randint(1, max(1, abs(value)))
        return Fact(f"Compute ${value - part}+{part}$.", value)


Maker = Callable[[random.Random, Golds], Pair]
"""Draws one pair of a class."""


def read_golds(files: Iterable[Path]) -> Golds:
    """The facts in gzipped JSON lines with `problem` (or `question`) and `answer`."""
    return Golds(tuple(fact for file in files for fact in _facts(file)))


def _facts(file: Path) -> Iterable[Fact]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            question, answer = row.get("problem") or row.get("question"), str(row.get("answer", "")).strip("$ ")
            if isinstance(question, str) and re.fullmatch(r"-?\d{1,7}", answer) and "percent" not in question:
                yield Fact(question, int(answer))


_FRAMES = (
    "\\boxed{%s}", "So the answer is $\\boxed{%s}$.", "We add both.\n\nTherefore, \\boxed{%s}.", "\\[\\boxed{%s}\\]",
)  # fmt: skip


def boxed(rng: random.Random, inner: str) -> str:
    """The answer in a box, with a sentence around it or not."""
    return rng.choice(_FRAMES).replace("%s", inner)


def put(template: str, places: Mapping[str, object]) -> str:
    """The template with its places, such as <n>, filled."""
    for name, place in places.items():
        template = template.replace(f"<{name}>", str(place))
    return template


def other(rng: random.Random, value: int) -> int:
    """Another whole number near the value, of any kind of nearness, never the value itself."""
    near = rng.choice((value + rng.randint(1, 9), value - rng.randint(1, 9), value * 10, value + 100, 2 * value + 1))
    return near if near != value else value + 1
