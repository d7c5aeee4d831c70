"""Problems for the `simulated` engine, which knows how likely each step is to succeed; for checking strategies.

The target is what that engine gives when no step fails (`ttc.engines.simulated.truth`); a real model cannot know it.
"""

from __future__ import annotations

from evals.task import Item, Task
from ttc.core import Message, Problem, Sampling
from ttc.engines.simulated import truth

DEFAULT_LIMIT = 1000


def simulated() -> Task:
    """Numbered questions that only the simulated engine can answer."""
    return Task(
        name="simulated",
        kind="number",
        load=lambda limit, seed: [_item(i, seed) for i in range(DEFAULT_LIMIT if limit is None else limit)],
        sampling=Sampling(max_tokens=1024),
    )


def _item(index: int, seed: int) -> Item:
    question = f"What is quantity {index} of batch {seed}?"
    return Item(Problem(f"simulated-s{seed}-{index}", (Message("user", question),), "number"), truth(question))
