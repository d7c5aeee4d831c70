"""Calculations that a small model cannot do in its head and a calculator can: two numbers and one operation.

Numbers have two digits, so a product cannot be guessed and hardly be memorised: one problem in six, by a hash of its
text, is held out. Made for training a model to call a tool: the environment is `train.environments.calculation`, and
`calculation_texts` are what a base model learns from. A model must have learnt the language to say anything sensible;
`ttc train run async-agentic` makes such a model. Its calls are answered by `--strategy tools --set
tools.instruct=false`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from evals.task import Item, Split, Task, Texts, check_shares, distinct
from ttc import seeds
from ttc.core import Message, Problem, Sampling

_HELD_OUT = 6
_MARKS = ("<calculator>", "</calculator>", "<result>", "</result>", "<answer>", "</answer>", "error:")
_MAX_LENGTH = 32


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
        """The split that it belongs to."""
        return "train" if hashlib.sha256(self.text.encode()).digest()[0] % _HELD_OUT else "eval"


def sample_calculation(rng: random.Random, split: Split) -> Calculation:
    """Draw one problem of a split; products are as frequent as sums and differences together."""
    while True:
        candidate = Calculation(rng.randint(10, 99), rng.choice("**+-"), rng.randint(10, 99))
        if candidate.split == split:
            return candidate


def calculation_texts(call_share: float, right_share: float, noise: float) -> Texts:
    """Texts of a writer who guesses and sometimes calls a calculator; see `train.corpora.calculation`."""
    check_shares("corpus calculation", call_share=call_share, right_share=right_share, noise=noise)

    def sample(rng: random.Random) -> str:
        problem = sample_calculation(rng, "train")
        if rng.random() < call_share:
            copied = replace(problem, right=rng.randint(10, 99)) if rng.random() < noise else problem
            call = f"<calculator>{copied.text}</calculator><result>{copied.value}</result>"
            return f"{problem.question}{call}<answer>{copied.value}</answer>"
        answer = problem.value if rng.random() < right_share else _guess(problem, rng)
        return f"{problem.question}<answer>{answer}</answer>"

    return Texts([*_MARKS, *"0123456789+-*="], r"</?\w+>|error:|.", _MAX_LENGTH, sample)


def _guess(problem: Calculation, rng: random.Random) -> int:
    """The value of the same operation on other numbers: right only in form."""
    return replace(problem, left=rng.randint(10, 99), right=rng.randint(10, 99)).value


DEFAULT_LIMIT = 1000


def calculation(*, split: Split = "eval") -> Task:
    """Work out the sum, difference or product of two numbers of two digits.

    Args:
        split: eval (one problem in six) or train (the rest).
    """
    return Task(
        name="calculation",
        kind="exact",
        load=lambda limit, seed: _items(split, DEFAULT_LIMIT if limit is None else limit, seed),
        sampling=Sampling(max_tokens=24, temperature=1.0),
        params={"split": split},
        note="needs a model of this language: ttc train run async-agentic --seed 1 --out runs/agent",
        procedural=True,
    )


def _items(split: Split, limit: int, seed: int) -> Iterator[Item]:
    rng = random.Random(seeds.derive(seed, "calculation", split))
    shortage = f"calculation has fewer than {limit} problems"
    for each in distinct(lambda *_: sample_calculation(rng, split), lambda each: each.text, limit, shortage):
        problem = Problem(f"calculation-{each.text}", (Message("user", each.question),), "exact")
        yield Item(problem, str(each.value), difficulty=each.operation)
