"""Chains of operations modulo 10, worked one step at a time, where a wrong step may be noticed and done again.

    4a+3b*7c-2=<think>a4+3=7.b7*7=9.c9-2=7.</think>7
    4a+3b*7c-2=<think>a4+3=7.b7*7=8!9.c9-2=7.</think>7    the wrong product is marked by ! and done again

The operations are done from left to right, and only the last digit is carried on: 7*7 is 9. Letters name the steps, so
that a small model finds its place in the question. This is the smallest language in which a model can write itself into
states that no right text leads to. A model that learns from right texts alone never sees a mistake of its own, so it
never learns to notice one. Made for distillation.

Summands are 1 to 3; factors are 3, 7 and 9, so that no chain falls to 0 and stays there. Nine operations on ten digits
are ninety facts, few enough for a model of thirty thousand parameters. Splits: a hash of the question puts one in six
aside for evaluation. Cost: microseconds. A model must have learnt the language to say anything sensible; the stage
`pretrain` with the corpus `chain` (`chain_texts`) makes one. Left out: brackets and precedence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from evals.task import Item, Split, Task, Texts, check_shares, distinct
from ttc import seeds
from ttc.config.values import counted
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError

OPERATIONS = "+-*"
NAMES = "abcdefghij"
"""The names of the steps, in order."""
HELD_OUT = 6
"""One question in this many is for evaluation."""
_DIGITS = {"+": (1, 2, 3), "-": (1, 2, 3), "*": (3, 7, 9)}
_PATTERN = r"/think|/no_think|[0-9+\-*=.!a-j]"
_WORDS = (*"0123456789", *NAMES, *OPERATIONS, "=", ".", "!", "/think", "/no_think")


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
        shortage = f"chain: fewer than {limit} different chains of {counted(self.length, 'step')}"
        return distinct(lambda *_: self.draw(rng, split), lambda chain: chain.question, limit, shortage)

    def _step(self, rng: random.Random) -> tuple[str, int]:
        operation = rng.choice(self.operations)
        return operation, rng.choice(_DIGITS[operation])


def chain_texts(
    chains: Chains, *, thinking_share: float, right_share: float, noise: float, noticed: float, most: int
) -> Texts:
    """Questions of the training split, worked by a careless writer; see `train.corpora.chain`."""
    shares = {"thinking_share": thinking_share, "right_share": right_share, "noise": noise, "noticed": noticed}
    check_shares("corpus chain", **shares)

    def sample(rng: random.Random) -> str:
        chain = chains.draw(rng, "train")
        if rng.random() < thinking_share:
            return chain.question + _worked(chain, noise, noticed, most, rng)
        right = rng.random() < right_share
        return f"{chain.question}<think></think>{chain.value if right else rng.randrange(10)}"

    return Texts(_WORDS, _PATTERN, 3 * chains.length + 3 + 9 * chains.length + 6, sample)


def _worked(chain: Chain, noise: float, noticed: float, most: int, rng: random.Random) -> str:
    """The steps as a careless writer puts them down, with the answer that they lead to."""
    value, text, again = chain.first, "", 0
    for name, (operation, digit) in zip(NAMES, chain.steps, strict=False):
        text += f"{name}{value}{operation}{digit}="
        right = apply(value, operation, digit)
        value = right
        if rng.random() < noise:
            value = (right + rng.randrange(1, 10)) % 10
            if rng.random() < noticed and again < most:
                text += f"{value}!"
                value, again = right, again + 1
        text += f"{value}."
    return f"<think>{text}</think>{value}"


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
            f"chain-{one.question}{flag}", (Message("user", one.question + flag),), "exact", {"length": chains.length}
        )
        yield Item(problem, str(one.value), one.question, str(chains.length))
