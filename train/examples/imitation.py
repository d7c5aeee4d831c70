"""Completions as a batch of the update rule, and how likely a model finds them.

Only the completion's tokens are asked for; masks come from lengths. Cost: a forward pass, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from train.examples.examples import Example
from train.update.batch import Normaliser, TokenBatch, pad, token_weights
from train.update.logprobs import token_logprobs

_ROWS = 32
"""Rows of a forward pass without a gradient."""


def imitation_batch(examples: Sequence[Example], pad_id: int, normaliser: Normaliser, max_tokens: int) -> TokenBatch:
    """A batch of cross-entropy on the completions of `examples`, each times its weight."""
    rows = [(*example.prompt_ids, *example.token_ids) for example in examples]
    ids = pad(rows, pad_id)
    mask = torch.zeros(len(rows), ids.shape[1] - 1, dtype=torch.bool)
    for row, example in enumerate(examples):
        mask[row, len(example.prompt_ids) - 1 : len(rows[row]) - 1] = True
    zero = torch.zeros(mask.shape)
    weight = torch.tensor([example.weight for example in examples])[:, None]
    batch = TokenBatch(ids, mask, zero, zero, zero, zero, torch.full(mask.shape, float("nan")), zero)
    return replace(batch, ce=token_weights(mask, normaliser, max_tokens) * weight)


@torch.no_grad()
def completion_sums(model: Any, examples: Sequence[Example], pad_id: int) -> list[tuple[float, int]]:
    """Log-probability of each completion (nats) and its length, without a gradient."""
    device = next(model.parameters()).device
    model.eval()
    sums: list[tuple[float, int]] = []
    for start in range(0, len(examples), _ROWS):
        batch = imitation_batch(examples[start : start + _ROWS], pad_id, "token", 1).to(device)
        logprobs = token_logprobs(model, batch.ids, batch.mask).logprobs.sum(1).tolist()
        sums += zip(logprobs, batch.mask.sum(1).tolist(), strict=True)
    return sums


def mean_loss(model: Any, examples: Sequence[Example], pad_id: int) -> float:
    """Cross-entropy of the completions, nats per token."""
    sums = completion_sums(model, examples, pad_id)
    return -sum(total for total, _ in sums) / sum(length for _, length in sums)


def probabilities(model: Any, examples: Sequence[Example], pad_id: int) -> list[float]:
    """Per completion the geometric mean of its tokens' probabilities: a share in [0, 1]."""
    return [float(torch.tensor(total / length).exp()) for total, length in completion_sums(model, examples, pad_id)]


def ranked_right(model: Any, chosen: Sequence[Example], rejected: Sequence[Example], pad_id: int) -> list[float]:
    """1 per pair whose chosen completion the model would give more often than the rejected one, else 0."""
    pairs = zip(completion_sums(model, chosen, pad_id), completion_sums(model, rejected, pad_id), strict=True)
    return [float(first > second) for (first, _), (second, _) in pairs]
