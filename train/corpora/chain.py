"""Texts of chains modulo 10 (`evals.tasks.chain`) for a base model that knows the language but is careless.

Of the texts, `thinking_share` write the steps. Each result is wrong with probability `noise`; a wrong one is noticed
with probability `noticed`, marked and done again, else the chain goes on from it. The other texts close an empty
thinking block and are right with probability `right_share`. Questions are those of the training split only.
"""

from __future__ import annotations

from evals.tasks.chain import OPERATIONS, Chains, chain_texts
from train.corpora._words import corpus_of
from train.examples.examples import Corpus
from ttc.config.values import at_least


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
    at_least("corpus chain", 0, most=most)
    texts = chain_texts(
        Chains(length, operations),
        thinking_share=thinking_share,
        right_share=right_share,
        noise=noise,
        noticed=noticed,
        most=most,
    )
    return corpus_of("chain", texts, texts.max_length + 16)
