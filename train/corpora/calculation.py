"""Texts of two-digit calculations (`evals.tasks.calculation`) for a base model that guesses and sometimes calls.

Of the texts, `call_share` write the call of a calculator, read its result and repeat it; in a share `noise` of these
the call is miscopied. The rest say a number at once, which is right with probability `right_share`. So a base model can
write a call and read a result, does so at the rate of the corpus (a greedy one never), and cannot calculate.
"""

from __future__ import annotations

from evals.tasks.calculation import calculation_texts
from train.corpora._words import corpus_of
from train.examples.examples import Corpus


def calculation(*, call_share: float = 0.3, right_share: float = 0.05, noise: float = 0.1) -> Corpus:
    """The corpus of calculations.

    Args:
        call_share: share of texts that call the calculator.
        right_share: share of the other texts whose answer is right.
        noise: probability that a call has another number in it.
    """
    texts = calculation_texts(call_share, right_share, noise)
    return corpus_of("calculation", texts, 4 * texts.max_length)
