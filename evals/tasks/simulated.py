"""Problems for the `simulated` engine, which knows how likely each step is to succeed; for checking strategies.

The target is what that engine gives when no step fails (`ttc.engines.simulated.truth`); a real model cannot know it.
A level is named in the question, and the engine's success follows it, unless it has a `p` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

from evals.task import Item, Task
from ttc.core import Message, Problem, Sampling
from ttc.engines.simulated import truth

DEFAULT_LIMIT = 1000


def simulated(*, level: Literal["1", "2", "3", "4", "5", "mixed"] | None = None) -> Task:
    """Numbered questions that only the simulated engine can answer.

    Args:
        level: difficulty from 1 to 5, or all of them in turn; absent: the engine's own.
    """
    return Task(
        name="simulated",
        kind="number",
        load=lambda limit, seed: _Items(range(DEFAULT_LIMIT if limit is None else limit), seed, level),
        sampling=Sampling(max_tokens=1024),
        params={} if level is None else {"level": level},
        procedural=True,
    )


@dataclass(frozen=True, slots=True)
class _Items(Sequence[Item]):
    """Items of these numbers, made on access: a hundred thousand take no memory."""

    numbers: range
    seed: int
    level: str | None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | Sequence[Item]:
        selection = self.numbers[at]
        if isinstance(selection, range):
            return _Items(selection, self.seed, self.level)
        return _item(selection, self.seed, self.level)


def _item(index: int, seed: int, level: str | None) -> Item:
    own = str(1 + index % 5) if level == "mixed" else level
    at = "" if own is None else f" at level {own}"
    question = f"What is quantity {index} of batch {seed}{at}?"
    name = f"simulated-s{seed}-{'' if level is None else f'{level}-'}{index}"
    return Item(Problem(name, (Message("user", question),), "number"), truth(question), difficulty=own)
