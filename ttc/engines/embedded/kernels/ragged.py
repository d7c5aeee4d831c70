"""The plan of a prefill: new tokens of several sequences, each after its own prefix in pages.

A sequence is the chain of nodes from the root to its new tokens, which are the last of the keys. The query heads of one
key head are packed, token by token, into tiles of rows, which any number of heads fills. A tile reads the keys of the
chain up to its last row, run by run; pages that follow each other without a gap form one run.

Cost: a sequence's keys are read once per tile of `tile // group` new tokens. Left out: sharing a prefix between
sequences. Short extensions of many branches are better planned as a forest (`plan`), one row for each new token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ttc.engines.embedded.kernels.plan import PAGE, Ints, PagedNode
from ttc.errors import ConfigError

RUN_FIELDS = 3
"""Fields of a run: offset into `pages`, keys, position of the first."""
TILE_FIELDS = 6
"""Of a tile: first query token of its sequence, first packed row, packed rows of the sequence, position of the
sequence's first new token, first run, end of runs."""


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """Nodes from the root on (their rows are ignored); the new tokens are the last `num_new` of their keys."""

    nodes: Sequence[PagedNode]
    num_new: int


@dataclass(frozen=True, slots=True)
class PrefillTable:
    """The plan on the device: tiles (tiles, TILE_FIELDS), runs (runs, RUN_FIELDS), pages; all int32."""

    tile: int
    group: int
    num_tokens: int
    tiles: torch.Tensor
    runs: torch.Tensor
    pages: torch.Tensor


def plan_prefill(
    sequences: Sequence[PagedSequence],
    *,
    group: int,
    tile: int,
    device: torch.device | str = "cpu",
    send: Callable[[Ints], torch.Tensor] | None = None,
) -> PrefillTable:
    """Plan the new tokens of all sequences, which are concatenated in the queries.

    Args:
        sequences: At least one new token each; positions are counted from the nodes.
        group: Query heads per key head.
        tile: Query rows of a program (`launches.prefill_launch`).
        device: Where the table goes.
        send: Copies it there; None waits for all work queued on the device.

    Raises:
        ConfigError: a chain has a gap, too few pages or too few keys; the message has the index.
    """
    runs: list[tuple[int, int, int]] = []
    pages: list[int] = []
    tiles: list[tuple[int, ...]] = []
    token = 0
    for i, sequence in enumerate(sequences):
        _check(i, sequence)
        first_run = len(runs)
        for node in sequence.nodes:
            _append(runs, pages, node, first_run)
        last = sequence.nodes[-1]
        start = last.start + last.num_tokens - sequence.num_new
        packed = sequence.num_new * group
        tiles += [(token, row, packed, start, first_run, len(runs)) for row in range(0, packed, tile)]
        token += sequence.num_new
    # the last tile of a sequence reads the most, and the longest tiles should start first
    tiles.sort(key=lambda fields: -(fields[3] + fields[1] // group))
    # one transfer; parts are 16-byte aligned so that kernels are compiled once
    parts = [np.array(part, np.int32).ravel() for part in (tiles, runs, pages)]
    sizes = [-(-len(part) // 4) * 4 for part in parts]
    ints = np.concatenate([np.pad(part, (0, size - len(part))) for part, size in zip(parts, sizes, strict=True)])
    whole = send(ints) if send is not None else torch.from_numpy(ints).to(device)
    flat = [part[: len(own)] for part, own in zip(whole.split(sizes), parts, strict=True)]
    return PrefillTable(
        tile, group, token,
        tiles=flat[0].view(-1, TILE_FIELDS), runs=flat[1].view(-1, RUN_FIELDS), pages=flat[2],
    )  # fmt: skip


def _append(runs: list[tuple[int, int, int]], pages: list[int], node: PagedNode, first_run: int) -> None:
    if not node.num_tokens:
        return
    whole = len(runs) > first_run and runs[-1][1] % PAGE == 0
    if whole:
        offset, count, start = runs[-1]
        runs[-1] = offset, count + node.num_tokens, start
    else:
        runs.append((len(pages), node.num_tokens, node.start))
    pages += list(node.pages[: -(-node.num_tokens // PAGE)])


def _check(index: int, sequence: PagedSequence) -> None:
    where = f"sequences[{index}]"
    total = sum(node.num_tokens for node in sequence.nodes)
    if not 1 <= sequence.num_new <= total:
        raise ConfigError(f"{where}.num_new must be 1 to {total}, the keys of its nodes, not {sequence.num_new}")
    for before, node in zip(sequence.nodes, sequence.nodes[1:], strict=False):
        if before.start + before.num_tokens != node.start:
            raise ConfigError(
                f"{where}: a node starts at {node.start}, the one before it ends at {before.start + before.num_tokens}"
            )
    if any(len(node.pages) * PAGE < node.num_tokens for node in sequence.nodes):
        raise ConfigError(f"{where}: a node has fewer pages than its tokens need")
