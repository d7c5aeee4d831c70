"""Packing: several short rows in one long one, none of which attends to another.

The hidden states of a batch are computed from rows that are laid end to end instead of padded; positions start anew
with each, and a block-diagonal causal mask keeps them apart, so the numbers are those of the padded batch (a test says
to 1e-6). Packing without such a mask taught models to repeat themselves (open-r1 issue 520). Krell et al. 2021
(arXiv:2107.02027); rows are placed first-fit, longest first. Cost: no padding, but attention over the whole packed row:
on a CPU, where updates batch rows of like length anyhow, it is rarely faster. Left out: kernels that skip the masked
blocks, models with sliding windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttc.errors import ConfigError

__all__ = ["check_packing", "packed_hidden", "placed"]


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
    owner = torch.full_like(packed, -1)
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
    found = hidden.new_zeros(*ids.shape, hidden.shape[-1])
    for row, place, start in spans:
        found[row, : lengths[row]] = hidden[place, start : start + lengths[row]]
    return found


def _mask(owner: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive (B, 1, W, W): 0 where a token may look: at its own row, not ahead; padding looks at padding."""
    width = owner.shape[1]
    same = owner[:, :, None] == owner[:, None, :]
    causal = torch.ones(width, width, dtype=torch.bool, device=owner.device).tril()
    hidden = torch.zeros(same.shape, dtype=dtype, device=owner.device)
    return hidden.masked_fill(~(same & causal), torch.finfo(dtype).min)[:, None]
