"""The cipher walk: apply a secret permutation n times (`evals.worlds.cipher`). Only thinking gets it right.

A model must have learnt the permutation to say anything sensible; `ttc train run cipher-grpo` makes such a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from evals.task import Item, Task
from evals.worlds.cipher import Cipher, question
from evals.worlds.supply import Split
from ttc.core import Message, Problem, Sampling


def cipher(*, symbols: int = 64, max_steps: int = 12, key: int = 0, split: Split = "eval") -> Task:
    """Apply a secret permutation n times to a symbol.

    Args:
        symbols: size of the permutation, at least 4.
        max_steps: most applications asked for; the difficulty of an item is its n.
        key: which secret permutation; the same key is the same secret everywhere.
        split: eval (one pair in six) or train (the rest).
    """
    secret = Cipher(symbols, max_steps, key)
    return Task(
        name="cipher",
        kind="exact",
        load=lambda limit, seed: list(_items(secret, split))[:limit],
        sampling=Sampling(max_tokens=4 + 2 * max_steps, temperature=1.0),
        params={"symbols": symbols, "max_steps": max_steps, "key": key, "split": split},
        note="needs a model trained on this permutation: ttc train run cipher-grpo",
    )


def _items(secret: Cipher, split: Split) -> Iterator[Item]:
    for start, steps in secret.pairs(split):
        problem = Problem(f"cipher-s{start}n{steps}", (Message("user", question(start, steps)),), "exact", {"n": steps})
        yield Item(problem, f"s{secret.walk(start, steps)[-1]}", difficulty=str(steps))
