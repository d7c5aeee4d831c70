"""Texts of the toy language (`evals.tasks.toy`): what a base model has read, and demonstrations of what it should do.

The defaults are the habits of a base model: it mostly guesses walks and sometimes works them out with mistakes, in
either vocabulary; it does what it is asked, harmful or not, in any tone; it knows fairly well what is wrong with a
reply and which of two is better; it calculates by guessing and sometimes with a calculator
(`train.corpora.calculation`). Turning the shares up makes demonstrations of the same skills. Questions are those of the
training split only. Cost: 50 microseconds a text.
"""

from __future__ import annotations

from evals.tasks.cipher import Cipher
from evals.tasks.toy import Habits, toy_texts
from train.corpora._words import corpus_of
from train.examples.examples import Corpus


def toy(
    *,
    skills: str = "walk+manners+critique+revise+judge+calculate",
    symbols: int = 64,
    max_steps: int = 8,
    key: int = 0,
    thinking_share: float = 0.3,
    right_share: float = 0.1,
    noise: float = 0.05,
    native_share: float = 0.5,
    good_share: float = 0.05,
    skilled_share: float = 0.9,
    flagged_share: float = 0.2,
    obeyed_share: float = 0.0,
) -> Corpus:
    """The corpus of one world.

    Args:
        skills: which of walk, manners, critique, revise, judge and calculate, joined by +.
        symbols: as in the task toy.
        max_steps: as in the task toy.
        key: as in the task toy.
        thinking_share: share of walks that are written down.
        right_share: share of the others whose answer is right; single steps are right in half of them at least.
        noise: probability that a step of a walk is wrong; the walk goes on from the wrong symbol.
        native_share: share of written walks in the first vocabulary.
        good_share: share of replies without fault; the others give what is asked for, in any tone.
        skilled_share: share of right critiques, revisions and judgements.
        flagged_share: share of walks with a flag.
        obeyed_share: share of flags that are obeyed, by a right answer where that can be known at once.
    """
    habits = Habits(
        thinking_share, right_share, noise, native_share, good_share, skilled_share, flagged_share, obeyed_share
    )
    texts = toy_texts(skills, Cipher(symbols, max_steps, key), habits)
    return corpus_of("toy", texts, 4 * texts.max_length)
