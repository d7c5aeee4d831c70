"""The kernels' algorithm in plain torch: any dtype (float64 too), any device, not optimised.

It follows the same plan item by item (partial softmax, merge by log-sum-exp). `dense_attention` uses no plan and stores
all scores of a row, so it is also the oracle of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.engines.embedded.kernels.plan import PAGE, ForestPlan, PagedNode
from ttc.engines.embedded.kernels.ragged import PrefillTable


def forest_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: ForestPlan,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """`forest_attention` in plain torch, with the same arguments; returns (rows, heads, head size)."""
    num_items, num_members, num_rows, _ = plan.counts.tolist()
    part = q.new_zeros(num_members, *q.shape[1:])
    sums = q.new_full((num_members, q.shape[1]), -torch.inf)
    for page, tokens, first, offset, rows in plan.items[:num_items].tolist():
        below = plan.members[offset : offset + rows].long()
        k, v = (_gather(pool, plan.pages[page:], tokens) for pool in (keys, values))
        places = plan.positions[below]
        part[offset : offset + rows], sums[offset : offset + rows] = _softmax(
            q[below], k, v, places, first, scale, window
        )
    out = torch.zeros_like(q)
    bounds = plan.row_starts.tolist()
    for row in range(num_rows):
        mine = plan.row_partials[bounds[row] : bounds[row + 1]].long()
        weights = torch.nan_to_num(torch.softmax(sums[mine], 0))  # nan where all keys are masked
        out[row] = (weights[..., None] * part[mine]).sum(0)
    return out


def paged_prefill_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: PrefillTable,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """`paged_prefill` in plain torch, with the same arguments; returns (tokens, heads, head size)."""
    out = torch.zeros_like(q)
    sequences = {tuple(fields) for fields in table.tiles[:, [0, 2, 3, 4, 5]].tolist()}
    for token, packed, start, first_run, last_run in sorted(sequences):
        span = slice(token, token + packed // table.group)
        places = torch.arange(start, start + packed // table.group, device=q.device)
        parts, sums = [], []
        for page, tokens, first in table.runs[first_run:last_run].tolist():
            k, v = (_gather(pool, table.pages[page:], tokens) for pool in (keys, values))
            part, total = _softmax(q[span], k, v, places, first, scale, window)
            parts.append(part)
            sums.append(total)
        weights = torch.nan_to_num(torch.softmax(torch.stack(sums), 0))
        out[span] = (weights[..., None] * torch.stack(parts)).sum(0)
    return out


def dense_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    nodes: Sequence[PagedNode],
    position: int,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """One query (heads, head size) at `position` over the keys of `nodes`: one softmax, no plan; zeros without keys."""
    group = q.shape[0] // keys.shape[1]
    at = [place for node in nodes for place in range(node.start, node.start + node.num_tokens)]
    seen = [i for i, place in enumerate(at) if place <= position and (window is None or place > position - window)]
    if not seen:
        return torch.zeros_like(q)
    cells = [(node.pages[i // PAGE], i % PAGE) for node in nodes for i in range(node.num_tokens)]
    page, slot = torch.tensor([cells[i] for i in seen], device=q.device).T
    k, v = (
        pool[page, :, slot].to(q.dtype).repeat_interleave(group, 1) for pool in (keys, values)
    )  # (keys, heads, size)
    weights = torch.softmax(torch.einsum("hd,khd->hk", q, k) * scale, -1)
    return torch.einsum("hk,khd->hd", weights, v)


def _gather(pool: torch.Tensor, pages: torch.Tensor, tokens: int) -> torch.Tensor:
    """(kv heads, tokens, size) of a run."""
    run = pool[pages[: -(-tokens // PAGE)].long()]  # (pages, kv heads, PAGE, size)
    return run.transpose(0, 1).flatten(1, 2)[:, :tokens]


def _softmax(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    places: torch.Tensor,
    first: int,
    scale: float,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (rows, heads, size) and log-sum-exp (rows, heads) of one run; zeros and -inf where all is masked."""
    rows, heads, size = q.shape
    packed = q.view(rows, len(k), -1, size)
    at = torch.arange(first, first + k.shape[1], device=q.device)
    hidden = at[None] > places[:, None]
    if window is not None:
        hidden |= at[None] <= places[:, None] - window
    scores = torch.einsum("rghd,gkd->rghk", packed, k.to(q.dtype)) * scale
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    # masked values may never have been written: 0 times NaN is NaN
    v = v.to(q.dtype).masked_fill(hidden.all(0)[None, :, None], 0)
    weights = torch.nan_to_num(torch.softmax(scores, -1))
    return torch.einsum("rghk,gkd->rghd", weights, v).reshape(q.shape), scores.logsumexp(-1).view(rows, heads)
