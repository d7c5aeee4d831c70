"""Stands in for `sgl_kernel`, whose published libraries need CUDA: enough of it to run SGLang on a CPU for tests.

Any name resolves to a function that raises when it is called, any submodule to such a module. The function that the CPU
path calls is implemented in plain torch: the hash that keys seeded sampling. `scalar_type` is SGLang's own pure Python,
taken from its wheel by `run.sh`, where it is needed.
"""

from __future__ import annotations

import torch
from stand_in import stand_in

__getattr__ = stand_in("sgl_kernel")

_MASK = 0xFFFFFFFF


def _rotate(x: torch.Tensor, by: int) -> torch.Tensor:
    return ((x << by) | (x >> (32 - by))) & _MASK


def _mix(h: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    k = _rotate((k * 0xCC9E2D51) & _MASK, 15)
    h = _rotate(h ^ ((k * 0x1B873593) & _MASK), 13)
    return (h * 5 + 0xE6546B64) & _MASK


def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bits) of seed (n,), position (n,) and column (m,) -> (n, m) uint32."""
    seed = seed.to(torch.int64)[:, None]
    h = torch.zeros((len(seed), 1), dtype=torch.int64)
    rows, each = positions.to(torch.int64)[:, None], columns.to(torch.int64)[None]
    for block in (seed & _MASK, (seed >> 32) & _MASK, rows, each):
        h = _mix(h, block & _MASK)
    h = h ^ 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> shift)) * factor) & _MASK
    return (h ^ (h >> 16)).to(torch.uint32)


_library = torch.library.Library("sgl_kernel", "DEF")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")
_library.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
