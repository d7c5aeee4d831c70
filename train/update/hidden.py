"""What a model's body makes of rows that are read as a whole: the hidden states that a reward head is read from.

Rows of like length go through together, cut as a batch of training is (`train.update.batch`), so that little is padded;
causal attention never sees padding on the right. Memory: where a gradient is wanted, all parts are kept for it, as one
padded batch would be, less its padding. Cost: the cut, about a microsecond for a pair of rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from train.update.batch import micro_batches, pad


def last_hidden(model: Any, rows: Sequence[Sequence[int]], pad_id: int) -> list[torch.Tensor]:
    """Last hidden states of every row, in order: (L, H) each, L its own number of ids.

    Args:
        model: a model of transformers with any head; its body is used alone.
        rows: token ids, each row from the start of its text.
        pad_id: fills rows up on the right.
    """
    device = next(model.parameters()).device
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(int(lengths.max()), device=device)[None] < lengths[:, None]
    states: dict[int, torch.Tensor] = {}
    for part in micro_batches(mask, torch.arange(len(rows)), sys.maxsize):
        numbers = part.tolist()
        ids = pad([rows[number] for number in numbers], pad_id).to(device)
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        states |= {number: own[: len(rows[number])] for number, own in zip(numbers, hidden, strict=True)}
    return [states[number] for number in range(len(rows))]
