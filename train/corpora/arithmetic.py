"""Texts of worked arithmetic for the embedded family: some think in short steps, the others answer at once.

Expressions are those of the training split of `evals.arithmetic`, traces those that the packaged teacher learnt from
(`train.nano.traces`), all without mistakes. Of the texts, `thinking_share` think; the rest close the opened thinking
block at once, as the packaged student does. So a base that learns from few of them can work a sum out, and mostly does
not: what reinforcement finds out is that working it out pays.
"""

from __future__ import annotations

import random

from evals.arithmetic import LEVELS, sample_expression
from train.corpus import Corpus
from train.nano import tokenizer, traces
from ttc.errors import ConfigError

__all__ = ["arithmetic"]

_EXACT = traces.Noise(slip=0.0, lapse=0.0, recheck=0.0)
_MAX_LENGTH = 256


def arithmetic(*, max_level: int = 3, thinking_share: float = 0.3) -> Corpus:
    """The corpus of worked expressions.

    Args:
        max_level: hardest level of `evals.arithmetic`; those from 1 to it are drawn equally often.
        thinking_share: share of texts that think.
    """
    if max_level not in LEVELS:
        raise ConfigError(f"corpus arithmetic: max_level must be one of {sorted(LEVELS)}, got {max_level}")
    if not 0 <= thinking_share <= 1:
        raise ConfigError(f"corpus arithmetic: thinking_share must be in [0, 1], got {thinking_share}")

    def sample(rng: random.Random) -> str:
        expression = sample_expression(rng, rng.randint(1, max_level), "train")
        pieces = traces.thinking(rng, expression, _EXACT) if rng.random() < thinking_share else []
        thoughts = "".join(piece.text for piece in pieces)
        said = traces.answer(expression.value).removesuffix("<|im_end|>")
        return f"{traces.prompt(rng, expression)}<think>\n{thoughts}</think>\n\n{said}"

    return Corpus("arithmetic", tokenizer.build, sample, _MAX_LENGTH)
