"""Two-digit calculations that need a calculator (`evals.worlds.calculation`). Made for training a model to call one.

A model must have learnt the language to say anything sensible; `ttc train run async-agentic` makes such a model. Its
calls are answered by `--strategy tools --set tools.instruct=false`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from evals.task import Item, Task
from evals.worlds.calculation import sample_calculation
from evals.worlds.supply import Split, distinct
from ttc import seeds
from ttc.core import Message, Problem, Sampling

DEFAULT_LIMIT = 1000


def calculation(*, split: Split = "eval") -> Task:
    """Work out the sum, difference or product of two numbers of two digits.

    Args:
        split: eval (one problem in six) or train (the rest).
    """
    return Task(
        name="calculation",
        kind="exact",
        load=lambda limit, seed: _items(split, DEFAULT_LIMIT if limit is None else limit, seed),
        sampling=Sampling(max_tokens=24, temperature=1.0),
        params={"split": split},
        note="needs a model of this language: ttc train run async-agentic",
        procedural=True,
    )


def _items(split: Split, limit: int, seed: int) -> Iterator[Item]:
    rng = random.Random(seeds.derive(seed, "calculation", split))
    shortage = f"calculation has fewer than {limit} problems"
    for each in distinct(lambda *_: sample_calculation(rng, split), lambda each: each.text, limit, shortage):
        problem = Problem(f"calculation-{each.text}", (Message("user", each.question),), "exact")
        yield Item(problem, str(each.value), difficulty=each.operation)
