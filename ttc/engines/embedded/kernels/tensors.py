"""Check the tensors of an attention call before a kernel reads their memory."""

from __future__ import annotations

import torch

from ttc.engines.embedded.kernels.plan import PAGE
from ttc.errors import ConfigError

HEAD_DIMS = (32, 64, 96, 128, 256)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor, *, group: int
) -> tuple[int, int, int]:
    """Return (heads, size, kv heads) of q, out (rows, heads, size) and keys, values (pages, kv heads, PAGE, size)."""
    heads, size = q.shape[1:]
    if size not in HEAD_DIMS:
        raise ConfigError(f"q: head size {size} is not one of {HEAD_DIMS}")
    if q.dtype not in _DTYPES or {keys.dtype, values.dtype} != {q.dtype}:
        raise ConfigError(
            f"q, keys and values must share one of {_DTYPES}, not {q.dtype}, {keys.dtype}, {values.dtype}"
        )
    if keys.shape != values.shape or keys.shape[2:] != (PAGE, size):
        raise ConfigError(f"keys and values must be (pages, kv heads, {PAGE}, {size}), not {tuple(keys.shape)}")
    if heads != keys.shape[1] * group:
        raise ConfigError(f"q has {heads} heads, not {keys.shape[1]} key heads x group {group}")
    if out.shape != q.shape:
        raise ConfigError(f"out must be {tuple(q.shape)}, not {tuple(out.shape)}")
    if q.stride()[1:] != (size, 1) or not all(x.is_contiguous() for x in (keys, values, out)):
        raise ConfigError("keys, values and out must be contiguous, and so must each row of q")
    return heads, size, keys.shape[1]
