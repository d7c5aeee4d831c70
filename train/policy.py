"""Log-probabilities of given tokens under a causal language model, for a right-padded batch.

Sequences start at position 0 and are padded on the right, so causal attention never sees padding: no attention mask and
no position ids are needed, and a row's numbers do not depend on its neighbours. Only positions that are asked for go
through the head, in chunks, so that (R, T, V) logits never exist at once. Temperature is 1: rollouts are drawn so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Scored", "token_logprobs"]

_CHUNK = 8192
"""Positions that go through the head at once."""


@dataclass(frozen=True, slots=True)
class Scored:
    """`logprobs` (R, T) nats with the gradient, 0 where not asked; `entropy` (R, T) nats without a gradient."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


def token_logprobs(model: Any, ids: torch.Tensor, wanted: torch.Tensor) -> Scored:
    """Log-probability of every wanted token given what stands before it.

    Args:
        model: a causal language model of transformers.
        ids: (R, L) token ids, padded on the right.
        wanted: (R, L - 1) bool; position t asks for ids[:, t + 1].
    """
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    rows = hidden[wanted]
    targets = ids[:, 1:][wanted]
    head = model.get_output_embeddings()
    picked: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for start in range(0, rows.shape[0], _CHUNK):
        logits = head(rows[start : start + _CHUNK]).float()
        normal = torch.log_softmax(logits, -1)
        picked.append(normal.gather(1, targets[start : start + _CHUNK, None])[:, 0])
        with torch.no_grad():
            entropies.append(-(normal.exp() * normal).sum(-1))
    shape = wanted.shape
    logprobs = hidden.new_zeros(shape, dtype=torch.float32)
    entropy = torch.zeros_like(logprobs)
    if picked:
        logprobs = logprobs.masked_scatter(wanted, torch.cat(picked))
        entropy = entropy.masked_scatter(wanted, torch.cat(entropies))
    return Scored(logprobs, entropy)
