"""Log-probabilities of the tokens of a right-padded batch under a causal language model.

Sequences start at position 0 and are padded on the right, so causal attention never sees padding: no attention mask and
no position ids are needed, and a row's numbers do not depend on its neighbours. Only positions that are asked for go
through the head, in chunks, so that (R, T, V) logits never exist at once: a chunk is computed again for the gradient
instead of being kept, unless all of them are small. Temperature is 1: rollouts are drawn so. A comparison over the
whole vocabulary (with a teacher) sees the same chunks. Memory: a chunk's logits, a few times over; kept for the
gradient are hidden states alone. Cost: one product with the head more.

How rows lie in the forward pass is `train.update.layouts`: padded; packed where asked; behind one copy of a prompt that
several begin with, where that saves work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from train.base.models import Sharded
from train.update.layouts import families, laid_hidden, shares

_CHUNK = 8192
"""Most positions that go through the head at once."""
LOGITS = 1 << 26
"""Most logits that exist at once (256 MiB in fp32), as long as a chunk has `LEAST` positions."""
CACHED = 1 << 22
"""The same on a processor (16 MiB), whose caches hold that: more takes an update of SmolLM2-135M a fifth longer."""
LEAST = 64
_KEPT = 1 << 24
"""Logits of all positions together that are kept for the gradient (64 MiB in fp32); more are computed again."""
_COMPARED = 1024
"""The same where a whole vocabulary is compared."""

Compare: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""(log-probabilities (n, V), which of the wanted positions these are, row by row) -> one number each (n,)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """`logprobs` (R, T) nats with the gradient, 0 where not asked; `entropy` (R, T) nats, with it where asked.

    `compared` (R, T) is what a comparison gave, with the gradient; None without one.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    compared: torch.Tensor | None = None


def chunk_size(num_ids: int, device: str) -> int:
    """Positions whose logits of `num_ids` tokens exist at once on a type of device."""
    return max((CACHED if device == "cpu" else LOGITS) // num_ids, LEAST)


def token_logprobs(
    model: Any,
    ids: torch.Tensor,
    wanted: torch.Tensor,
    compare: Compare | None = None,
    *,
    packed: int = 0,
    moves: bool = False,
) -> Scored:
    """Log-probability of every wanted token given what stands before it.

    Args:
        model: a causal language model of transformers.
        ids: (R, L) token ids, padded on the right.
        wanted: (R, L - 1) bool; position t asks for ids[:, t + 1].
        compare: is given the log-probabilities of the whole vocabulary at the wanted positions, chunk by chunk.
        packed: lay rows end to end in lines of so many tokens, instead of padding them; 0: do not.
        moves: whether the entropy has a gradient, too.
    """
    if isinstance(model, Sharded):
        return Scored(*model(ids, wanted, compare, packed=packed, moves=moves))
    # hidden states (R, L - 1, H): position t predicts ids[:, t + 1]. Only the W wanted ones go on, row by row: (W, H).
    groups = families(ids, wanted) if packed else shares(model, ids, wanted)
    if groups:
        rows = laid_hidden(model, ids, wanted, groups, packed or max(family.size for family in groups))
    else:
        rows = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]
    targets = ids[:, 1:][wanted]  # (W,)
    head = model.get_output_embeddings()

    done: set[int] = set()

    def score(some: torch.Tensor, place: slice) -> tuple[torch.Tensor, ...]:
        normal = torch.log_softmax(head(some).float(), -1)  # (n, V): the only place where the vocabulary is written out
        logprobs = normal.gather(1, targets[place, None])[:, 0]
        if not moves and place.start in done:  # computed again for the gradient, of which entropy has none
            entropy = torch.zeros_like(logprobs)
        else:
            with torch.set_grad_enabled(moves and torch.is_grad_enabled()):
                entropy = -(normal.exp() * normal).sum(-1)
        done.add(place.start)
        return (logprobs, entropy) if compare is None else (logprobs, entropy, compare(normal, place))

    parts: list[tuple[torch.Tensor, ...]] = []
    size = min(_CHUNK if compare is None else _COMPARED, chunk_size(head.out_features, rows.device.type))
    again = torch.is_grad_enabled() and (compare is not None or rows.shape[0] * head.out_features > _KEPT)
    for start in range(0, rows.shape[0], size):
        place = slice(start, min(start + size, rows.shape[0]))
        if again:
            parts.append(checkpoint(score, rows[place], place, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(score(rows[place], place))
    empty = rows.new_zeros(wanted.shape, dtype=torch.float32)
    columns = [empty.masked_scatter(wanted, torch.cat(column)) for column in zip(*parts, strict=True)]
    if not columns:
        columns = [empty] * (2 if compare is None else 3)
    return Scored(*columns)
