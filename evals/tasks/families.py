"""Arithmetic of five families (`evals.worlds.families`): sums, remainders, common divisors, digits, largest.

Made for training a model of one's own: `python -m train.gpu`. Answers are whole numbers in a box and are compared as
they are, so nothing but the standard library judges them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from evals.task import Item, Task
from evals.worlds.families import FAMILIES, LEVELS, sample_exercise
from evals.worlds.supply import Split, distinct
from ttc import seeds
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError, UnknownName

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
