"""Attention of new tokens after a paged prefix, with a causal mask among themselves, without materialised scores.

A program processes a tile of packed query rows (tokens x query heads of one key head) of one sequence and iterates over
the keys of its chain once, skipping blocks that are masked for all rows (FlashAttention-2, Dao 2023, arXiv 2307.08691,
over the pages of Kwon et al. 2023, arXiv 2309.06180). It needs no scratch memory besides registers and shared memory,
for any length of the prefix or the new part. Generation, scoring and log-probabilities all use it.

Left out: splitting a long prefix over several programs (few new tokens after a long prefix: see `forest`).
"""

from __future__ import annotations

from typing import Any

import torch

from ttc.engines.embedded.kernels.language import INTERPRETED, tl, triton
from ttc.engines.embedded.kernels.launches import padded, prefill_launch, scores_scale
from ttc.engines.embedded.kernels.online import attend_run, closed
from ttc.engines.embedded.kernels.plan import PAGE
from ttc.engines.embedded.kernels.ragged import RUN_FIELDS, TILE_FIELDS, PrefillTable
from ttc.engines.embedded.kernels.tensors import check_attention
from ttc.errors import ConfigError


@triton.jit(do_not_specialize=["window"])
def prefill_kernel(
    Q, K, V, OUT, TILE, RUNS, PAGES, q_row, window, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    TILE_FIELDS: tl.constexpr, RUN_FIELDS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    WINDOWED: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """Program (tile, key head). Q: (tokens, heads, SIZE) with token stride `q_row`; then the table."""
    fields, head = TILE + tl.program_id(0) * TILE_FIELDS, tl.program_id(1)
    base, low, packed, start = tl.load(fields), tl.load(fields + 1), tl.load(fields + 2), tl.load(fields + 3)
    first_run, last_run = tl.load(fields + 4), tl.load(fields + 5)
    rows, dims = low + tl.arange(0, M), tl.arange(0, D)
    live = rows < packed
    places = start + rows // GROUP
    lowest, highest = start + low // GROUP, start + (tl.minimum(low + M, packed) - 1) // GROUP
    token = (base + rows // GROUP).to(tl.int64)
    heads = head * GROUP + rows % GROUP
    inside = live[:, None] & (dims < SIZE)[None]
    q = tl.load(Q + (token * q_row + heads * SIZE)[:, None] + dims[None], mask=inside, other=0.0)
    top, total, out = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32), tl.zeros((M, D), tl.float32)
    for run in range(first_run, last_run):
        pages = tl.load(RUNS + run * RUN_FIELDS)
        num_keys, first = tl.load(RUNS + run * RUN_FIELDS + 1), tl.load(RUNS + run * RUN_FIELDS + 2)
        top, total, out = attend_run(
            q, top, total, out, K, V, PAGES + pages, num_keys, first, head, places, lowest, highest, window, scale,
            KV_HEADS, SIZE, PAGE, N, WINDOWED, EMULATED,
        )  # fmt: skip
    out, _ = closed(top, total, out)
    # loaded again, so that the addresses of the loads do not occupy registers throughout the loop
    base, low = tl.load(fields, volatile=True), tl.load(fields + 1, volatile=True)
    rows = low + tl.arange(0, M)
    token = (base + rows // GROUP).to(tl.int64)
    heads = head * GROUP + rows % GROUP
    inside = (rows < packed)[:, None] & (dims < SIZE)[None]
    target = (token * (KV_HEADS * GROUP) + heads) * SIZE
    tl.store(OUT + target[:, None] + dims[None], out.to(OUT.dtype.element_ty), mask=inside)


def paged_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: PrefillTable,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Attend every new token to its sequence's keys up to its own; fills and returns `out`.

    Args:
        q: (tokens, heads, head size), sequences concatenated; may have a token stride (a slice of a fused projection).
        keys: (pages, kv heads, PAGE, head size), contiguous, in q's dtype; include those of the new tokens.
        values: As keys.
        table: From `plan_prefill` for the tile of `prefill_launch`.
        out: (tokens, heads, head size), contiguous.
        scale: Factor of the scores.
        window: A token attends to keys after its position - window; None is full attention.

    Raises:
        ConfigError: shapes, dtypes or layouts do not match.
    """
    _, size, kv_heads = check_attention(q, keys, values, out, group=table.group)
    if q.shape[0] != table.num_tokens:
        raise ConfigError(f"q has {q.shape[0]} tokens, the table {table.num_tokens}")
    launch = prefill_launch(q.device, size, q.element_size())
    options: dict[str, Any] = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    with torch.cuda.device_of(q):  # Triton launches on the current device; no effect on a CPU
        prefill_kernel[(len(table.tiles), kv_heads)](
            q, keys, values, out, table.tiles, table.runs, table.pages, q.stride(0), window or 0, scores_scale(scale),
            KV_HEADS=kv_heads, GROUP=table.group, SIZE=size, PAGE=PAGE, TILE_FIELDS=TILE_FIELDS, RUN_FIELDS=RUN_FIELDS,
            M=table.tile, N=launch.block, D=padded(size), WINDOWED=window is not None,
            EMULATED=INTERPRETED and q.dtype == torch.bfloat16, enable_fp_fusion=True, **options,
        )  # fmt: skip
    return out
