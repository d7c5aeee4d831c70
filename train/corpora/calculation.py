"""Texts of two-digit calculations (`evals.worlds.calculation`) for a base model that guesses and sometimes calls.

Of the texts, `call_share` write the call of a calculator, read its result and repeat it; in a share `noise` of these
the call is miscopied. The rest say a number at once, which is right with probability `right_share`. So a base model can
write a call and read a result, does so at the rate of the corpus (a greedy one never), and cannot calculate.
"""

from __future__ import annotations

import random
from dataclasses import replace

from evals.worlds.calculation import Calculation, sample_calculation
from train.examples.corpus import Corpus, word_tokenizer
from ttc.errors import ConfigError

__all__ = ["calculation"]

_MARKS = ("<calculator>", "</calculator>", "<result>", "</result>", "<answer>", "</answer>", "error:")
_MAX_LENGTH = 32


def calculation(*, call_share: float = 0.3, right_share: float = 0.05, noise: float = 0.1) -> Corpus:
    """The corpus of calculations.

    Args:
        call_share: share of texts that call the calculator.
        right_share: share of the other texts whose answer is right.
        noise: probability that a call has another number in it.
    """
    for name, share in (("call_share", call_share), ("right_share", right_share), ("noise", noise)):
        if not 0 <= share <= 1:
            raise ConfigError(f"corpus calculation: {name} must be in [0, 1], got {share}")

    def sample(rng: random.Random) -> str:
        problem = sample_calculation(rng, "train")
        if rng.random() < call_share:
            called = replace(problem, right=rng.randint(10, 99)) if rng.random() < noise else problem
            call = f"<calculator>{called.text}</calculator><result>{called.value}</result>"
            return f"{problem.question}{call}<answer>{called.value}</answer>"
        result = problem.value if rng.random() < right_share else _guess(problem, rng)
        return f"{problem.question}<answer>{result}</answer>"

    words = [*_MARKS, *"0123456789+-*="]
    pattern = r"</?\w+>|error:|."
    return Corpus("calculation", lambda: word_tokenizer(words, pattern, 4 * _MAX_LENGTH), sample, _MAX_LENGTH)


def _guess(asked: Calculation, rng: random.Random) -> int:
    """The value of the same operation on other numbers: right in its form only."""
    return replace(asked, left=rng.randint(10, 99), right=rng.randint(10, 99)).value
