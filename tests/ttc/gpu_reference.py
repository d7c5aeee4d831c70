"""The kernels of a GPU on the host, for emulated graphs: each is queued and recorded as one launch, as a kernel is.

Attention reads the plan row by row with numpy, which is quick on small forests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from tests.ttc.device_reference import REFERENCE_OPS
from tests.ttc.emulated_cuda import EmulatedCuda
from ttc.engines.embedded.device.ops import StepOps
from ttc.engines.embedded.gpu.attention import AttentionKernels
from ttc.engines.embedded.kernels.plan import PAGE, ForestPlan
from ttc.engines.embedded.kernels.ragged import PrefillTable


def attention(cuda: EmulatedCuda) -> AttentionKernels:
    """Decoding and prefill."""

    def decode(q: Any, keys: Any, values: Any, plan: ForestPlan, out: Any, scratch: Any, **options: Any) -> Any:
        def work() -> None:
            out.copy_(_attend(q, keys, values, *_rows(plan, len(q)), **options))

        cuda.launch(work)
        return out

    def prefill(q: Any, keys: Any, values: Any, table: PrefillTable, out: Any, **options: Any) -> Any:
        def work() -> None:
            out.copy_(_attend(q, keys, values, *_tokens(table), **options))

        cuda.launch(work)
        return out

    return AttentionKernels(decode, prefill)


def operations(cuda: EmulatedCuda) -> StepOps:
    """All else of the step."""

    def launched(kernel: Callable[..., None]) -> Callable[..., None]:
        return lambda *arguments, **options: cuda.launch(lambda: kernel(*arguments, **options))

    return StepOps(*(launched(getattr(REFERENCE_OPS, field.name)) for field in fields(StepOps)))


def _slots(pages: np.ndarray, keys: int) -> np.ndarray:
    return (pages[:, None] * PAGE + np.arange(PAGE)).ravel()[:keys]


def _rows(plan: ForestPlan, rows: int) -> tuple[list[list[tuple[np.ndarray, int]]], list[int]]:
    """Of each row: (slots, first position) of its runs; and its position."""
    num_items, _, num_rows, _ = plan.counts.tolist()
    # The grid of a captured launch is fixed: what lies beyond it would not be computed.
    assert num_items <= plan.capacity.items and plan.capacity.rows == rows and (num_rows >= rows or not num_items)
    pages, members = plan.pages.numpy(), plan.members.tolist()
    chains: list[list[tuple[np.ndarray, int]]] = [[] for _ in range(rows)]
    for page, keys, first, offset, count in plan.items[:num_items].tolist():
        run = _slots(pages[page : page + -(-keys // PAGE)], keys), first
        for row in members[offset : offset + count]:
            if row < rows:
                chains[row].append(run)
    return chains, plan.positions.tolist()


def _tokens(table: PrefillTable) -> tuple[list[list[tuple[np.ndarray, int]]], list[int]]:
    """Of each new token, as `_rows`."""
    pages, runs = table.pages.numpy(), table.runs.tolist()
    chains: list[list[tuple[np.ndarray, int]]] = [[] for _ in range(table.num_tokens)]
    places = [0] * table.num_tokens
    for token, row, packed, start, first_run, last_run in table.tiles.tolist():
        if row:
            continue
        chain = [(_slots(pages[p : p + -(-n // PAGE)], n), first) for p, n, first in runs[first_run:last_run]]
        for new in range(packed // table.group):
            chains[token + new], places[token + new] = chain, start + new
    return chains, places


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    chains: list[list[tuple[np.ndarray, int]]],
    places: list[int],
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """One softmax a row over what it may see; zeros where that is nothing. Rows of one chain are computed together."""
    out = torch.zeros_like(q)
    groups: dict[int, list[int]] = {}
    for row, (chain, place) in enumerate(zip(chains, places, strict=True)):
        if place >= 0 and chain:
            groups.setdefault(id(chain), []).append(row)
    for rows in groups.values():
        chain, last = chains[rows[0]], np.array([places[row] for row in rows])[:, None]
        at = np.concatenate([np.arange(first, first + len(part)) for part, first in chain])
        seen = (at <= last) & (at > last - (window or 1 << 30))  # (rows, keys)
        # Every key above it, once.
        assert (seen.sum(1) == np.minimum(last + 1, window or 1 << 30)[:, 0]).all(), (last, chain)
        some = seen.any(0)
        slots = torch.from_numpy(np.concatenate([part for part, _ in chain])[some])
        page, slot = slots // PAGE, slots % PAGE
        k, v = keys[page, :, slot], values[page, :, slot]  # (keys, kv heads, D)
        grouped = q[rows].view(len(rows), k.shape[1], -1, q.shape[2])
        scores = grouped @ k.permute(1, 2, 0) * scale  # (rows, kv heads, group, keys)
        hidden = torch.from_numpy(~seen[:, some])[:, None, None]
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
        out[rows] = (weights @ v.transpose(0, 1)).reshape(len(rows), *q.shape[1:])
    return out
