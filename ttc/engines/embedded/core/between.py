"""What a layer does between its matrix products: norms, rotary positions, the gate. Compiled (`native`), or in torch.

Compiled where numba is installed, on a CPU, in bf16 and fp32; what torch does rounds more often in bf16. GPUs stay with
torch, and so does batch-invariant mode.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Protocol

import torch
import torch.nn.functional as F

from ttc.engines.shared.shape import Dims

__all__ = ["Between", "NativeOps", "TorchOps", "native"]


@functools.cache
def _module() -> ModuleType | None:
    try:
        return importlib.import_module("ttc.engines.embedded.core.native")
    except ImportError:  # numba is not there, or not for this Python or numpy
        return None


def native(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The compiled kernels, where they serve tensors such as these."""
    return _module() if device.type == "cpu" and dtype in (torch.bfloat16, torch.float32) else None


class Between(Protocol):
    """Over T tokens at once."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Root-mean-square norm over the last axis of x (T, D), in fp32; weight (D) fp32."""
        ...

    def heads(
        self, qkv: torch.Tensor, norm: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, scaled, keys, values (T, heads, D) of one product; normed where the family does, turned."""
        ...

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """Silu of the first half of both (T, 2 I) times the second."""
        ...


class TorchOps:
    """In torch."""

    def __init__(self, dims: Dims) -> None:
        self._dims, self._scale = dims, dims.head_dim**-0.5
        # A tensor, since every Python number in an in-place operation costs four small kernels; on the CPU: kernels
        # take its value.
        self._eps = torch.tensor([dims.eps])

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Between.norm`; half the kernels of torch's own on a CPU."""
        if x.is_cuda:
            return F.rms_norm(x, x.shape[-1:], None, float(self._eps)).mul_(weight)
        exact = x.float()
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=1.0 / x.shape[-1]).rsqrt_()
        return (exact * scale).mul_(weight).to(x.dtype)

    def heads(
        self, qkv: torch.Tensor, norm: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Between.heads`."""
        dims = self._dims
        heads = dims.num_heads + dims.num_kv_heads
        qkv = qkv.view(len(qkv), heads + dims.num_kv_heads, dims.head_dim)
        qk, v = qkv[:, :heads], qkv[:, heads:]
        if norm is not None:
            qk = self.norm(qk, norm)
        qk = torch.addcmul(qk * cos.unsqueeze(1), qk.roll(dims.head_dim // 2, -1), sin.unsqueeze(1))
        return qk[:, : dims.num_heads] * self._scale, qk[:, dims.num_heads :], v

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """See `Between.gate`."""
        size = self._dims.intermediate
        return F.silu(both[:, :size]).mul_(both[:, size:])


class NativeOps:
    """Compiled: `kernels` is what `native` gives."""

    def __init__(self, dims: Dims, kernels: ModuleType) -> None:
        self._dims, self._kernels, self._scale = dims, kernels, dims.head_dim**-0.5
        self._no_norm = torch.empty(0, dims.head_dim).numpy()

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Between.norm`."""
        kernels, out = self._kernels, torch.empty_like(x)
        kernels.norm(kernels.array(x), weight.numpy(), self._dims.eps, kernels.array(out))
        return out

    def heads(
        self, qkv: torch.Tensor, norm: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Between.heads`."""
        dims, kernels, array = self._dims, self._kernels, self._kernels.array
        sizes = (dims.num_heads, dims.num_kv_heads, dims.num_kv_heads)
        q, k, v = (qkv.new_empty(len(qkv), count, dims.head_dim) for count in sizes)
        weight = self._no_norm if norm is None else norm.numpy()
        rows = array(qkv).reshape(len(qkv), sum(sizes), dims.head_dim)
        kernels.turn(rows, weight, dims.eps, array(cos), array(sin), self._scale, array(q), array(k), array(v))
        return q, k, v

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """See `Between.gate`."""
        out = both.new_empty(len(both), self._dims.intermediate)
        self._kernels.gate(self._kernels.array(both), self._kernels.array(out))
        return out
