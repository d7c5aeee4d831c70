"""Cut a batch into mini-batches (an optimiser step each) and micro-batches (a forward pass each).

Both are pure functions of the batch's lengths and a number, so that every process of a run, and a resumed one, cuts
alike. Weights per token are fixed before (`train.update.normalise`): a micro-batch's losses add up.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from train.base.world import World

__all__ = ["micro_batches", "shared", "shuffled"]


def shuffled(num_rows: int, parts: int, number: int) -> list[torch.Tensor]:
    """Row numbers in `parts` mini-batches, mixed by a generator that depends on `number` alone; in order when one."""
    if parts == 1:
        return [torch.arange(num_rows)]
    maker = torch.Generator().manual_seed(number)
    return list(torch.randperm(num_rows, generator=maker).chunk(parts))


def micro_batches(mask: torch.Tensor, index: torch.Tensor, most: int, least: int = 1) -> Iterator[torch.Tensor]:
    """Cut `index` so that rows x longest row stays within `most` tokens; rows of like length together.

    Args:
        mask: (R, T) True at the tokens that are asked for.
        index: numbers of rows.
        most: padded tokens of one part; a single row may be longer.
        least: rows of every part, when there are so many.
    """
    index = index.to(mask.device)
    if not len(index):
        return
    lengths = _lengths(mask)[index]
    order = torch.argsort(lengths, stable=True)
    start, longest = 0, 0
    for end in range(len(index)):
        size = int(lengths[order[end]])
        if end - start >= least and len(index) - end >= least and max(longest, size) * (end - start + 1) > most:
            yield index[order[start:end]]
            start, longest = end, 0
        longest = max(longest, size)
    yield index[order[start:]]


def shared(mask: torch.Tensor, index: torch.Tensor, most: int, world: World) -> Iterator[torch.Tensor]:
    """This process's rows of every micro-batch, which is cut for all of them: so all have equally many parts.

    Unless there are fewer rows than processes, of which the last then get none.
    """
    for part in micro_batches(mask, index, most * world.size, world.size):
        mine = part[world.rank :: world.size]
        if len(mine):
            yield mine


def _lengths(mask: torch.Tensor) -> torch.Tensor:
    """Place of the last True of each row, from 1: (R,)."""
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return mask.long().mul(places).amax(1)
