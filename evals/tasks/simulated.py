"""Problems for the `simulated` engine, which knows how likely each step is to succeed; for checking strategies.

The target is what that engine gives when no step fails (`ttc.engines.simulated.truth`); a real model cannot know it.
A level is named in the question, and the engine's success follows it, unless it has a `p` of its own.
"""

from __future__ import annotations

from typing import Literal

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
        load=lambda limit, seed: [_item(i, seed, level) for i in range(DEFAULT_LIMIT if limit is None else limit)],
        sampling=Sampling(max_tokens=1024),
        params={} if level is None else {"level": level},
    )


def _item(index: int, seed: int, level: str | None) -> Item:
    own = str(1 + index % 5) if level == "mixed" else level
    at = "" if own is None else f" at level {own}"
    question = f"What is quantity {index} of batch {seed}{at}?"
    name = f"simulated-s{seed}-{'' if level is None else f'{level}-'}{index}"
    return Item(Problem(name, (Message("user", question),), "number"), truth(question), difficulty=own)
