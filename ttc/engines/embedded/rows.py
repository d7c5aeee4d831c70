"""Decoders whose rows each hold their whole context in one piece: the base of `invariant` and `cuda`.

A prefix is copied once per row; in return every row is a plain rectangle that starts at position 0, which fixed-order
sums and captured graphs both need. `ForestDecoder` is the one that reads a shared prefix once.
"""

from __future__ import annotations

import torch

from ttc.engines.embedded.model import Body
from ttc.engines.embedded.pool import Segment

__all__ = ["BLOCK", "WholeRows"]

BLOCK = 64
"""Capacity grows in steps of this many positions."""


class WholeRows:
    """All of a `Decoder` but `step`: keys and values are (layers, rows, kv heads, positions, head size)."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.num_rows = 0
        self._segments: list[Segment] = []
        self._lengths: list[int] = []
        self._keys, self._values = self._allocate(4, BLOCK)

    def _allocate(self, rows: int, length: int) -> torch.Tensor:
        dims = self.body.dims
        shape = (2, dims.num_layers, rows, dims.num_kv_heads, length, dims.head_dim)
        return torch.zeros(shape, dtype=self.body.dtype, device=self.body.device)

    def _reserve(self, rows: int, length: int) -> None:
        have_rows, have = self._keys.shape[1], self._keys.shape[3]
        if rows <= have_rows and length <= have:
            return
        rows_before, longest = self.num_rows, max(self._lengths, default=0)
        old_keys, old_values = self._keys, self._values
        blocks = -(-max(length, longest) // BLOCK)
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        self._keys, self._values = self._allocate(rows, BLOCK * blocks)
        self._keys[:, :rows_before, :, :longest] = old_keys[:, :rows_before, :, :longest]
        self._values[:, :rows_before, :, :longest] = old_values[:, :rows_before, :, :longest]

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`; copies what is before."""
        row, end = self.num_rows, segment.end
        self._reserve(row + 1, end + 1)
        if end:
            kv = self.body.pool.read_chain(segment, 0, end)
            self._keys[:, row, :, :end], self._values[:, row, :, :end] = kv[:, 0], kv[:, 1]
        self._segments.append(segment)
        self._lengths.append(end)
        self.num_rows += 1
        return row

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        segment, last = self._segments[row], self.num_rows - 1
        span = slice(segment.end, self._lengths[row])
        self.body.pool.append(segment, torch.stack((self._keys[:, row, :, span], self._values[:, row, :, span]), 1))
        if row != last:
            self._keys[:, row] = self._keys[:, last]
            self._values[:, row] = self._values[:, last]
            self._segments[row], self._lengths[row] = self._segments[last], self._lengths[last]
        self._segments.pop()
        self._lengths.pop()
        self.num_rows = last
