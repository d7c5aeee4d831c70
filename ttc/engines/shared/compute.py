"""Properties of the machine: fast dtypes, compiled kernels, fused attention, memory; and loading without extra threads.

A CPU without AVX-512 BF16 or AMX emulates products in bf16, at a fiftieth of the speed of fp32.

GNU's OpenMP counts the compute threads of every thread that ever ran a parallel region. Once they exceed the cores, all
of them sleep at barriers instead of spinning: with two threads, weights packed in the caller's thread made every later
decoding step of the worker slower than with one thread. So loading computes with one thread, in a thread that then
ends.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch

from ttc.errors import ConfigError

T = TypeVar("T")


def cpu_prefers_bf16() -> bool:
    """Whether this CPU multiplies bf16 natively (avx512_bf16 or AMX)."""
    return cpu_has_amx() or bool(_cpu_flags().get("avx512_bf16"))


def cpu_has_amx() -> bool:
    """Whether this CPU has matrix units for bf16 (AMX)."""
    flags = _cpu_flags()
    return bool(flags.get("amx_bf16") or flags.get("amx_tile"))


def fuses_attention(dtype: torch.dtype) -> bool:
    """Whether torch's fused attention is the fastest on this CPU: in bf16 with AMX.

    Elsewhere the compiled kernel (`native.attend_together`) is used. It is faster on an AMD processor, both with
    AVX-512 and with the AVX2 kernels. On an Intel processor with AVX-512 but without AMX the two were not compared.
    """
    return dtype == torch.bfloat16 and cpu_has_amx()


def attention_options(folder: Path) -> dict[str, str]:
    """Options of transformers for the attention of the model in a folder; mostly empty.

    Attention with logit caps (Gemma 2) needs the eager implementation: torch's fused attention has no cap, and
    transformers up to 5.23 silently dropped it there. May raise whatever transformers raises.
    """
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(folder).get_text_config()
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if capped else {}


def _cpu_flags() -> Mapping[str, object]:
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


_DTYPES = {
    **{"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32},
    **{"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32},
}


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolve `auto` (bf16 where the hardware has it, fp16 on older GPUs, else fp32) or a name; raises ConfigError."""
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        return torch.bfloat16 if device.type != "cpu" or cpu_prefers_bf16() else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype must be auto, {', '.join(_DTYPES)}, got {name!r}")
    if _DTYPES[name] == torch.float16 and device.type == "cpu":
        raise ConfigError("dtype float16 is for GPUs; on a CPU use float32, or bfloat16 where it is fast")
    return _DTYPES[name]


@functools.cache
def _native() -> ModuleType | None:
    try:
        return importlib.import_module("ttc.engines.embedded.core.native")
    except ImportError:  # numba is missing, or does not support this Python or numpy
        return None


def native(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The kernels compiled by numba (`ttc.engines.embedded.core.native`), where they support this device and dtype."""
    return _native() if device.type == "cpu" and dtype in (torch.bfloat16, torch.float32) else None


def free_memory(root: Path = Path("/")) -> int | None:
    """Free bytes of memory, within the limit of a container (cgroup v2); None where it cannot be determined.

    Args:
        root: the directory that contains `proc` and `sys`.
    """
    info, group = root / "proc/meminfo", root / "sys/fs/cgroup"
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    line = next((line for line in lines if line.startswith("MemAvailable:")), None)
    if line is None:
        return None
    free, limit = int(line.split()[1]) * 1024, group / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        counts = dict(count.split() for count in (group / "memory.stat").read_text().splitlines())
        held = int((group / "memory.current").read_text()) - int(counts.get("inactive_file", 0))
        free = min(free, max(int(most) - held, 0))
    return free


def alone(action: Callable[[], T]) -> T:
    """Return `action()`, run with one compute thread in a separate thread; its errors are raised here."""
    with ThreadPoolExecutor(1, thread_name_prefix="ttc-load") as pool:
        return pool.submit(_with_one_thread, action).result()


def _with_one_thread(action: Callable[[], T]) -> T:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return action()
    finally:
        torch.set_num_threads(before)  # torch also keeps this number as the default of new threads
