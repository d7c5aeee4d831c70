"""Attention of a few new tokens of each of many paths, on a CPU: what a reward model computes after every step.

`PrefixAttention` copies what is before an item, for every layer, and pads items of unlike length; that pays where many
tokens read it. Ten do not: here every new token is a row of the decoding kernel (`native.attend`), which reads its keys
where they lie, those of its own step included. Cost: what is before a path is read once for each new token; so only
what `is_step` comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ttc.engines.embedded.core.pool import PAGE, PagePool, Segment

__all__ = ["StepAttention", "is_step"]

_WORTH = 8192
"""New tokens of an item times what they read, up to which reading it for each of them takes less time."""
_NOTHING = -1e30
"""The logarithm of no keys, as `native.attend` has it."""


def is_step(start: int, count: int) -> bool:
    """Whether `count` new tokens behind `start` others are few enough."""
    return count * (start + count) <= _WORTH


class StepAttention:
    """For one batch: writes the new keys and values of each layer into their pages, and attends, a row a token."""

    def __init__(self, pool: PagePool, items: Sequence[tuple[Segment, int]], kernels: ModuleType) -> None:
        """`items`: (segment, new tokens); the pages of the new tokens are reserved, `length` is still without them."""
        self._shelf, self._kernels = pool.shelf, kernels
        pages, counts, firsts, lasts = list[int](), list[int](), list[int](), list[int]()
        slots = []
        for segment, count in items:
            before = _before(segment)
            for length in range(segment.length + 1, segment.length + count + 1):
                full, rest = divmod(length, PAGE)
                firsts.append(len(pages))
                pages += before[0]
                pages += segment.pages[: full + (rest > 0)]
                counts += before[1]
                counts += [PAGE] * full
                if rest:
                    counts.append(rest)
                lasts.append(len(pages))
            slots.append(pool.slots(segment, segment.length, count))
        at = np.concatenate(slots)
        self._pages, self._offsets = at // PAGE, at % PAGE
        self._table = tuple(np.array(x, np.int64) for x in (pages, counts, firsts, lasts))
        dims = pool.shelf.dims
        shape = (len(at), dims.num_heads, dims.head_dim)
        self._seed = np.full(shape[:2], _NOTHING, np.float32)
        self._totals = np.empty(shape, np.float32)  # read only where there is a seed
        self._out = torch.empty(shape, dtype=pool.shelf.dtype)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `model.Attend`; the next layer overwrites what is returned."""
        kernels, at = self._kernels, self._shelf.arrays(layer)
        kernels.store(len(k), 2 * k.numel(), *map(kernels.array, (k, v)), self._pages, self._offsets, *at)
        numbers = 2 * self._table[0].size * at[0][0].size  # keys and values of a page are as many
        ends: tuple[Any, ...] = (self._seed, self._totals, kernels.array(self._out))
        kernels.attend(len(q), numbers, kernels.array(q), *at, *self._table, *ends)
        return self._out.flatten(1)


def _before(segment: Segment) -> tuple[list[int], list[int]]:
    """Pages of all that is before a segment, and positions of each."""
    pages, counts = list[int](), list[int]()
    part = segment.parent
    while part is not None:
        full, rest = divmod(part.length, PAGE)
        pages += part.pages[: full + (rest > 0)]
        counts += [PAGE] * full
        if rest:
            counts.append(rest)
        part = part.parent
    return pages, counts
