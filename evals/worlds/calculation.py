"""Calculations that a small model cannot do in its head and a calculator can: two numbers and one operation.

Numbers have two digits, so a product cannot be guessed and hardly be memorised: one problem in six, by a hash of its
text, is held out. Made for training a model to call a tool (`train/environments/calculation.py`).
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["Calculation", "Split", "sample_calculation"]

Split = Literal["eval", "train"]
_HELD_OUT = 6


@dataclass(frozen=True, slots=True)
class Calculation:
    """`left` `operation` `right`, such as 47*86."""

    left: int
    operation: str
    right: int

    @property
    def text(self) -> str:
        """The expression, which is what a calculator takes."""
        return f"{self.left}{self.operation}{self.right}"

    @property
    def question(self) -> str:
        """What is asked."""
        return f"{self.text}="

    @property
    def value(self) -> int:
        """The answer."""
        left, right = self.left, self.right
        return {"+": left + right, "-": left - right, "*": left * right}[self.operation]

    @property
    def split(self) -> Split:
        """Where it belongs."""
        return "train" if hashlib.sha256(self.text.encode()).digest()[0] % _HELD_OUT else "eval"


def sample_calculation(rng: random.Random, split: Split) -> Calculation:
    """Draw one of a split; products are as frequent as sums and differences together."""
    while True:
        candidate = Calculation(rng.randint(10, 99), rng.choice("**+-"), rng.randint(10, 99))
        if candidate.split == split:
            return candidate
