"""The plan of a decoding step: which keys are read for which rows, cut into pieces of work.

A node of the tree owns pages of keys; every batch row below it attends to them. `plan_forest` cuts each node into
items: a run of keys, and a block of rows whose query heads fill at most one tile of the kernel. An item reads its keys
once for all of its rows and writes one partial result for each; the partials of a row are merged by their log-sum-exp.
So a unique key is read once per step per block of `tile // group` rows, by `num_kv_heads` programs that each read their
own head: `keys_read` counts keys, `bytes_read` bytes. (Blocks of one run start together, so all but the first should
find it in the device's cache; that is not counted.) A run is at most an even share of all work (at least MIN_KEYS), so
a single long row occupies the whole device, and a long node beside short ones does not finish last.

Positions are absolute. A row attends to keys at or before its own position (and after position - window): so a plan may
include room that its rows have not reached yet, and stays valid while a captured step advances `positions` on the
device. Rows may also be several new tokens of one sequence, whose keys are in a common node.

Cost: O(nodes) in Python, the rest in numpy, if pages are arrays. Left out: nodes that begin within a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ttc.errors import ConfigError, EngineError

PAGE = 16
"""Keys per page."""
MIN_KEYS = 128
"""Fewest keys of a piece: two blocks of the kernel, whose loads overlap."""
TILES = (16, 64, 128)
"""Query rows (rows x query heads of one key head) of a program."""
ITEM_FIELDS = 5
"""Fields of an item: offset into `pages`, keys, position of the first key, offset into `members`, rows."""
_BLOCK = 64  # keys; pieces are multiples of this
_WAVES = 2  # programs per multiprocessor at a time
_ALIGNED = 4  # numbers

Ints: TypeAlias = NDArray[np.int32]
_Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PagedNode:
    """Keys of consecutive positions, the first at slot 0 of the first page, and the batch rows that attend to them."""

    pages: Sequence[int] | NDArray[np.integer]
    num_tokens: int
    start: int
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class PlanCapacity:
    """The sizes of a plan's buffers."""

    rows: int
    items: int
    members: int
    pages: int

    @property
    def size(self) -> int:
        """Length of the one int32 buffer."""
        return sum(self.parts)

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of a plan's arrays in the buffer, in order, 16-byte aligned so that kernels are compiled once."""
        numbers = (4, self.items * ITEM_FIELDS, self.pages, self.members, self.rows, self.rows + 1, self.members)
        return tuple(_ceil_int(number, _ALIGNED) * _ALIGNED for number in numbers)

    def holds(self, other: PlanCapacity) -> bool:
        """Whether a plan that needs `other` fits."""
        mine = (self.rows, self.items, self.members, self.pages)
        return all(a >= b for a, b in zip(mine, (other.rows, other.items, other.members, other.pages), strict=True))


@dataclass(frozen=True, slots=True)
class ForestSchedule:
    """A plan on the host.

    items: (items, ITEM_FIELDS); pages: page ids, concatenated; members: (partials) the batch row of each partial
    result, item by item; positions: (rows) of the queries; row_starts: (rows + 1) where a row's list in `row_partials`
    begins.
    """

    tile: int
    group: int
    items: Ints
    pages: Ints
    members: Ints
    positions: Ints
    row_starts: Ints
    row_partials: Ints

    @property
    def needs(self) -> PlanCapacity:
        """The smallest capacity that holds this plan."""
        return PlanCapacity(len(self.positions), len(self.items), len(self.members), len(self.pages))

    def pack(self, capacity: PlanCapacity) -> Ints:
        """All arrays in one buffer in the layout of `ForestPlan`, for a single transfer to the device."""
        if not capacity.holds(self.needs):
            raise EngineError(f"the plan needs {self.needs}, its buffers hold {capacity}: allocate larger ones")
        counts = np.array([len(self.items), len(self.members), len(self.positions), 0], np.int32)
        parts = (
            counts, self.items.ravel(), self.pages, self.members, self.positions, self.row_starts, self.row_partials,
        )  # fmt: skip
        sizes = zip(parts, capacity.parts, strict=True)
        return np.concatenate([np.pad(part, (0, size - len(part))) for part, size in sizes])


