"""From procedural problems to token ids: what the teacher and the student are trained on.

Every example is a pure function of (seed, index), so a run can resume at any step and two runs with one seed see the
same data. Only expressions of the `train` split are drawn. Cost: about 0.5 ms per example. Left out: packing several
examples in a row (rows are sorted by length).
"""

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from evals.tasks.arithmetic import ArithmeticProblem, sample_expression
from train.nano.traces import HANDOVER, NO_THINK, Noise, Piece, answer, prompt, thinking

IGNORE = -100


@dataclass(frozen=True, slots=True)
class ExampleMixture:
    """Shares of the kinds of example; what is left over thinks to its end.

    `curriculum` weighs levels 1.. of the examples that think: each entry holds until that share of the
    run. Level 4, the default of the evaluations, is itself left out: it lies between 3 and 5.
    `no_think_levels` weighs the levels of those that do not think, of which the share `empty` closes an
    open think block itself (the student knows only those). `late_cuts` puts most hand-overs near the end
    of the thinking, where an answer can be guessed.
    """

    no_think: float = 0.12
    handover: float = 0.15
    curriculum: tuple[tuple[float, tuple[float, ...]], ...] = (
        (0.39, (0.05, 0.10, 0.20)),
        (0.535, (0.05, 0.10, 0.20, 0.0, 0.32, 0.26, 0.07)),
        (1.0, (0.06, 0.12, 0.30, 0.0, 0.36, 0.13, 0.03)),
    )
    no_think_levels: tuple[float, ...] = (0.6, 0.25, 0.15)
    empty: float = 0.0
    late_cuts: bool = False
    noise: Noise = field(default_factory=Noise)

    def levels(self, progress: float) -> tuple[float, ...]:
        """Return the weights of the levels at `progress` in 0..1."""
        return next(weights for until, weights in self.curriculum if progress < until)


POLISH = ExampleMixture(
    no_think=0.08,
    handover=0.22,
    curriculum=((1.0, (0.06, 0.12, 0.32, 0.0, 0.40, 0.10)),),
    late_cuts=True,
    noise=Noise(slip=0.04, lapse=0.07, recheck=0.5, again=0.4),
)
"""The end of the teacher's training: many second and third passes, so that a `Wait` confirms what is right."""


@dataclass(frozen=True, slots=True)
class MaskedIds:
    """Token ids and the same ids where the loss counts them, `IGNORE` elsewhere."""

    ids: list[int]
    labels: list[int]


def example(tokenizer: Any, mixture: ExampleMixture, seed: int, index: int, progress: float) -> MaskedIds:
    """Return example number `index`; `progress`, from 0 to below 1, is how far the run has come."""
    rng = random.Random(f"nano:{seed}:{index}")
    kind = rng.random()
    if kind < mixture.no_think:
        problem = _problem(rng, mixture.no_think_levels)
        return encode(tokenizer, _no_think(rng, problem, mixture.empty))
    problem = _problem(rng, mixture.levels(progress))
    opening = Piece(prompt(rng, problem) + "<think>\n", learn=False)
    thoughts = encode(tokenizer, thinking(rng, problem, mixture.noise))
    head = encode(tokenizer, [opening])
    if kind < mixture.no_think + mixture.handover:
        end = _cut(rng, len(thoughts.ids), mixture.late_cuts)
        thoughts = MaskedIds(thoughts.ids[:end], thoughts.labels[:end])
        tail = encode(tokenizer, [Piece(HANDOVER, learn=False), Piece(answer(problem.value))])
    else:
        tail = encode(tokenizer, [Piece("</think>\n\n" + answer(problem.value))])
    return MaskedIds(head.ids + thoughts.ids + tail.ids, head.labels + thoughts.labels + tail.labels)


def encode(tokenizer: Any, pieces: list[Piece]) -> MaskedIds:
    """Tokenise pieces one by one; the ids equal those of the joined text (a test says so)."""
    ids: list[int] = []
    labels: list[int] = []
    for piece in pieces:
        part = tokenizer.encode(piece.text, add_special_tokens=False)
        ids += part
        labels += part if piece.learn else [IGNORE] * len(part)
    return MaskedIds(ids, labels)


def pool(
    tokenizer: Any, mixture: ExampleMixture, seed: int, number: int, batches: int, rows: int, progress: float
) -> list[list[MaskedIds]]:
    """Return `batches` batches of `rows` examples of similar length, in random order."""
    first = number * batches * rows
    pool_rows = [example(tokenizer, mixture, seed, first + i, progress) for i in range(batches * rows)]
    pool_rows.sort(key=lambda item: len(item.ids))
    cuts = [pool_rows[i : i + rows] for i in range(0, len(pool_rows), rows)]
    random.Random(f"nano-pool:{seed}:{number}").shuffle(cuts)
    return cuts


def collate(batch: list[MaskedIds], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right to a multiple of 8; ids [B, T] and labels [B, T]."""
    width = -(-max(len(item.ids) for item in batch) // 8) * 8
    ids = torch.full((len(batch), width), pad)
    labels = torch.full((len(batch), width), IGNORE)
    for row, item in enumerate(batch):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        labels[row, : len(item.labels)] = torch.tensor(item.labels)
    return ids, labels


def _problem(rng: random.Random, weights: tuple[float, ...]) -> ArithmeticProblem:
    level = rng.choices(range(1, len(weights) + 1), weights)[0]
    return sample_expression(rng, level, "train")


def _cut(rng: random.Random, length: int, late: bool) -> int:
    return length - int(rng.random() ** 2 * (length + 1)) if late else rng.randrange(length + 1)


def _no_think(rng: random.Random, problem: ArithmeticProblem, empty: float) -> list[Piece]:
    opening, reply = prompt(rng, problem), answer(problem.value)
    if rng.random() < empty:
        return [Piece(opening + "<think>\n", learn=False), Piece("</think>\n\n" + reply)]
    return [Piece(opening + NO_THINK, learn=False), Piece(reply)]
