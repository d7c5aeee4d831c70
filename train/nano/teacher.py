"""Train a causal model of the family from scratch: the teacher, and the student with other data.

The student is small and never sees a thinking trace: it knows the format and answers at once, so that
what distillation adds can be seen. Cost: `ttc/nano/README.md` gives CPU minutes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.nano import examples, loop
from train.nano.examples import ExampleMixture
from train.nano.tokenizer import build as build_tokenizer

_POOL = 16  # batches drawn together and sorted by length


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training run: `rows` examples a step, drawn from `mixture` by `seed`."""

    mixture: examples.ExampleMixture
    seed: int
    run: loop.RunLength
    rows: int


def train(network: Any, recipe: TrainingRun, checkpoints: Path, device: str) -> None:
    """Train `network` (fp32, on `device`) in place by the recipe, resuming from the folder `checkpoints`."""
    tokenizer = build_tokenizer()
    batches: dict[int, list[list[examples.MaskedIds]]] = {}

    def loss_at(step: int) -> torch.Tensor:
        number = step // _POOL
        if number not in batches:
            batches.clear()
            batches[number] = examples.pool(
                tokenizer,
                recipe.mixture,
                recipe.seed,
                number,
                _POOL,
                recipe.rows,
                number * _POOL / recipe.run.steps,
            )
        batch = batches[number][step % _POOL]
        return causal_loss(network, batch, tokenizer.pad_token_id, device)

    loop.fit(network, loss_at, recipe.run, checkpoints)


def causal_loss(network: Any, batch: list[examples.MaskedIds], pad: int, device: str) -> torch.Tensor:
    """Return the mean next-token loss over the labelled tokens of a batch."""
    ids, labels = (tensor.to(device) for tensor in examples.collate(batch, pad))
    with loop.autocast(device):
        logits = network(input_ids=ids, use_cache=False).logits[:, :-1]
        targets = labels[:, 1:]
        mask = targets != examples.IGNORE
        return torch.nn.functional.cross_entropy(logits[mask].float(), targets[mask])


STUDENT_MIXTURE = ExampleMixture(
    no_think=1.0,
    handover=0.0,
    no_think_levels=(0.35, 0.25, 0.2, 0.0, 0.15, 0.05),
    empty=0.5,
)


def student_recipe(seed: int, steps: int) -> TrainingRun:
    """Return the student's recipe."""
    return TrainingRun(STUDENT_MIXTURE, seed, loop.RunLength(steps, lr=4e-3), rows=64)
