"""Log-probabilities of the tokens of a right-padded batch under a causal language model.

Sequences start at position 0 and are padded on the right, so causal attention never sees padding: no attention mask and
no position ids are needed, and a row's numbers do not depend on its neighbours. Only positions that are asked for go
through the head, in chunks, so that (R, T, V) logits never exist at once: a chunk is computed again for the gradient
instead of being kept, unless all of them are small. Temperature is 1: rollouts are drawn so. A comparison over the
whole vocabulary (with a teacher) sees the same chunks. Memory: a chunk's logits, a few times over; kept for the
gradient are hidden states alone. Cost: one product with the head more.

Packing lays short rows end to end instead of padding them; positions start anew with each, and a block-diagonal causal
mask keeps them apart, so the numbers are those of the padded batch (a test says to 1e-6). Packing without such a mask
taught models to repeat themselves (open-r1 issue 520). Krell et al. 2021 (arXiv:2107.02027); rows are placed first-fit,
longest first. Cost: no padding, but attention over the whole packed row: on a CPU, where updates batch rows of like
length anyhow, it is rarely faster. Left out: kernels that skip the masked blocks, models with sliding windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from train.base.models import Sharded
from ttc.errors import ConfigError

_CHUNK = 8192
"""Most positions that go through the head at once."""
LOGITS = 1 << 26
"""Most logits that exist at once (256 MiB in fp32), as long as a chunk has `LEAST` positions."""
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
        packed: lay rows end to end in rows of so many tokens, instead of padding them (see `train.update.logprobs`); 0:
        do not.
        moves: whether the entropy has a gradient, too.
    """
    if isinstance(model, Sharded):
        return Scored(*model(ids, wanted, compare, packed=packed, moves=moves))
    if packed:
        places = torch.arange(1, ids.shape[1], device=ids.device)
        hidden = packed_hidden(model, ids[:, :-1], (wanted * places).amax(1).tolist(), packed)
    else:
        hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    # hidden (R, L - 1, H): position t predicts ids[:, t + 1]. Only the W wanted positions go on, row by row.
    rows = hidden[wanted]  # (W, H)
    targets = ids[:, 1:][wanted]  # (W,)
    head = model.get_output_embeddings()

    def score(some: torch.Tensor, place: slice) -> tuple[torch.Tensor, ...]:
        normal = torch.log_softmax(head(some).float(), -1)  # (n, V): the only place where the vocabulary is written out
        logprobs = normal.gather(1, targets[place, None])[:, 0]
        with torch.set_grad_enabled(moves and torch.is_grad_enabled()):
            entropy = -(normal.exp() * normal).sum(-1)
        return (logprobs, entropy) if compare is None else (logprobs, entropy, compare(normal, place))

    parts: list[tuple[torch.Tensor, ...]] = []
    size = min(_CHUNK if compare is None else _COMPARED, max(LOGITS // head.out_features, LEAST))
    again = torch.is_grad_enabled() and (compare is not None or rows.shape[0] * head.out_features > _KEPT)
    for start in range(0, rows.shape[0], size):
        place = slice(start, min(start + size, rows.shape[0]))
        if again:
            parts.append(checkpoint(score, rows[place], place, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(score(rows[place], place))
    empty = hidden.new_zeros(wanted.shape, dtype=torch.float32)
    columns = [empty.masked_scatter(wanted, torch.cat(column)) for column in zip(*parts, strict=True)]
    if not columns:
        columns = [empty] * (2 if compare is None else 3)
    return Scored(*columns)


def check_packing(model: Any) -> None:
    """Raise ConfigError for a model whose layers see windows: a mask of ours would widen them."""
    if "sliding_attention" in (getattr(model.config, "layer_types", None) or ()):
        raise ConfigError(
            "packed: layers of this model have a sliding window, which packing would lose; set packed = 0"
        )


def placed(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which rows share a packed row of at most `most` tokens; one that is longer is alone."""
    bins: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = next((b for b, left in enumerate(room) if lengths[row] <= left), None)
        if fits is None:
            bins.append([])
            room.append(max(most, lengths[row]))
            fits = len(bins) - 1
        bins[fits].append(row)
        room[fits] -= lengths[row]
    return bins


def packed_hidden(model: Any, ids: torch.Tensor, lengths: Sequence[int], most: int) -> torch.Tensor:
    """Last hidden states of right-padded rows, (R, L, H), computed packed; 0 beyond a row's length.

    Args:
        model: a causal language model of transformers, with eager or sdpa attention.
        ids: (R, L) token ids.
        lengths: how many tokens of each row count.
        most: tokens of a packed row.
    """
    bins = [rows for rows in placed(lengths, most) if sum(lengths[row] for row in rows)]
    width = max((sum(lengths[row] for row in rows) for rows in bins), default=0)
    packed = ids.new_zeros(len(bins), width)
    positions = torch.zeros_like(packed)
    owner = torch.full_like(packed, -1)  # (B, W): which row a token is of; a token sees its own row alone
    spans: list[tuple[int, int, int]] = []
    for place, rows in enumerate(bins):
        start = 0
        for row in rows:
            span = slice(start, start + lengths[row])
            packed[place, span] = ids[row, : lengths[row]]
            positions[place, span] = torch.arange(lengths[row], device=ids.device)
            owner[place, span] = row
            spans.append((row, place, start))
            start += lengths[row]
    dtype = next(model.parameters()).dtype
    hidden: torch.Tensor = model.base_model(
        input_ids=packed, position_ids=positions, attention_mask=_mask(owner, dtype), use_cache=False
    ).last_hidden_state
    rows_hidden = hidden.new_zeros(*ids.shape, hidden.shape[-1])
    for row, place, start in spans:
        rows_hidden[row, : lengths[row]] = hidden[place, start : start + lengths[row]]
    return rows_hidden


def _mask(owner: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive (B, 1, W, W): 0 where a token may look: at its own row, not ahead; padding looks at padding."""
    width = owner.shape[1]
    same = owner[:, :, None] == owner[:, None, :]
    causal = torch.ones(width, width, dtype=torch.bool, device=owner.device).tril()
    hidden = torch.zeros(same.shape, dtype=dtype, device=owner.device)
    return hidden.masked_fill(~(same & causal), torch.finfo(dtype).min)[:, None]
