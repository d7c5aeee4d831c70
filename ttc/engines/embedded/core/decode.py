"""The seam between the scheduler and what computes a decoding step.

Decoders: `forest` (a CPU: every key is read once for all rows below it), `invariant` (batch-invariant), `fallback`
(transformers' own module). On a GPU rows stay on the device for several tokens: `gpu.decoder`, a seam of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ttc.engines.embedded.core.pool import Segment

__all__ = ["Decoder"]


class Decoder(Protocol):
    """What the scheduler needs. Rows are always 0 .. num_rows - 1; removing one moves the last into its place."""

    num_rows: int

    def add(self, segment: Segment) -> int:
        """Add a row that appends its tokens to `segment`, which nobody else appends to; returns its number."""
        ...

    def remove(self, row: int) -> None:
        """Drop a row, whose keys and values are all in its segment from now on; the last row takes its number."""
        ...

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token per row, keep its keys and values; returns hidden states (num_rows, D)."""
        ...
