"""How the kernels are launched: blocks of keys, warps and pipeline stages, by table.

Nothing is tuned at run time: a captured graph must launch what the warm-up did. A stage more keeps more bytes of keys
in flight and takes shared memory from a second program on the same multiprocessor; what each row needs stands in
`benchmarks/results/gpu_kernels.json`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = [
    "KernelLaunch",
    "forest_launch",
    "forest_options",
    "padded",
    "prefill_launch",
    "prefill_options",
    "scores_scale",
]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Keys of a block (a multiple of 16), query rows of a tile, warps, stages."""

    tile: int
    block: int
    num_warps: int
    num_stages: int


def padded(head_dim: int) -> int:
    """The next power of two, which blocks are made of."""
    return 1 << (head_dim - 1).bit_length()


def scores_scale(scale: float) -> float:
    """In base 2: exp(x) is 2 ** (x log2 e)."""
    return scale * math.log2(math.e)


def forest_launch(device: torch.device, tile: int, head_dim: int, element_size: int) -> KernelLaunch:
    """Of decoding on this device."""
    return forest_options(_capability(device), tile, head_dim, element_size)


def prefill_launch(device: torch.device, head_dim: int, element_size: int) -> KernelLaunch:
    """Of prefill on this device."""
    return prefill_options(_capability(device), head_dim, element_size)


def forest_options(capability: int, tile: int, head_dim: int, element_size: int) -> KernelLaunch:
    """Of decoding on compute capability `capability` (80, 90, ...)."""
    warps = 8 if tile > 64 else 4
    if element_size == 4:
        return KernelLaunch(tile, 16 if padded(head_dim) > 64 else 32, 8 if tile > 16 else 4, 2)
    if padded(head_dim) > 128:
        return KernelLaunch(tile, 32, 8 if tile > 16 else 4, 2)
    return KernelLaunch(tile, 64, warps, 3 if _roomy(capability) or padded(head_dim) <= 64 else 2)


def prefill_options(capability: int, head_dim: int, element_size: int) -> KernelLaunch:
    """Of prefill on compute capability `capability`."""
    if element_size == 4:
        return KernelLaunch(64, 16 if padded(head_dim) > 64 else 32, 8, 2)
    if padded(head_dim) > 128:
        return KernelLaunch(64, 32, 8, 2)
    return KernelLaunch(128, 64, 8, 3 if _roomy(capability) or padded(head_dim) <= 64 else 2)


def _roomy(capability: int) -> bool:
    """Whether a multiprocessor has more than 100 KB of shared memory: A100, H100, B200, not cards for desks."""
    return capability in (80, 87) or 90 <= capability < 120


def _capability(device: torch.device) -> int:
    """10 x major + minor; on a CPU, where kernels are interpreted, that of an A100."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
