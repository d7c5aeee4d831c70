"""The seam between the scheduler and what computes a decoding step.

Decoders: `shared` (a CPU: a prefix is read once for all its draws), `invariant` (batch-invariant), `cuda` (captured
graphs), `fallback` (transformers' own module).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ttc.engines.embedded.cache import Segment

__all__ = ["Decoder", "Group"]


class Group:
    """The draws of one prompt: a handle owned by the decoder that made it; `length` is its prefix in tokens."""

    __slots__ = ("bank", "length", "slot")

    def __init__(self, length: int) -> None:
        self.length = length
        self.bank = -1
        self.slot = -1


class Decoder(Protocol):
    """What the scheduler needs. Rows are always 0 .. num_rows - 1; removing one moves the last into its place."""

    num_rows: int

    def open(self, prefix: Segment | None, num_draws: int) -> Group:
        """Make the prefix ready for about `num_draws` rows; raises nothing, copies the prefix once."""
        ...

    def close(self, group: Group) -> None:
        """Free a group without rows."""
        ...

    def add(self, group: Group) -> int:
        """Add a row that continues the group's prefix; returns its number."""
        ...

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its number."""
        ...

    def absorb(self, row: int) -> None:
        """Append the one token of `row` to its group's prefix (no other row of the group may exist)."""
        ...

    def taken(self, row: int, count: int) -> torch.Tensor:
        """Copy the last `count` keys and values of `row`: (layers, 2, kv heads, count, head size)."""
        ...

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Feed one token per row, keep its keys and values; returns hidden states (num_rows, D)."""
        ...
