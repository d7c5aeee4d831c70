"""Texts of the cipher walk (`evals.worlds.cipher`) for a base model that mostly guesses and sometimes walks.

Of the texts, `thinking_share` write the walk, each step of it wrong with probability `noise`; the rest close an empty
thinking block and are right with probability `right_share`. So a base model knows single steps, thinks at the rate of
the corpus (a greedy one never), and is right by luck when it does not. Questions are those of the training split only.
"""

from __future__ import annotations

import random

from evals.worlds.cipher import Cipher, question, solution
from train.examples.corpus import Corpus, word_tokenizer
from ttc.errors import ConfigError

__all__ = ["cipher", "noisy"]


def cipher(
    *,
    symbols: int = 64,
    max_steps: int = 12,
    key: int = 0,
    thinking_share: float = 0.3,
    right_share: float = 0.1,
    noise: float = 0.05,
) -> Corpus:
    """The corpus of one secret permutation.

    Args:
        symbols: as in the task cipher.
        max_steps: as in the task cipher.
        key: as in the task cipher.
        thinking_share: share of texts that write the walk.
        right_share: share of the other texts whose answer is right.
        noise: probability that a step of a walk is wrong; the walk goes on from the wrong symbol.
    """
    for name, share in (("thinking_share", thinking_share), ("right_share", right_share), ("noise", noise)):
        if not 0 <= share <= 1:
            raise ConfigError(f"corpus cipher: {name} must be in [0, 1], got {share}")
    secret = Cipher(symbols, max_steps, key)
    pairs = list(secret.pairs("train"))

    def sample(rng: random.Random) -> str:
        start, steps = rng.choice(pairs)
        text = question(start, steps)
        if rng.random() < thinking_share:
            return text + solution(noisy(secret, start, steps, noise, rng))
        right = rng.random() < right_share
        return f"{text}<think></think>s{secret.walk(start, steps)[-1] if right else rng.randrange(symbols)}"

    words = [*(f"s{i}" for i in range(symbols)), *(f"n{i}" for i in range(max_steps + 1)), "="]
    length = 3 + 2 * max_steps + 2 + 2
    return Corpus("cipher", lambda: word_tokenizer(words, r"s\d+|n\d+|=", length + 13), sample, length)


def noisy(secret: Cipher, start: int, steps: int, noise: float, rng: random.Random) -> list[int]:
    """The walk of a careless worker: each step is wrong with probability `noise`."""
    symbols: list[int] = []
    for _ in range(steps):
        start = rng.randrange(secret.symbols) if rng.random() < noise else secret.step(start)
        symbols.append(start)
    return symbols
