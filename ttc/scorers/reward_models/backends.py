"""Where a reward model computes: one options class for each backend, selected by `backend`.

The scorers `prm` and `orm` take one of them as their `options`; an option of another backend is refused, not ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttc.config.values import Dtype, at_least, check_place


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedCore:
    """In this process, by the embedded core or transformers.

    Args:
        device: embedded: auto, cpu or cuda.
        dtype: embedded, vllm: auto, bfloat16 or float32.
        threads: embedded, vllm: compute threads.
        max_context: embedded, vllm: a limit below the model's own, in tokens.
        batch_invariant: embedded: scores do not depend, bit for bit, on what is scored together on one machine; slower.
        kv_bytes: embedded on a GPU: memory for keys and values; absent: four fifths of what the engine, its own weights
            and scratch memory leave. Evicted keys and values are computed again.
    """

    backend: Literal["embedded"] = "embedded"
    device: str = "auto"
    dtype: Dtype = "auto"
    threads: int = 1
    max_context: int | None = None
    batch_invariant: bool = False
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse a device, threads and memory that no machine has."""
        check_place("scorer", self.device, self.threads)
        at_least("scorer", 1, kv_bytes=self.kv_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class InVllm:
    """In this process, by vLLM.

    Args:
        gpu_memory_utilization: vllm: fraction of the GPU's memory it may use.
        kv_cache_bytes: vllm: memory of its cache; absent: what gpu_memory_utilization leaves, 2 GiB on a CPU.
    """

    backend: Literal["vllm"] = "vllm"
    dtype: Dtype = "auto"
    threads: int = 1
    max_context: int | None = None
    gpu_memory_utilization: float = 0.4
    kv_cache_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse a number of threads that no machine has."""
        check_place("scorer", "auto", self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverHttp:
    """On a vLLM server of the model.

    Args:
        base_url: http: the server's address, without /v1; several separated by commas share the work.
        served_model: http: the model's name on the server; absent: the server's only one.
        api_key_env: http: environment variable with the server's key; absent: it needs none.
    """

    backend: Literal["http"] = "http"
    base_url: str
    served_model: str | None = None
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsOverHttp(OverHttp):
    """On a server, for step scores.

    Args:
        protocol: http: vllm (a vLLM server of the model) or steps (plain JSON: messages and steps in, scores out).
    """

    protocol: Literal["vllm", "steps"] = "vllm"
