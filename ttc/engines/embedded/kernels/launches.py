"""Launch parameters of the kernels: block of keys, warps and pipeline stages, by table.

Nothing is tuned at run time, since a captured graph must launch what the warm-up did. The tables hold what an A100, and
a desktop card with 100 KB of shared memory, support without spilling registers; H100 and B200 have entries of their own
where their matrix units (wgmma, tcgen05) work best with larger blocks. Page ids are loaded a stage before keys, so five
stages hold two blocks ahead of use and three hold one. For the resources of each entry see `benchmarks/gpu_kernels.py`.

Left out: wide tiles for fp32 with large heads, which exceed the registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Query rows of a tile, keys of a block (a multiple of 16), warps, pipeline stages."""

    tile: int
    block: int
    num_warps: int
    num_stages: int


_FOREST = {
    (2, 64): (KernelLaunch(16, 64, 4, 5), KernelLaunch(64, 32, 4, 5), KernelLaunch(128, 64, 8, 5)),
    (2, 128): (KernelLaunch(16, 32, 4, 5), KernelLaunch(64, 32, 4, 5), KernelLaunch(128, 32, 8, 5)),
    (2, 256): (KernelLaunch(16, 16, 4, 3), KernelLaunch(64, 16, 8, 3)),
    (4, 64): (KernelLaunch(16, 32, 4, 5), KernelLaunch(64, 32, 4, 5)),
    (4, 128): (KernelLaunch(16, 16, 4, 3),),
    (4, 256): (KernelLaunch(16, 16, 8, 3),),
}
"""(bytes of a number, head size) -> one launch for each tile size."""
_FOREST_90 = {
    (2, 64): (KernelLaunch(16, 64, 4, 5), KernelLaunch(64, 64, 4, 5), KernelLaunch(128, 64, 8, 3)),
    (2, 128): (KernelLaunch(16, 32, 4, 5), KernelLaunch(64, 32, 4, 5), KernelLaunch(128, 64, 8, 3)),
    (2, 256): (KernelLaunch(16, 16, 4, 3), KernelLaunch(64, 32, 8, 3)),
}
_FOREST_100 = {(2, 64): (*_FOREST_90[2, 64][:2], KernelLaunch(128, 32, 8, 5))}
_PREFILL = {
    (2, 64): KernelLaunch(128, 64, 8, 3),
    (2, 128): KernelLaunch(128, 64, 8, 3),
    (2, 256): KernelLaunch(64, 16, 8, 3),
    (4, 64): KernelLaunch(64, 32, 4, 3),
    (4, 128): KernelLaunch(32, 16, 4, 3),
    (4, 256): KernelLaunch(16, 16, 8, 2),
}
_PREFILL_90 = {(2, 256): KernelLaunch(64, 32, 8, 3)}


def padded(head_dim: int) -> int:
    """The next power of two, since blocks have such sizes."""
    return 1 << (head_dim - 1).bit_length()


def scores_scale(scale: float) -> float:
    """The scale for scores in base 2: exp(x) is 2 ** (x log2 e)."""
    return scale * math.log2(math.e)


def widest_tile(head_dim: int, element_size: int) -> int:
    """The largest tile that a plan may use."""
    return _FOREST[_key(head_dim, element_size)][-1].tile


def forest_launch(device: torch.device, tile: int, head_dim: int, element_size: int) -> KernelLaunch:
    """The launch of decoding on this device."""
    return forest_options(_capability(device), tile, head_dim, element_size)


def prefill_launch(device: torch.device, head_dim: int, element_size: int) -> KernelLaunch:
    """The launch of prefill on this device."""
    return prefill_options(_capability(device), head_dim, element_size)


def forest_options(capability: int, tile: int, head_dim: int, element_size: int) -> KernelLaunch:
    """The launch of decoding at compute capability `capability` (80, 90, ...)."""
    key = _key(head_dim, element_size)
    hopper = _FOREST_90 if 90 <= capability < 120 else {}
    table = {**_FOREST, **hopper, **(_FOREST_100 if 100 <= capability < 120 else {})}
    launch = next((launch for launch in table[key] if launch.tile == tile), None)
    if launch is None:
        widest = widest_tile(head_dim, element_size)
        raise ConfigError(
            f"a plan for head size {head_dim} in {element_size} bytes has tiles of at most {widest}, not {tile}"
        )
    return launch


def prefill_options(capability: int, head_dim: int, element_size: int) -> KernelLaunch:
    """The launch of prefill at compute capability `capability`."""
    table = {**_PREFILL, **_PREFILL_90} if 90 <= capability < 120 else _PREFILL
    return table[_key(head_dim, element_size)]


def _key(head_dim: int, element_size: int) -> tuple[int, int]:
    return element_size, max(padded(head_dim), 64)


def _capability(device: torch.device) -> int:
    """10 x major + minor; on a CPU, where kernels are interpreted, that of an A100."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
