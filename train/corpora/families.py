"""Worked texts of five families of arithmetic (`evals.tasks.families`): the cold start of a new model.

Levels up to `max_level` are shown, with steps that are wrong with probability `noise` (a digit off, and the text goes
on as if nothing were), so that the base knows the form and errs; harder levels are left to reinforcement. The tokenizer
and the chat form are those of the packaged family.
"""

from __future__ import annotations

import random

from evals.tasks.families import FAMILIES, LEVELS, sample_exercise
from train.examples.examples import Corpus
from train.nano import tokenizer, traces
from ttc.errors import ConfigError

_MAX_LENGTH = 320


def families(*, max_level: int = 2, noise: float = 0.05) -> Corpus:
    """The corpus of worked exercises.

    Args:
        max_level: hardest level shown.
        noise: probability that the result of a step is a little off.
    """
    if max_level not in LEVELS:
        raise ConfigError(f"corpus families: max_level must be one of {', '.join(map(str, LEVELS))}, got {max_level}")
    if not 0 <= noise <= 1:
        raise ConfigError(f"corpus families: noise must be in [0, 1], got {noise}")
    names = sorted(FAMILIES)

    def sample(rng: random.Random) -> str:
        exercise = sample_exercise(rng, rng.choice(names), rng.randint(1, max_level), "train")
        steps = [_slipped(step, rng) if rng.random() < noise else step for step in exercise.steps]
        worked = "".join(f"{step}\n\n" for step in steps)
        answer = traces.answer(exercise.value).removesuffix("<|im_end|>")
        prompt = f"<|im_start|>user\n{exercise.question}<|im_end|>\n<|im_start|>assistant\n"
        return f"{prompt}<think>\n{worked}</think>\n\n{answer}"

    return Corpus("families", tokenizer.build, sample, _MAX_LENGTH)


def _slipped(step: str, rng: random.Random) -> str:
    """The step with a result that is a little off; a comparison is left as it is."""
    left, equals, value = step.partition("=")
    return f"{left}={traces.wrong_value(rng, int(value))}" if equals else step
