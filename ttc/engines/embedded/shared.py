"""One decoding step for many branches, on a CPU: the keys of a shared prefix are read once per group of branches.

Every live branch is a row. A row belongs to a group (the draws of one prompt), whose prefix lives once in a `Prefixes`
bank; the tokens a row sampled itself live in `OwnRows`. Attention multiplies all queries of a group with the prefix at
once, each row with its own keys, and takes one softmax over both parts (the same sharing as Hydragen, Juravsky et al.
2024, arXiv 2402.05099).

In both, keys lie with the positions last, so that a step's scores are one batched matrix product; values with the head
last. All rows write their new key at the same column, so appending is one strided copy; a row that came later masks the
columns before its start. Products run over whole banks, which are therefore kept tight: on a part of a wider bank they
are slower, the more so the more rows. Cost: the rectangle of the oldest row's length for every row. Left out: prefixes
longer than memory; rows of very different age share one rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ttc.engines.embedded.cache import Segment
from ttc.engines.embedded.decode import Group
from ttc.engines.embedded.model import Body

__all__ = ["NEVER", "Grid", "OwnRows", "Prefixes", "SharedDecoder"]


NEVER = -1e30
"""Hides a key; finite, so that a row whose prefix is empty stays a number."""


@dataclass(slots=True)
class Grid:
    """The rows of one bank as (groups, most rows of a group) cells; members are its rows in the order of cells."""

    groups: int
    most: int
    longest: int  # prefix length of the longest group, at least 1
    rows: torch.Tensor | None  # (groups * most) row of every cell; None when it is 0 .. n-1
    members: torch.Tensor | None  # (count) row of every member; None when it is 0 .. n-1
    cells: torch.Tensor | None  # (count) cell of every member; None without padding
    members_of_cells: torch.Tensor | None  # (groups * most) member of every cell; None without padding
    mask: torch.Tensor | None  # (groups, 1, cap) additive; None when all prefixes are equally long
    weights: torch.Tensor  # (groups, kv heads, most, group, cap) scratch, zero beyond `longest`


class Prefixes:
    """Prefix keys (layers, slots, kv heads, D, cap) and values (layers, slots, kv heads, cap, D)."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.members: list[tuple[Group, list[int]]] = []  # per slot: the group and its rows
        self.keys, self.values = self._allocate(1, 32)

    def _allocate(self, slots: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        dims = self.body.dims
        lead = (dims.num_layers, slots, dims.num_kv_heads)
        new = self.body.weights.embed.new_zeros
        return new(*lead, dims.head_dim, length), new(*lead, length, dims.head_dim)

    def _reserve(self, slots: int, length: int) -> None:
        have_slots, have = self.keys.shape[1], self.keys.shape[4]
        longest = max((group.length for group, _ in self.members), default=0)
        cap = _room(max(length, longest))
        if slots <= have_slots and cap <= have <= 2 * cap:
            return
        old_keys, old_values, rows = self.keys, self.values, len(self.members)
        self.keys, self.values = self._allocate(have_slots if slots <= have_slots else max(slots, 2 * have_slots), cap)
        self.keys[:, :rows, :, :, :longest] = old_keys[:, :rows, :, :, :longest]
        self.values[:, :rows, :, :longest] = old_values[:, :rows, :, :longest]

    def open(self, group: Group, prefix: Segment | None) -> None:
        """Give the group a slot and copy its prefix there."""
        self._reserve(len(self.members) + 1, group.length + 1)
        group.slot = len(self.members)
        self.members.append((group, []))
        if prefix is not None:
            prefix.write_to(self.keys[:, group.slot].transpose(2, 3), self.values[:, group.slot])

    def close(self, group: Group) -> None:
        """Free the group's slot; the last group moves into it."""
        last, slot = len(self.members) - 1, group.slot
        if slot != last:
            moved = self.members[last][0]
            span = slice(0, moved.length)
            self.keys[:, slot, :, :, span] = self.keys[:, last, :, :, span]
            self.values[:, slot, :, span] = self.values[:, last, :, span]
            self.members[slot] = self.members[last]
            moved.slot = slot
        self.members.pop()
        group.slot = -1

    def append(self, group: Group, kv: torch.Tensor) -> None:
        """kv: (layers, 2, kv heads, 1, D)."""
        self._reserve(len(self.members), group.length + 1)
        self.keys[:, group.slot, :, :, group.length] = kv[:, 0, :, 0]
        self.values[:, group.slot, :, group.length] = kv[:, 1, :, 0]
        group.length += 1

    def grid(self, num_rows: int) -> Grid:
        """Lay out the rows as they are now."""
        device, dims, cap = self.body.device, self.body.dims, self.keys.shape[4]
        groups, most = len(self.members), max(len(rows) for _, rows in self.members)
        members = [row for _, rows in self.members for row in rows]
        cells = [i * most + j for i, (_, rows) in enumerate(self.members) for j in range(len(rows))]
        back = [0] * (groups * most)
        for member, cell in enumerate(cells):
            back[cell] = member
        lengths = [group.length for group, _ in self.members]
        longest = max(*lengths, 1)
        mask = None
        if min(lengths) < longest:
            beyond = torch.arange(cap)[None] >= torch.tensor(lengths)[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.body.dtype).masked_fill_(beyond, NEVER)
            mask = mask[:, None].to(device)
        whole, same = len(cells) == len(back), members == list(range(num_rows))
        return Grid(
            groups=groups,
            most=most,
            longest=longest,
            rows=None if same and whole else torch.tensor([members[i] for i in back], device=device),
            members=None if same else torch.tensor(members, device=device),
            cells=None if whole else torch.tensor(cells, device=device),
            members_of_cells=None if whole else torch.tensor(back, device=device),
            mask=mask,
            weights=self.keys.new_zeros(groups, dims.num_kv_heads, most, dims.group, cap),
        )


class OwnRows:
    """Own keys (layers, rows, kv heads, D, columns) and values (layers, rows, kv heads, columns, D)."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.column = 0
        self.starts: list[int] = []
        self.keys, self.values = self._allocate(4, 32)
        self.mask: torch.Tensor | None = None  # (rows, 1, 1, columns) additive; None while all rows are equally old
        self.weights = self.keys  # (rows, kv heads, group, columns) scratch, zero outside `span`
        self.span = slice(0, 0)  # columns that some row sees

    def _allocate(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        dims = self.body.dims
        lead = (dims.num_layers, rows, dims.num_kv_heads)
        new = self.body.weights.embed.new_zeros
        return new(*lead, dims.head_dim, columns), new(*lead, columns, dims.head_dim)

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows and one more column; columns that no row needs any more are dropped."""
        have_rows, have = self.keys.shape[1], self.keys.shape[4]
        if rows <= have_rows and self.column < have:
            return
        first = min(self.starts, default=self.column)
        columns, live = self.column - first, len(self.starts)
        keys, values = self._allocate(have_rows if rows <= have_rows else max(rows, 2 * have_rows), _room(columns + 1))
        keys[:, :live, :, :, :columns] = self.keys[:, :live, :, :, first : self.column]
        values[:, :live, :, :columns] = self.values[:, :live, :, first : self.column]
        self.keys, self.values, self.column = keys, values, columns
        self.starts = [start - first for start in self.starts]

    def move(self, source: int, target: int) -> None:
        """Copy what row `source` has sampled to row `target`."""
        span = slice(self.starts[source], self.column)
        self.keys[:, target, :, :, span] = self.keys[:, source, :, :, span]
        self.values[:, target, :, span] = self.values[:, source, :, span]
        self.starts[target] = self.starts[source]

    def prepare(self) -> None:
        """Make mask and scratch for the rows as they are now."""
        dims, columns = self.body.dims, self.keys.shape[4]
        first = min(self.starts)
        self.weights = self.keys.new_zeros(len(self.starts), dims.num_kv_heads, dims.group, columns)
        self.mask = None
        if max(self.starts) > first:
            before = torch.arange(columns)[None] < torch.tensor(self.starts)[:, None]
            mask = torch.zeros(before.shape, dtype=self.body.dtype).masked_fill_(before, NEVER)
            self.mask = mask[:, None, None].to(self.body.device)
        self.span = slice(first, self.column)


def _room(length: int) -> int:
    """Capacity for `length` columns: matrix products run over all of it, so little more than asked."""
    step = 32
    while step * 8 < length:
        step *= 2
    return -(-length // step) * step


_BANKS = (4, 32, 1 << 30)
"""Groups are padded to the largest of their bank, so groups of like size share one: up to 4 rows, up to 32, more."""


class SharedDecoder:
    """The `Decoder` for CPUs."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.num_rows = 0
        self._groups: list[Group] = []  # per row
        self._rows = OwnRows(body)
        self._never = torch.full((1,), NEVER, dtype=body.dtype, device=body.device)
        self._banks = tuple(Prefixes(body) for _ in _BANKS)
        self._grids: list[tuple[Prefixes, Grid]] | None = None

    def open(self, prefix: Segment | None, num_draws: int) -> Group:
        """See `Decoder.open`."""
        group = Group(prefix.end if prefix is not None else 0)
        group.bank = next(i for i, most in enumerate(_BANKS) if num_draws <= most)
        self._banks[group.bank].open(group, prefix)
        self._grids = None
        return group

    def close(self, group: Group) -> None:
        """See `Decoder.close`."""
        self._banks[group.bank].close(group)
        self._grids = None

    def add(self, group: Group) -> int:
        """See `Decoder.add`."""
        row = self.num_rows
        self._rows.reserve(row + 1)
        self._rows.starts.append(self._rows.column)
        self._groups.append(group)
        self._members(row).append(row)
        self.num_rows += 1
        self._grids = None
        return row

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        last = self.num_rows - 1
        self._members(row).remove(row)
        if row != last:
            self._rows.move(last, row)
            members = self._members(last)
            members[members.index(last)] = row
            self._groups[row] = self._groups[last]
        self._groups.pop()
        self._rows.starts.pop()
        self.num_rows = last
        self._grids = None

    def absorb(self, row: int) -> None:
        """See `Decoder.absorb`."""
        group = self._groups[row]
        self._banks[group.bank].append(group, self.taken(row, 1))
        self._rows.starts[row] = self._rows.column
        self._grids = None

    def taken(self, row: int, count: int) -> torch.Tensor:
        """See `Decoder.taken`."""
        span = slice(self._rows.column - count, self._rows.column)
        keys = self._rows.keys[:, row, :, :, span].transpose(2, 3)
        return torch.stack((keys, self._rows.values[:, row, :, span]), 1)

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`."""
        if self._rows.column == self._rows.keys.shape[4]:
            self._rows.reserve(self.num_rows)
            self._grids = None
        if self._grids is None:
            self._rows.prepare()
            self._grids = [(bank, bank.grid(self.num_rows)) for bank in self._banks if any(m for _, m in bank.members)]
        self._rows.span = slice(self._rows.span.start, self._rows.column + 1)
        device = self.body.device
        hidden = self.body.forward(
            torch.as_tensor(tokens, device=device), torch.as_tensor(positions, device=device), self._attend
        )
        self._rows.column += 1
        return hidden

    def _members(self, row: int) -> list[int]:
        group = self._groups[row]
        return self._banks[group.bank].members[group.slot][1]

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        dims, rows, num = self.body.dims, self._rows, self.num_rows
        rows.keys[layer, :num, :, :, rows.column] = k
        rows.values[layer, :num, :, rows.column] = v
        shape = (num, dims.num_kv_heads, dims.group, -1)
        own = torch.bmm(q.reshape(num * shape[1], dims.group, -1), rows.keys[layer, :num].flatten(0, 1))
        own = own.view(shape)[..., rows.span]
        if rows.mask is not None:
            own.add_(rows.mask[..., rows.span])
        prefix = q.new_empty(num, dims.num_kv_heads, dims.group, dims.head_dim)
        for bank, grid in self._grids or ():
            mine = own if grid.members is None else own.index_select(0, grid.members)
            scores = _prefix_scores(bank, grid, layer, q, shape)
            extra = -(grid.longest + mine.shape[3]) % 32
            pad = self._never.expand(*mine.shape[:3], extra)
            weights = torch.softmax(torch.cat((scores, mine, pad), -1), -1)
            part = _prefix_values(bank, grid, layer, weights[..., : grid.longest])
            rest = weights[..., grid.longest : grid.longest + mine.shape[3]]
            if grid.members is None:
                prefix = part
                rows.weights[..., rows.span] = rest
            else:
                prefix.index_copy_(0, grid.members, part)
                rows.weights[..., rows.span].index_copy_(0, grid.members, rest)
        return torch.baddbmm(
            prefix.reshape(num * shape[1], dims.group, -1),
            rows.weights.flatten(0, 1),
            rows.values[layer, :num].flatten(0, 1),
        ).view(num, -1)


def _prefix_scores(bank: Prefixes, grid: Grid, layer: int, q: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Scores of the bank's rows over their prefixes: (count, kv heads, group, longest)."""
    _, heads, share, _ = shape
    groups, most = grid.groups, grid.most
    if grid.rows is not None:
        q = q.index_select(0, grid.rows)
    q = q.reshape(groups, most, heads, share, -1).transpose(1, 2).reshape(groups * heads, most * share, -1)
    scores = torch.bmm(q, bank.keys[layer, :groups].flatten(0, 1))
    if grid.mask is not None:
        scores.view(groups, -1, scores.shape[2]).add_(grid.mask)
    scores = scores.view(groups, heads, most, share, -1).transpose(1, 2)[..., : grid.longest]
    scores = scores[0] if groups == 1 else scores.reshape(groups * most, heads, share, -1)
    return scores if grid.cells is None else scores.index_select(0, grid.cells)


def _prefix_values(bank: Prefixes, grid: Grid, layer: int, weights: torch.Tensor) -> torch.Tensor:
    """Weighted values of the prefixes: weights (count, kv heads, group, longest) -> (count, kv heads, group, D)."""
    groups, most = grid.groups, grid.most
    if grid.members_of_cells is not None:
        weights = weights.index_select(0, grid.members_of_cells)
    heads, share = weights.shape[1], weights.shape[2]
    grid.weights[..., : grid.longest] = weights.reshape(groups, most, heads, share, -1).transpose(1, 2)
    flat = grid.weights.view(groups * heads, most * share, -1)
    out = torch.bmm(flat, bank.values[layer, :groups].flatten(0, 1))
    out = out.view(groups, heads, most, share, -1).transpose(1, 2).reshape(groups * most, heads, share, -1)
    return out if grid.cells is None else out.index_select(0, grid.cells)
