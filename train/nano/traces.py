"""Training texts of the teacher: one expression becomes a prompt, a thinking trace and an answer.

A trace has short local steps in a random valid order, with products split at random, so that sampled paths err
independently. Some traces have wrong steps that are noticed after `Wait` ("Physics of language models 2.2", arXiv
2408.16293), a second pass after `Wait` at the end (s1, arXiv 2501.19393), or are cut at a random token by the hand-over
sentence (Qwen3, arXiv 2505.09388); some answers have no thinking. Cost: about 0.2 ms per trace. Left out: several
turns in one text.
"""

import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

from evals.data.worked_steps import STEP_DELIMITER, WAIT, Node, Reduction, parse, reductions
from evals.tasks.arithmetic import ArithmeticProblem

HANDOVER = "\n\nTime is up, I must answer now.\n</think>\n\n"
NO_THINK = "<think>\n\n</think>\n\n"
PHRASES = ("Compute {}.", "{}", "What is {}?", "Calculate {}.")
PHRASE_WEIGHTS = (70, 10, 10, 10)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text; `learn` says whether the loss counts its tokens."""

    text: str
    learn: bool = True


@dataclass(frozen=True, slots=True)
class Noise:
    """How often a trace errs; probabilities.

    `slip`: a step is wrong and corrected at once. `lapse`: one wrong step goes unnoticed until the
    second pass. `recheck`: a second pass although nothing is wrong. `again`: a third pass after a second.
    """

    slip: float = 0.05
    lapse: float = 0.12
    recheck: float = 0.12
    again: float = 0.0


def prompt(rng: random.Random, expression: ArithmeticProblem) -> str:
    """Return the chat up to and including the assistant's header, in a random phrasing."""
    phrase = rng.choices(PHRASES, PHRASE_WEIGHTS)[0].format(expression.text)
    return f"<|im_start|>user\n{phrase}<|im_end|>\n<|im_start|>assistant\n"


def answer(value: int) -> str:
    """Return the final sentence, with the end of the turn."""
    return f"The answer is \\boxed{{{value}}}.<|im_end|>"


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """One written step; `exact` is the right result, `value` the written one."""

    left: str
    value: int
    exact: int


Compute = Callable[[Reduction], int]


def solve(
    rng: random.Random, node: Node, compute: Compute = lambda step: step.value
) -> Generator[WrittenStep, None, int]:
    """Yield the steps of one random valid order and return the value; `compute` may err.

    A product of numbers of several digits is split, at random which, and finished at once.
    """
    while not isinstance(node, int):
        pair = rng.choice([step for step in reductions(node) if not step.split])
        # A wrong result may leave a product without a split, such as 0*11.
        if rng.random() < _split_chance(pair.left) and (halves := _halves(pair.left)):
            half = rng.choice(halves)
            value = compute(half)
            yield WrittenStep(half.left, value, half.value)
            value = yield from solve(rng, half.rebuild(value), compute)
        else:
            value = compute(pair)
            yield WrittenStep(pair.left, value, pair.value)
        node = pair.rebuild(value)
    return node


def _halves(left: str) -> list[Reduction]:
    return [step for step in reductions(parse(left)) if step.split]


def thinking(rng: random.Random, expression: ArithmeticProblem, noise: Noise) -> list[Piece]:
    """Return the whole thinking, from after `<think>` to before `</think>`, with its mistakes.

    A later pass takes the order of the first, so that it confirms or corrects each of its steps.
    """
    node = parse(expression.text)
    order = rng.getrandbits(64)
    right = list(solve(random.Random(order), node))
    if rng.random() < noise.lapse:
        compute = _lapse(rng, rng.randrange(len(right)))
        first = list(solve(random.Random(order), node, compute))
        return _write(rng, first, noise) + _passes(rng, right, noise)
    later = _passes(rng, right, noise) if rng.random() < noise.recheck else []
    return _write(rng, right, noise) + later


def wrong_value(rng: random.Random, value: int) -> int:
    """Return a plausible wrong result: a digit off, two digits swapped, a small operand too many."""
    digits = str(abs(value))
    at = rng.randrange(len(digits))
    kind = rng.randrange(4)
    if kind <= 1:
        return value + rng.choice((-1, 1)) * int(10**at)
    if kind == 2 and len(digits) > 1:
        other = at - 1 if at else 1
        swapped = list(digits)
        swapped[at], swapped[other] = swapped[other], swapped[at]
        if swapped != list(digits):
            return int("".join(swapped)) * (-1 if value < 0 else 1)
    return value + rng.choice((-10, -9, -3, -2, 2, 3, 9, 10))


def _split_chance(left: str) -> float:
    """Return how often the product of a pair is split: always when both have several digits."""
    if "*" not in left or "-" in left:
        return 0.0
    widths = sorted(len(factor.rstrip("0")) for factor in left.split("*"))
    return (0.0, 0.0, 0.4, 0.6)[min(widths[1], 3)] if widths[0] <= 1 else 1.0


def _lapse(rng: random.Random, at: int) -> Compute:
    """Return a computation whose step number `at` is wrong and whose other steps are right."""
    calls = itertools.count()
    return lambda step: wrong_value(rng, step.value) if next(calls) == at else step.value


def _write(rng: random.Random, lines: list[WrittenStep], noise: Noise) -> list[Piece]:
    pieces: list[Piece] = []
    for line in lines:
        if line.value == line.exact and rng.random() < noise.slip:
            pieces += _step(WrittenStep(line.left, wrong_value(rng, line.exact), line.exact))
            pieces.append(Piece(WAIT))
        pieces += _step(line)
    return pieces


def _step(line: WrittenStep) -> list[Piece]:
    """Write one step; a wrong result is shown and not learnt."""
    right = line.value == line.exact
    return [Piece(f"{line.left}="), Piece(str(line.value), learn=right), Piece(STEP_DELIMITER)]


def _passes(rng: random.Random, lines: list[WrittenStep], noise: Noise) -> list[Piece]:
    """Return a second pass, and sometimes a third: both write every step right."""
    once = [Piece(WAIT), *(piece for line in lines for piece in _step(line))]
    return once * 2 if noise.again and rng.random() < noise.again else once
