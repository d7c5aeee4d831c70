"""Decoding on a GPU: static buffers and one captured CUDA graph per (rows, positions) size.

At small batches a step is bound by launching some twenty kernels per layer; replaying a captured graph removes that
cost. Sizes are rounded up to a few steps, so a graph is captured seldom and replayed often; a row's context is one
rectangle (`rows.WholeRows`), attended with a mask by torch's fused attention. Left out: reading a shared prefix once
per group, paged memory, several GPUs: use the vLLM engine for throughput at scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ttc.engines.embedded.model import Body
from ttc.engines.embedded.rows import WholeRows

__all__ = ["CudaDecoder"]

_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
_SPANS = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph with its static inputs and output."""

    graph: torch.cuda.CUDAGraph
    ids: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor


class CudaDecoder(WholeRows):
    """The `Decoder` for a GPU. See the module docstring."""

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        self._graphs: dict[tuple[int, int], _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`; the result is overwritten by the next step."""
        num = self.num_rows
        rows, span = _round(num, _ROWS), _round(max(self._lengths) + 1, _SPANS)
        self._reserve(rows, span)
        captured = self._graphs.get((rows, span))
        if captured is None:
            captured = self._graphs[rows, span] = self._capture(rows, span)
        captured.ids[:num].copy_(torch.as_tensor(tokens))
        captured.positions[:num].copy_(torch.as_tensor(self._lengths))
        captured.graph.replay()
        self._lengths = [length + 1 for length in self._lengths]
        return captured.hidden[:num]

    def _reserve(self, rows: int, length: int) -> None:
        before = self._keys
        super()._reserve(rows, length)
        if self._keys is not before:  # graphs hold the addresses of buffers, so whoever replaces those forgets them
            self._graphs.clear()

    def _capture(self, rows: int, span: int) -> _Captured:
        """Record one step; rows beyond the live ones write to position 0 of slots that nobody uses."""
        device = self.body.device
        ids = torch.zeros(rows, dtype=torch.long, device=device)
        positions = torch.zeros(rows, dtype=torch.long, device=device)
        # What the warm-up overwrites is saved before the side stream may begin.
        saved = self._keys[:, :rows, :, :1].clone(), self._values[:, :rows, :, :1].clone()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries allocate their workspaces at the first calls, which a capture must not see
                self._forward(ids, positions, span)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            hidden = self._forward(ids, positions, span)
        self._keys[:, :rows, :, :1], self._values[:, :rows, :, :1] = saved
        return _Captured(graph, ids, positions, hidden)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        dims, rows = self.body.dims, ids.shape[0]
        index = torch.arange(rows, device=ids.device)
        unseen = torch.arange(span, device=ids.device)[None] > positions[:, None]
        mask = torch.zeros_like(unseen, dtype=self.body.dtype).masked_fill_(unseen, float("-inf"))
        mask = mask[:, None, None].expand(rows, dims.num_kv_heads, dims.group, span)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._keys[layer][index, :, positions] = k
            self._values[layer][index, :, positions] = v
            keys, values = self._keys[layer, :rows, :, :span], self._values[layer, :rows, :, :span]
            queries = q.reshape(rows, dims.num_kv_heads, dims.group, dims.head_dim)
            out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0)
            return out.reshape(rows, -1)

        return self.body.forward(ids, positions, attend)


def _round(size: int, steps: Sequence[int]) -> int:
    """The first step that holds `size`; beyond the last one, a multiple of it."""
    return next((step for step in steps if size <= step), -(-size // steps[-1]) * steps[-1])
