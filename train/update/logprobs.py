"""Log-probabilities of given tokens under a causal language model, for a right-padded batch.

Sequences start at position 0 and are padded on the right, so causal attention never sees padding: no attention mask and
no position ids are needed, and a row's numbers do not depend on its neighbours. Only positions that are asked for go
through the head, in chunks, so that (R, T, V) logits never exist at once. Temperature is 1: rollouts are drawn so.
A comparison over the whole vocabulary (with a teacher) sees the same chunks, which are then computed again for the
gradient instead of being kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from train.base.sharding import Sharded
from train.update.packing import packed_hidden

__all__ = ["Compare", "Scored", "token_logprobs"]

_CHUNK = 8192
"""Positions that go through the head at once."""
_COMPARED = 1024
"""The same where a whole vocabulary is compared."""

Compare: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""(log-probabilities (n, V), which of the wanted positions these are, row by row) -> one number each (n,)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """`logprobs` (R, T) nats with the gradient, 0 where not asked; `entropy` (R, T) nats without a gradient.

    `compared` (R, T) is what a comparison gave, with the gradient; None without one.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    compared: torch.Tensor | None = None


def token_logprobs(
    model: Any, ids: torch.Tensor, wanted: torch.Tensor, compare: Compare | None = None, *, packed: int = 0
) -> Scored:
    """Log-probability of every wanted token given what stands before it.

    Args:
        model: a causal language model of transformers.
        ids: (R, L) token ids, padded on the right.
        wanted: (R, L - 1) bool; position t asks for ids[:, t + 1].
        compare: is given the log-probabilities of the whole vocabulary at the wanted positions, chunk by chunk.
        packed: lay rows end to end in rows of so many tokens, instead of padding them (see `train.update.packing`); 0:
        do not.
    """
    if isinstance(model, Sharded):
        return Scored(*model(ids, wanted, compare, packed=packed))
    if packed:
        places = torch.arange(1, ids.shape[1], device=ids.device)
        hidden = packed_hidden(model, ids[:, :-1], (wanted * places).amax(1).tolist(), packed)
    else:
        hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    rows = hidden[wanted]
    targets = ids[:, 1:][wanted]
    head = model.get_output_embeddings()

    def score(some: torch.Tensor, place: slice) -> tuple[torch.Tensor, ...]:
        normal = torch.log_softmax(head(some).float(), -1)
        picked = normal.gather(1, targets[place, None])[:, 0]
        with torch.no_grad():
            entropy = -(normal.exp() * normal).sum(-1)
        return (picked, entropy) if compare is None else (picked, entropy, compare(normal, place))

    parts: list[tuple[torch.Tensor, ...]] = []
    size = _CHUNK if compare is None else _COMPARED
    for start in range(0, rows.shape[0], size):
        place = slice(start, min(start + size, rows.shape[0]))
        if compare is not None and torch.is_grad_enabled():
            parts.append(checkpoint(score, rows[place], place, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(score(rows[place], place))
    empty = hidden.new_zeros(wanted.shape, dtype=torch.float32)
    laid = [empty.masked_scatter(wanted, torch.cat(column)) for column in zip(*parts, strict=True)]
    if not laid:
        laid = [empty] * (2 if compare is None else 3)
    return Scored(*laid)
