"""Decoders whose rows each hold their whole context in one piece: the base of `invariant` and `cuda`.

A prefix is copied once per row; in return every row is a plain rectangle that starts at position 0, which fixed-order
sums and captured graphs both need. `SharedDecoder` is the one that reads a shared prefix once.
"""

from __future__ import annotations

import torch

from ttc.engines.embedded.cache import Segment
from ttc.engines.embedded.decode import Group
from ttc.engines.embedded.model import Body

__all__ = ["BLOCK", "WholeRows"]

BLOCK = 64
"""Capacity grows in steps of this many positions."""


class WholeRows:
    """All of a `Decoder` but `step`: keys and values are (layers, rows, kv heads, positions, head size)."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.num_rows = 0
        self._groups: list[Group] = []
        self._prefixes: dict[Group, Segment | None] = {}
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

    def open(self, prefix: Segment | None, num_draws: int) -> Group:
        """See `Decoder.open`."""
        group = Group(prefix.end if prefix is not None else 0)
        self._prefixes[group] = prefix
        return group

    def close(self, group: Group) -> None:
        """See `Decoder.close`."""
        del self._prefixes[group]

    def add(self, group: Group) -> int:
        """See `Decoder.add`; copies the prefix."""
        row, prefix = self.num_rows, self._prefixes[group]
        self._reserve(row + 1, group.length + 1)
        if prefix is not None:
            prefix.write_to(self._keys[:, row], self._values[:, row])
        self._groups.append(group)
        self._lengths.append(group.length)
        self.num_rows += 1
        return row

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        last = self.num_rows - 1
        if row != last:
            self._keys[:, row] = self._keys[:, last]
            self._values[:, row] = self._values[:, last]
            self._groups[row], self._lengths[row] = self._groups[last], self._lengths[last]
        self._groups.pop()
        self._lengths.pop()
        self.num_rows = last

    def absorb(self, row: int) -> None:
        """See `Decoder.absorb`."""
        group = self._groups[row]
        self._prefixes[group] = Segment(self._prefixes[group], self.taken(row, 1))
        group.length += 1

    def taken(self, row: int, count: int) -> torch.Tensor:
        """See `Decoder.taken`."""
        span = slice(self._lengths[row] - count, self._lengths[row])
        return torch.stack((self._keys[:, row, :, span], self._values[:, row, :, span]), 1)
