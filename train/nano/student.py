"""The base student: small, trained to answer at once and never to think.

It knows the tokenizer, the chat format and easy sums; in an open think block it closes it again. What it can do
after distillation is therefore what distillation gave it. Cost: 2 to 3 CPU minutes.
"""

from train.nano import loop
from train.nano.examples import Mixture
from train.nano.teacher import Recipe

MIXTURE = Mixture(
    no_think=1.0,
    handover=0.0,
    no_think_levels=(0.35, 0.25, 0.2, 0.0, 0.15, 0.05),
    empty=0.5,
)


def recipe(seed: int, steps: int) -> Recipe:
    """Return the student's recipe."""
    return Recipe(MIXTURE, seed, loop.Run(steps, lr=4e-3), rows=64)