@dataclass(frozen=True, slots=True)
class ForestPlan:
    """A plan on the device: views of one int32 buffer, whose addresses never change.

    Kernels are launched for the whole capacity; a program beyond `counts` (items, partials, rows, 0) returns at once.
    So a captured graph replays any schedule that was loaded, if it was planned for the same tile and group.
    """

    capacity: PlanCapacity
    tile: int
    group: int
    buffer: torch.Tensor
    counts: torch.Tensor  # (4)
    items: torch.Tensor  # (items, ITEM_FIELDS)
    pages: torch.Tensor  # (pages), padded to 16 bytes, as are the following
    members: torch.Tensor  # (members)
    positions: torch.Tensor  # (rows); a captured step may advance it, or `replace` it by its own buffer
    row_starts: torch.Tensor  # (rows + 1)
    row_partials: torch.Tensor  # (members)

    @classmethod
    def over(cls, buffer: torch.Tensor, capacity: PlanCapacity, *, tile: int, group: int) -> ForestPlan:
        """Views of a contiguous int32 `buffer` of `capacity.size` numbers, which the caller owns."""
        if buffer.dtype != torch.int32 or buffer.shape != (capacity.size,) or not buffer.is_contiguous():
            raise ConfigError(
                f"buffer must be ({capacity.size},) contiguous int32, not {tuple(buffer.shape)} {buffer.dtype}"
            )
        counts, items, *rest = buffer.split(capacity.parts)
        items = items[: capacity.items * ITEM_FIELDS].view(capacity.items, ITEM_FIELDS)
        return cls(capacity, tile, group, buffer, counts, items, *rest)

    @classmethod
    def of(cls, schedule: ForestSchedule, device: torch.device | str = "cpu") -> ForestPlan:
        """A plan in buffers of exactly the schedule's size."""
        buffer = torch.zeros(schedule.needs.size, dtype=torch.int32, device=device)
        plan = cls.over(buffer, schedule.needs, tile=schedule.tile, group=schedule.group)
        plan.load(schedule)
        return plan

    def load(self, schedule: ForestSchedule) -> None:
        """Load another schedule; raises `EngineError` if it does not fit, and keeps the old one then."""
        if (schedule.tile, schedule.group) != (self.tile, self.group):
            raise EngineError(
                f"planned for tile {schedule.tile} and group {schedule.group}, "
                f"the buffers are for {self.tile} and {self.group}"
            )
        self.buffer.copy_(torch.from_numpy(schedule.pack(self.capacity)))


def choose_tile(most_rows: int, group: int, max_tile: int = TILES[-1]) -> int:
    """The smallest tile that holds `most_rows` rows (the most below one node), else the largest allowed."""
    if not 1 <= group <= max_tile:
        raise ConfigError(f"group must be 1 to {max_tile} query heads of one key head, not {group}")
    return next((tile for tile in TILES if most_rows * group <= tile <= max_tile), max_tile)


