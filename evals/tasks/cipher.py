"""The cipher walk: a secret permutation of symbols, applied n times. Only a model that thinks gets it right.

A prompt `s12n5=` asks for the symbol that five applications reach from s12. One application is a fact that a small
model can learn by heart; n of them at once are not, so only a model that writes the walk down is right:

    s12n5=<think>s3n4s41n3s9n2s0n1s7n0</think>s7

(symbol and what is left, until nothing is left). The cheapest task where thinking must be discovered: a base model that
mostly guesses, and sometimes walks with mistakes, learns by reward alone to walk, and to walk without mistakes.

Splits: a hash of (start, n) puts one pair in six aside for evaluation. The permutation is part of the task, not of a
seed: `key` 0 is the same secret for everybody. Cost: microseconds. A model must have learnt the permutation to say
anything sensible; `ttc train run cipher-grpo` makes such a model, whose base learns from `cipher_texts`. Left out:
several ciphers in one model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from evals.task import Item, Split, Task, Texts, check_shares
from ttc import seeds
from ttc.config.values import at_least
from ttc.core import Message, Problem, Sampling

HELD_OUT = 6
"""One pair in this many is for evaluation."""


class Cipher:
    """One secret permutation of `symbols` symbols and the questions up to `max_steps` applications."""

    def __init__(self, symbols: int, max_steps: int, key: int) -> None:
        at_least("cipher", 4, symbols=symbols)
        at_least("cipher", 1, max_steps=max_steps)
        at_least("cipher", 0, key=key)
        self.symbols, self.max_steps, self.key = symbols, max_steps, key
        order = list(range(symbols))
        random.Random(seeds.derive(key, "cipher", symbols)).shuffle(order)
        # one cycle through all symbols: a walk never comes back early, whatever its start
        self._next = dict(zip(order, [*order[1:], order[0]], strict=True))

    def step(self, symbol: int) -> int:
        """Apply the permutation once."""
        return self._next[symbol]

    def walk(self, start: int, steps: int) -> list[int]:
        """The symbols after 1, 2, .. steps applications."""
        symbols = []
        for _ in range(steps):
            start = self._next[start]
            symbols.append(start)
        return symbols

    def pairs(self, split: Split) -> Iterator[tuple[int, int]]:
        """All (start, n) of a split, in a fixed mixed order."""
        every = [(start, steps) for start in range(self.symbols) for steps in range(1, self.max_steps + 1)]
        every.sort(key=lambda pair: seeds.derive(self.key, "order", *pair))
        for pair in every:
            if (seeds.derive(self.key, "split", *pair) % HELD_OUT == 0) == (split == "eval"):
                yield pair


def question(start: int, steps: int) -> str:
    """The prompt's text."""
    return f"s{start}n{steps}="


def solution(walk: list[int]) -> str:
    """The worked walk with its answer, as a model should write it."""
    left = range(len(walk) - 1, -1, -1)
    return f"<think>{''.join(f's{symbol}n{n}' for symbol, n in zip(walk, left, strict=True))}</think>s{walk[-1]}"


def cipher_texts(secret: Cipher, thinking_share: float, right_share: float, noise: float) -> Texts:
    """Questions of the training split, answered by a writer who mostly guesses; see `train.corpora.cipher`."""
    check_shares("corpus cipher", thinking_share=thinking_share, right_share=right_share, noise=noise)
    pairs = list(secret.pairs("train"))

    def sample(rng: random.Random) -> str:
        start, steps = rng.choice(pairs)
        text = question(start, steps)
        if rng.random() < thinking_share:
            return text + solution(noisy(secret, start, steps, noise, rng))
        right = rng.random() < right_share
        return f"{text}<think></think>s{secret.walk(start, steps)[-1] if right else rng.randrange(secret.symbols)}"

    words = [*(f"s{i}" for i in range(secret.symbols)), *(f"n{i}" for i in range(secret.max_steps + 1)), "="]
    return Texts(words, r"s\d+|n\d+|=", 3 + 2 * secret.max_steps + 2 + 2, sample)


def noisy(secret: Cipher, start: int, steps: int, noise: float, rng: random.Random) -> list[int]:
    """The walk of a careless writer: each step is wrong with probability `noise`."""
    symbols: list[int] = []
    for _ in range(steps):
        start = rng.randrange(secret.symbols) if rng.random() < noise else secret.step(start)
        symbols.append(start)
    return symbols


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
        note="needs a model trained on this permutation: ttc train run cipher-grpo --seed 1 --out runs/cipher",
    )


def _items(secret: Cipher, split: Split) -> Iterator[Item]:
    for start, steps in secret.pairs(split):
        problem = Problem(f"cipher-s{start}n{steps}", (Message("user", question(start, steps)),), "exact", {"n": steps})
        yield Item(problem, f"s{secret.walk(start, steps)[-1]}", difficulty=str(steps))
