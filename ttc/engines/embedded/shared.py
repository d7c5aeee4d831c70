"""One decoding step for many branches, on a CPU: the keys of a shared prefix are read once per group of branches.

Every live branch is a row. A row belongs to a group (the draws of one prompt), whose prefix lives once in a `Prefixes`
bank; the tokens a row sampled itself live in `OwnRows`. Attention multiplies all queries of a group with the prefix at
once, each row with its own keys, and takes one softmax over both parts (the same sharing as Hydragen, Juravsky et al.
2024, arXiv 2402.05099). Left out: prefixes longer than memory; rows of very different age share one rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.engines.embedded.banks import NEVER, Grid, OwnRows, Prefixes
from ttc.engines.embedded.cache import Segment
from ttc.engines.embedded.decode import Group
from ttc.engines.embedded.model import Body

__all__ = ["SharedDecoder"]

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