def plan_forest(
    nodes: Sequence[PagedNode],
    positions: Sequence[int],
    *,
    group: int,
    num_kv_heads: int,
    tile: int | None = None,
    multiprocessors: int = 132,
    window: int | None = None,
) -> ForestSchedule:
    """Cut the nodes into items.

    Args:
        nodes: In any order; a row's keys are those of all nodes that list it.
        positions: Of each batch row's query; the row attends to keys at or before it.
        group: Query heads per key head.
        num_kv_heads: Key heads; each is a program of its own.
        tile: Query rows of a program, one of TILES; None chooses by the widest node. Large heads and fp32 allow small
            tiles only (`launches.widest_tile`).
        multiprocessors: Number on the device, which the items should occupy.
        window: A row attends to its last `window` positions only; pages outside the windows of all rows of their node
            are left out.

    Raises:
        ConfigError: names the invalid field.
    """
    _check(nodes, len(positions), group, tile, window)
    places = np.asarray(positions, np.int64)
    nodes = [node for node in (_trim(node, places, window) for node in nodes) if node.num_tokens and len(node.rows)]
    tile = choose_tile(max((len(node.rows) for node in nodes), default=1), group) if tile is None else tile
    tokens = np.array([node.num_tokens for node in nodes], np.int64)
    widths = np.array([len(node.rows) for node in nodes], np.int64)
    blocks = _ceil(widths, tile // group)
    spans = _spans(tokens, blocks, num_kv_heads, multiprocessors)
    firsts = np.cumsum([0, *(_ceil_int(node.num_tokens, PAGE) for node in nodes)])

    # One line per item: a node, its piece and its block of rows. Blocks of one piece are adjacent, so that the second
    # finds the keys in the device's cache; long pieces come first, so that none starts last.
    pieces = _ceil(tokens, spans)
    counts = pieces * blocks
    node = np.repeat(np.arange(len(nodes)), counts)
    index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    piece, block = index // blocks[node], index % blocks[node]
    skip = piece * spans[node]
    keys = np.minimum(spans[node], tokens[node] - skip)
    share = _ceil(widths, blocks)[node]
    low = np.minimum(block * share, widths[node])
    rows = np.minimum(share, widths[node] - low)
    order = np.argsort(-keys, kind="stable")
    order = order[rows[order] > 0]
    node, skip, keys, low, rows = (part[order] for part in (node, skip, keys, low, rows))

    starts = np.array([n.start for n in nodes], np.int64)
    offsets = np.cumsum(rows) - rows
    items = np.stack((firsts[node] + skip // PAGE, keys, starts[node] + skip, offsets, rows), 1)
    below = np.concatenate([np.asarray(n.rows, np.int64) for n in nodes]) if nodes else np.zeros(0, np.int64)
    member = np.repeat((np.cumsum(widths) - widths)[node] + low - offsets, rows) + np.arange(rows.sum())
    members = below[member]
    pages = [np.asarray(n.pages, np.int64)[: _ceil_int(n.num_tokens, PAGE)] for n in nodes]
    return ForestSchedule(
        tile, group,
        items=items.reshape(-1, ITEM_FIELDS).astype(np.int32),
        pages=(np.concatenate(pages) if pages else np.zeros(0)).astype(np.int32),
        members=members.astype(np.int32),
        positions=places.astype(np.int32),
        row_starts=np.searchsorted(np.sort(members), np.arange(len(places) + 1)).astype(np.int32),
        row_partials=np.argsort(members, kind="stable").astype(np.int32),
    )  # fmt: skip


def keys_read(schedule: ForestSchedule) -> int:
    """Keys that one step reads of one key head: `sum(node.num_tokens)` when every node's rows fit one tile."""
    return int(schedule.items[:, 1].sum())


def bytes_read(schedule: ForestSchedule, *, num_kv_heads: int, head_dim: int, element_size: int = 2) -> int:
    """Bytes of keys and values that one step reads in one layer."""
    return keys_read(schedule) * 2 * num_kv_heads * head_dim * element_size


def _spans(tokens: _Counts, blocks: _Counts, num_kv_heads: int, multiprocessors: int) -> _Counts:
    """Keys per piece of each node: an even share of all work, in whole blocks of keys, equal within a node."""
    work = _ceil(tokens, _BLOCK)
    share = _ceil_int(int((work * blocks).sum()) * num_kv_heads, _WAVES * multiprocessors)
    pieces = _ceil(work, max(share, MIN_KEYS // _BLOCK))
    return _ceil(work, np.maximum(pieces, 1)) * _BLOCK


def _trim(node: PagedNode, positions: _Counts, window: int | None) -> PagedNode:
    """The node without leading pages that lie outside the windows of all its rows."""
    if window is None or not len(node.rows):
        return node
    unseen = int(positions[list(node.rows)].min()) - window + 1 - node.start
    skip = min(max(unseen, 0) // PAGE, _ceil_int(node.num_tokens, PAGE))
    if not skip:
        return node
    tokens = max(node.num_tokens - skip * PAGE, 0)
    return replace(node, pages=node.pages[skip:], num_tokens=tokens, start=node.start + skip * PAGE)


def _check(nodes: Sequence[PagedNode], num_rows: int, group: int, tile: int | None, window: int | None) -> None:
    if tile is not None and tile not in TILES:
        raise ConfigError(f"tile must be one of {TILES}, not {tile}")
    if not 1 <= group <= (tile or TILES[-1]):
        raise ConfigError(f"group must be 1 to {tile or TILES[-1]} query heads of one key head, not {group}")
    if window is not None and window < 1:
        raise ConfigError(f"window must be at least 1, not {window}")
    for i, node in enumerate(nodes):
        if len(node.pages) * PAGE < node.num_tokens:
            raise ConfigError(f"nodes[{i}]: {len(node.pages)} pages do not hold {node.num_tokens} tokens")
        if len(node.rows) and not 0 <= min(node.rows) <= max(node.rows) < num_rows:
            raise ConfigError(f"nodes[{i}].rows must be 0 to {num_rows - 1}, where `positions` has a place")


def _ceil(count: _Counts, size: _Counts | int) -> _Counts:
    quotient: _Counts = -(-count // size)
    return quotient


def _ceil_int(count: int, size: int) -> int:
    return -(-count // size)
