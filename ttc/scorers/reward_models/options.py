"""Which options each backend of a scorer reads: one that was given to another backend is refused, not ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ttc.errors import ConfigError

__all__ = ["check_options"]

READERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "device": ("embedded",),
        "batch_invariant": ("embedded",),
        "dtype": ("embedded", "vllm"),
        "threads": ("embedded", "vllm"),
        "max_context": ("embedded", "vllm"),
        "gpu_memory_utilization": ("vllm",),
        "kv_cache_bytes": ("vllm",),
        "base_url": ("http",),
        "protocol": ("http",),
        "served_model": ("http",),
        "api_key_env": ("http",),
    }
)
"""The backends that read an option."""


def check_options(factory: Callable[..., Any], backend: str, given: Mapping[str, object]) -> None:
    """Check the options of `READERS` among `given`, the arguments that `factory` was called with.

    Raises:
        ConfigError: one differs from its default, and `backend` does not read it; or http has no base_url.
    """
    parameters = inspect.signature(factory).parameters
    for name in READERS.keys() & parameters.keys():
        if backend not in READERS[name] and given[name] != parameters[name].default:
            readers = " or ".join(f"backend={reader}" for reader in READERS[name])
            raise ConfigError(f"{factory.__name__} backend={backend} does not read {name}: it is for {readers}")
    if backend == "http" and given["base_url"] is None:
        raise ConfigError(f"{factory.__name__} backend=http needs base_url")
