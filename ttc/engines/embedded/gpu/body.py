"""The model on a GPU: prefill over the pool of pages, with the same weight tensors as the captured step.

Norm weights are folded into the following matrices (`device.shape`), so norms here have no weight, and every matrix
exists once. Results differ from those of the step by the rounding of one norm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ttc.engines.embedded.core.model import Attend, Body, MakeAttend
from ttc.engines.embedded.core.pool import Segment
from ttc.engines.embedded.device.ops import KERNEL_OPS, StepOps
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import StepLayer, StepWeights, refold
from ttc.engines.embedded.gpu.attention import KERNELS, AttentionKernels, PagedPrefill
from ttc.engines.embedded.gpu.pool import DevicePool
from ttc.errors import ConfigError


class DeviceBody(Body):
    """A `Body` over `StepWeights`; its kernels process items of any length together.

    Args:
        step_weights: of the captured step.
        runtime: CUDA on their device.
        num_pages: of the pool.
        max_context: most tokens of a sequence.
        windows: as in `Body`.
        kernels: attention.
        ops: all other operations of the step.
    """

    _pads_below = 0.0

    def __init__(
        self,
        step_weights: StepWeights,
        runtime: CudaRuntime,
        *,
        num_pages: int,
        max_context: int,
        windows: Sequence[int | None] | None = None,
        kernels: AttentionKernels = KERNELS,
        ops: StepOps = KERNEL_OPS,
    ) -> None:
        self.step_weights, self.runtime, self.max_context = step_weights, runtime, max_context
        self.dims = step_weights.dims
        self.device, self.dtype = step_weights.embed.device, step_weights.embed.dtype
        self.windows = tuple(windows or [None] * self.dims.num_layers)
        self.kernels, self.ops, self.pad_rows = kernels, ops, 1
        self.device_pool = DevicePool(self.dims, self.dtype, self.device, num_pages, self.send)
        self.pool = self.device_pool

    def place(self) -> contextlib.AbstractContextManager[Any]:
        """See `Body.place`."""
        return self.runtime.here()

    def send(self, numbers: NDArray[Any]) -> torch.Tensor:
        """Queue a copy to the device without waiting for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        if self.device.type != "cuda":
            return tensor.clone()
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See `Body.forward`."""
        weights, style = self.step_weights, self.step_weights.style
        x = F.embedding(ids, weights.embed)
        if style.embed_scale != 1.0:
            x = x * style.embed_scale
        for index, layer in enumerate(weights.layers):
            q, k, v = self._heads(layer, F.linear(self._norm(x, layer.norm_in), layer.qkv), positions)
            x = self._add(x, F.linear(attend(index, q, k, v), layer.out), layer.norm_out)
            gate, up = F.linear(self._norm(x, layer.norm_mlp), layer.gate_up).chunk(2, -1)
            gate = F.silu(gate) if style.activation == "silu" else F.gelu(gate, approximate="tanh")
            x = self._add(x, F.linear(gate * up, layer.down), layer.norm_down)
        return self._norm(x, weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Body.logits`."""
        if not len(self.step_weights.head):
            raise ConfigError("this model was loaded without its head")
        return F.linear(hidden, self.step_weights.head)

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Body.swap`; in place, layer by layer, so that the weights never exist twice."""
        refold(self.step_weights, state)

    def _append(
        self, items: Sequence[tuple[Segment, Sequence[int]]], steps: MakeAttend | None
    ) -> tuple[torch.Tensor, ...]:
        """See `Body._append`; one attention call serves all items."""
        for segment, ids in items:
            self.pool.reserve(segment, len(ids))
        slots = [self.pool.slots(segment, segment.length, len(ids)) for segment, ids in items]
        spans = [np.arange(segment.end, segment.end + len(ids)) for segment, ids in items]
        flat = np.concatenate([np.asarray(ids, np.int64) for _, ids in items])
        tokens, positions, places = self.send(np.stack((flat, np.concatenate(spans), np.concatenate(slots))))
        new = [(segment, len(ids)) for segment, ids in items]
        attend = PagedPrefill(self.device_pool, new, places, self.kernels, self.windows, self.send)
        hidden = self.forward(tokens, positions, attend)
        for segment, ids in items:
            segment.length += len(ids)
        return torch.split(hidden, [len(ids) for _, ids in items])

    def _heads(
        self, layer: StepLayer, qkv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys, values (T, heads, D): normed where the family does, rotated (RoPE), queries scaled."""
        dims = self.dims
        if layer.bias is not None:
            qkv = qkv + layer.bias.to(self.dtype)
        parts = qkv.view(len(qkv), -1, dims.head_dim)
        q, k, v = parts.split((dims.num_heads, dims.num_kv_heads, dims.num_kv_heads), 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        cos, sin = layer.cos[positions][:, None], layer.sin[positions][:, None]
        q, k = (torch.addcmul(x * cos, x.roll(dims.head_dim // 2, -1), sin) for x in (q, k))
        return (q * self.step_weights.query_scale).to(self.dtype), k.to(self.dtype), v

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """RMS norm over the last axis; the weight is fp32, or None where it is folded into the next matrix."""
        if weight is None:
            return F.rms_norm(x, x.shape[-1:], None, self.dims.eps)
        return (F.rms_norm(x.float(), x.shape[-1:], None, self.dims.eps) * weight).to(x.dtype)

    def _add(self, x: torch.Tensor, branch: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return x + (branch if norm is None else self._norm(branch, norm))
