"""Attention of one tile of query rows over one run of pages: the loop that both kernels share.

The softmax is computed online (Milakov and Gimelshein 2018, arXiv 1805.02867; FlashAttention-2, Dao 2023, arXiv
2307.08691), in fp32 and in base 2: `top` (M) is the largest scaled score so far, `total` (M) the sum of weights, `out`
(M, D) the undivided output. Scores are never written to memory. Blocks in which no key is masked for any row of the
tile skip the masks, except in the smallest tiles, which are limited by memory anyway.

Left out: logit caps, attention sinks.
"""

from __future__ import annotations

from ttc.engines.embedded.kernels.language import tl, triton


@triton.jit
def _product(a, b, out, EMULATED: tl.constexpr):
    """A matrix product with fp32 sums; Triton's interpreter stores bf16 as bits, so there the numbers are converted."""
    if EMULATED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, out, input_precision="tf32x3")


@triton.jit
def _block(
    q, top, total, out, K, V, PAGES, start, num_keys, first, head, places, window, scale,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, N: tl.constexpr,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    M: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    dims = tl.arange(0, D)
    keys = start + tl.arange(0, N)
    # One table address per page: the lanes of a page read the same word, and the pipeline loads it, and then the keys,
    # asynchronously ahead of their use.
    page = tl.load(PAGES + keys // PAGE, mask=keys < num_keys, other=0).to(tl.int64)
    base = (page * KV_HEADS + head) * (PAGE * SIZE) + (keys % PAGE) * SIZE
    # Keys at or after `num_keys` may never have been written: not loaded, since 0 times NaN is NaN.
    inside = (keys < num_keys)[:, None] & (dims < SIZE)[None]
    k = tl.load(K + base[:, None] + dims[None], mask=inside, other=0.0)
    v = tl.load(V + base[:, None] + dims[None], mask=inside, other=0.0)
    scores = _product(q, tl.trans(k), tl.zeros((M, N), tl.float32), EMULATED)
    if MASKED:
        at = (first + keys)[None]
        seen = (at <= places[:, None]) & (keys < num_keys)[None]
        if WINDOWED:
            seen = seen & (at > places[:, None] - window)
        scores = tl.where(seen, scores, -float("inf"))
    new = tl.maximum(top, tl.max(scores, 1) * scale)
    # a row that has not met any key keeps top = -inf, and its weights are 0
    pivot = tl.where(new == -float("inf"), 0.0, new) if MASKED else new
    weights = tl.exp2(scores * scale - pivot[:, None])
    shrink = tl.exp2(top - pivot)
    out = _product(weights.to(v.dtype), v, out * shrink[:, None], EMULATED)
    return new, total * shrink + tl.sum(weights, 1), out


@triton.jit
def attend_run(
    q, top, total, out, K, V, PAGES, num_keys, first, head, places, lowest, highest, window, scale,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, N: tl.constexpr,
    WINDOWED: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """Add a run of pages to the state of a tile.

    q: (M, D) queries; PAGES: pointer to the run's first page id; num_keys, first: number of keys and position of the
    first; places: (M) positions of the rows, with their minimum and maximum; scale: of the scores, times log2(e).
    """
    end = tl.minimum(num_keys, highest - first + 1)
    low = 0
    if WINDOWED:
        low = tl.maximum(lowest - window + 1 - first, 0) // N * N
    elif q.shape[0] > 16:
        whole = tl.minimum(end, lowest - first + 1)
        low = tl.maximum(whole, 0) // N * N
        for start in tl.range(0, low, N):
            top, total, out = _block(
                q, top, total, out, K, V, PAGES, start, end, first, head, places, window, scale,
                KV_HEADS, SIZE, PAGE, N, False, WINDOWED, EMULATED,
            )  # fmt: skip
    for start in tl.range(low, end, N):
        top, total, out = _block(
            q, top, total, out, K, V, PAGES, start, end, first, head, places, window, scale,
            KV_HEADS, SIZE, PAGE, N, True, WINDOWED, EMULATED,
        )  # fmt: skip
    return top, total, out


@triton.jit
def closed(top, total, out):
    """Divide by the sum: (out, log-sum-exp in base 2); zeros and -inf for a row without keys."""
    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    return out / total[:, None], tl.where(nothing, -float("inf"), top + tl.log2(total))
