"""Texts of the cipher walk (`evals.tasks.cipher`) for a base model that mostly guesses and sometimes walks.

Of the texts, `thinking_share` write the walk, each step of it wrong with probability `noise`; the rest close an empty
thinking block and are right with probability `right_share`. So a base model knows single steps, thinks at the rate of
the corpus (a greedy one never), and is right by luck when it does not. Questions are those of the training split only.
"""

from __future__ import annotations

from evals.tasks.cipher import Cipher, cipher_texts
from train.corpora._words import corpus_of
from train.examples.examples import Corpus


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
    texts = cipher_texts(Cipher(symbols, max_steps, key), thinking_share, right_share, noise)
    return corpus_of("cipher", texts, texts.max_length + 13)
