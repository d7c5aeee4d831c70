"""Root-mean-square norms (Zhang, Sennrich 2019): the factor of a row, and a norm with its residual in one kernel.

`row_factor` serves folded products: 1 / rms of the residual stream, recomputed by each program that needs it (a row of
7 KB from the L2 cache) instead of in a node of its own.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

Place = Literal["plain", "before", "behind"]
"""plain: out = norm(x). before: x += y, out = norm(x). behind: x += norm(y)."""
PLACES: dict[Place, int] = {"plain": 0, "before": 1, "behind": 2}


@triton.jit
def row_factor(x, hidden, eps, BLOCK: tl.constexpr):
    """1 / sqrt(mean of squares + eps) of the `hidden` numbers at x, in fp32."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < hidden, other=0.0).to(tl.float32)
        total += value * value
    return 1.0 / tl.sqrt(tl.sum(total, 0) / hidden + eps)


@triton.jit
def norm_row(x, y, weight, out, hidden, eps, PLACE: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row; PLACE as in `PLACES`."""
    row = tl.program_id(0)
    x += row * hidden
    y += row * hidden
    out += row * hidden
    if PLACE == 1:
        for start in range(0, hidden, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < hidden
            value = tl.load(x + column, mask=inside).to(tl.float32) + tl.load(y + column, mask=inside).to(tl.float32)
            tl.store(x + column, value.to(x.dtype.element_ty), mask=inside)
        tl.debug_barrier()
    source = y if PLACE == 2 else x
    factor = row_factor(source, hidden, eps, BLOCK)
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < hidden
        value = tl.load(source + column, mask=inside).to(tl.float32) * factor * tl.load(weight + column, mask=inside)
        if PLACE == 2:
            value += tl.load(x + column, mask=inside).to(tl.float32)
            tl.store(x + column, value.to(x.dtype.element_ty), mask=inside)
        else:
            tl.store(out + column, value.to(out.dtype.element_ty), mask=inside)


def norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, place: Place, *, y: torch.Tensor, out: torch.Tensor
) -> None:
    """All (rows, hidden), weight fp32; `y` is not read if `place` is plain, `out` not written if it is behind."""
    rows, hidden = x.shape
    norm_row[(rows,)](x, y, weight, out, hidden, eps, PLACE=PLACES[place], BLOCK=1024)
