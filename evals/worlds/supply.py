"""What toy worlds share: two splits, problems without end, and texts for a model to learn the language from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from ttc.errors import ConfigError

Split: TypeAlias = Literal["train", "eval"]
MAX_REPEATS = 1000
"""So many draws in a row that were there before mean that there are no others."""
Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a made-up language, at most `max_length` tokens long: what `train.corpora` makes a corpus of.

    `words` are its vocabulary beside the marks of thinking, `pattern` the regular expression of one word. `sample(rng)`
    gives a text; `pair(rng)` gives it as prompt and answer, where the language knows the two apart.
    """

    words: Sequence[str]
    pattern: str
    max_length: int
    sample: Callable[[random.Random], str]
    pair: Callable[[random.Random], tuple[str, str]] | None = None


def check_shares(where: str, **shares: float) -> None:
    """Raise ConfigError for a share that is not in [0, 1]."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{where}: {name} must be in [0, 1], got {share}")


def distinct(
    draw: Callable[[int, int], Drawn], identity: Callable[[Drawn], Hashable], limit: int, shortage: str
) -> Iterator[Drawn]:
    """Yield `limit` different problems; problem i is the same whatever the limit.

    Args:
        draw: makes one, from the number of the attempt and the number of problems before it.
        identity: two draws with one identity are the same problem.
        limit: how many.
        shortage: what the error says when they run out.
    """
    identities: set[Hashable] = set()
    repeats = 0
    for attempt in itertools.count():
        if len(identities) >= limit:
            return
        problem = draw(attempt, len(identities))
        if identity(problem) in identities:
            repeats += 1
            if repeats > MAX_REPEATS:
                raise ConfigError(f"{shortage}; lower the limit")
            continue
        repeats = 0
        identities.add(identity(problem))
        yield problem
