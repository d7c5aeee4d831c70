"""How much an engine may hold at once: sequences in a batch, and bytes of keys and values."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

__all__ = ["BatchLimits", "default_batch_bytes"]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`batch_bytes` bounds the keys and values of the running batch, `cache_bytes` those that wait to be reused."""

    max_batch: int
    batch_bytes: int
    cache_bytes: int

    def rows(self, longest: int, kv_bytes: int) -> int:
        """How many sequences of up to `longest` tokens may run at once; at least one."""
        return max(min(self.max_batch, self.batch_bytes // max(longest * kv_bytes, 1)), 1)


def default_batch_bytes(device: torch.device) -> int:
    """Half of a GPU's free memory, a quarter of the machine's otherwise."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
