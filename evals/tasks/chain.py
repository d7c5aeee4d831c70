"""Chains of operations modulo 10 (`evals.worlds.chain`). Made for distillation: mistakes can be taken back.

A model must have learnt the language to say anything sensible; the stage `pretrain` with the corpus `chain` makes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from evals.task import Item, Task
from evals.worlds.chain import OPERATIONS, Chains
from evals.worlds.supply import Split
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError

DEFAULT_LIMIT = 2000
_FLAGS = {"none": "", "think": "/think", "no_think": "/no_think"}


def chain(
    *,
    length: int = 6,
    operations: str = OPERATIONS,
    split: Split = "eval",
    count: int = DEFAULT_LIMIT,
    flag: Literal["none", "think", "no_think"] = "none",
) -> Task:
    """Work a chain of additions, subtractions and multiplications modulo 10.

    Args:
        length: operations in a chain, at most 10.
        operations: which of +, - and *.
        split: eval (one question in six) or train (the rest).
        count: how many problems there are, at most.
        flag: put /think or /no_think behind the question.
    """
    chains = Chains(length, operations)
    if count < 1:
        raise ConfigError(f"chain: count must be at least 1, got {count}")
    return Task(
        name="chain",
        kind="exact",
        load=lambda limit, seed: _items(chains, split, min(limit or count, count), seed, _FLAGS[flag]),
        sampling=Sampling(max_tokens=9 * length + 5, temperature=1.0),
        params={"length": length, "operations": operations, "split": split, "count": count, "flag": flag},
        note="needs a model that has learnt the language: see distill/examples",
        procedural=True,
    )


def _items(chains: Chains, split: Split, limit: int, seed: int, flag: str) -> Iterator[Item]:
    for one in chains.distinct(split, seed, limit):
        problem = Problem(
            f"chain-{one.question}{flag}",
            (Message("user", one.question + flag),),
            "exact",
            {"length": chains.length},
        )
        yield Item(problem, str(one.value), one.question, str(chains.length))
