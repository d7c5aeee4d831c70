"""How a process of ours uses memory: few compiled kernels kept, no large freed blocks, garbage collected rarely.

torch keeps a compiled kernel for every shape of a matrix product it has met, by default the last 1,024, which came to
a gigabyte. glibc takes a block from the heap once one of its size has been freed, up to 32 MiB, and returns the heap
only from its end: a process stays as large as it was at its widest, by some percent more or less after a burst.
Here blocks of 4 MiB or more are always the system's own pages, which go back at once. No more CPU time was measured for
either. What the user has set in the environment stays; where the C library is not glibc, only the first holds.

Python looks for cycles after every 700 new objects, and now and then among the hundreds of thousands that torch and a
model leave, which stops all threads for a while. Cycles are rare here, so it is enough to look after 20,000.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}
"""Decoding meets a new shape at every step, so kernels are seldom met again."""

MALLOPT = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 22),  # its default grows with what is freed, and any value ends that
    "MALLOC_TRIM_THRESHOLD_": (-1, 1 << 26),  # which would also leave this at 128 KiB: pages go back and forth
    "MALLOC_ARENA_MAX": (-8, 2),
}
"""Numbers of glibc's `mallopt` and their values, by the variable that a user would set."""


def keep_little() -> None:
    """Settle kernels and blocks for this process, where the embedded engine runs in it, before torch is imported."""
    os.environ.update({name: value for name, value in KERNELS.items() if name not in os.environ})
    if not sys.platform.startswith("linux") or "GLIBC_TUNABLES" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, (option, value) in MALLOPT.items():
        if mallopt is not None and name not in os.environ:
            mallopt(option, value)


def collect_rarely() -> None:
    """Settle the collector of cycles for this process."""
    gc.set_threshold(20_000, 20, 20)
