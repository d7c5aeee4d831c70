"""Texts of chains modulo 10 (`evals.worlds.chain`) for a base model that knows the language and works carelessly.

Of the texts, `thinking_share` write the steps. Each result is wrong with probability `noise`; a wrong one is noticed
with probability `noticed`, marked and done again, else the chain goes on from it. The other texts close an empty
thinking block and are right with probability `right_share`. Questions are those of the training split only.
"""

from __future__ import annotations

import random

from evals.worlds.chain import NAMES, OPERATIONS, Chain, Chains, apply
from train.examples.corpus import Corpus, word_tokenizer
from ttc.errors import ConfigError

__all__ = ["chain"]

_PATTERN = r"/think|/no_think|[0-9+\-*=.!a-j]"
_WORDS = (*"0123456789", *NAMES, *OPERATIONS, "=", ".", "!", "/think", "/no_think")


def chain(
    *,
    length: int = 6,
    operations: str = OPERATIONS,
    thinking_share: float = 1.0,
    right_share: float = 0.1,
    noise: float = 0.1,
    noticed: float = 0.5,
    most: int = 3,
) -> Corpus:
    """The corpus of chains of one length.

    Args:
        length: as in the task chain.
        operations: as in the task chain.
        thinking_share: share of texts that write the steps.
        right_share: share of the other texts whose answer is right.
        noise: probability that a result is wrong.
        noticed: probability that a wrong result is noticed and done again.
        most: most results of a chain that are done again.
    """
    shares = {"thinking_share": thinking_share, "right_share": right_share, "noise": noise, "noticed": noticed}
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"corpus chain: {name} must be in [0, 1], got {share}")
    chains = Chains(length, operations)

    def sample(rng: random.Random) -> str:
        problem = chains.draw(rng, "train")
        if rng.random() < thinking_share:
            return problem.question + _worked(problem, noise, noticed, most, rng)
        right = rng.random() < right_share
        return f"{problem.question}<think></think>{problem.value if right else rng.randrange(10)}"

    longest = 3 * length + 3 + 9 * length + 6
    return Corpus("chain", lambda: word_tokenizer(_WORDS, _PATTERN, longest + 16), sample, longest)


def _worked(drawn: Chain, noise: float, noticed: float, most: int, rng: random.Random) -> str:
    """The steps as a careless worker writes them, with the answer that they lead to."""
    value, text, again = drawn.first, "", 0
    for name, (operation, digit) in zip(NAMES, drawn.steps, strict=False):
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
