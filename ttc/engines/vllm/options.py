"""The parameters of the vLLM engine: checked before the model loads, then translated to vLLM's own names.

On a CPU four of vLLM 0.32's defaults are replaced, each for a measured reason: prefix-cache blocks of 32 tokens instead
of 128 (a step of a search is rarely 128 tokens long), whole-prompt prefill (a seeded request that is prefilled in
chunks crashes the engine), a fixed size of the key-value cache (otherwise start-up requires 92 % of all memory), and
eager execution (compiling decodes faster but makes every start slow).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ttc.config.values import above, at_least, at_most, check_threads
from ttc.errors import ConfigError

Backend: TypeAlias = Literal["mp", "ray", "uni"]

CPU_BLOCK = 32
CPU_CACHE_BYTES = 2 << 30
WORKER_EXTENSION = "ttc.engines.vllm.weights.WeightLoader"


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Options of the engine; raises ConfigError naming the invalid one.

    Args:
        dtype: "auto" (the model's own), "bfloat16", "float16" or "float32".
        quantization: vLLM's name of the method (awq, gptq, fp8, ...); None reads it from the model.
        max_context: a limit below the model's own, in tokens.
        seeded: give every draw a seed of its own; False is faster (vLLM samples seeded rows one by one) and not
            reproducible. Commands without --seed choose False.
        logprobs: compute the log-probabilities of sampled tokens, which costs a pass over the vocabulary per token.
            Commands without --seed choose False where no strategy and no scorer reads them.
        max_num_seqs: most sequences decoded at once.
        kv_cache_bytes: memory for keys and values; None is 2 GiB on a CPU, and on a GPU what gpu_memory_utilization
            leaves.
        gpu_memory_utilization: fraction of each GPU's memory that vLLM may use.
        enforce_eager: neither compile nor capture graphs; None is true on a CPU (compiling makes every start slow).
        tensor_parallel_size: devices that share each layer.
        pipeline_parallel_size: stages of layers, each on its own devices.
        data_parallel_size: copies of the model.
        distributed_executor_backend: mp (one machine), ray (many) or uni (one worker); None is vLLM's choice.
        in_process: step vLLM in this process instead of its own ones; None does so on a CPU with one worker.
        threads: compute threads on a CPU; more than 1 only helps on an otherwise idle machine.
        lora: folder of a LoRA adapter that every request uses.
    """

    dtype: str = "auto"
    quantization: str | None = None
    max_context: int | None = None
    seeded: bool = True
    logprobs: bool = True
    max_num_seqs: int = 256
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    distributed_executor_backend: Backend | None = None
    in_process: bool | None = None
    threads: int = 1
    lora: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that no machine supports."""
        check_threads("vllm", self.threads)
        at_least("vllm", 1, max_num_seqs=self.max_num_seqs, kv_cache_bytes=self.kv_cache_bytes)
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        at_least("vllm", 1, **{name: getattr(self, name) for name in sizes})
        at_least("vllm", 2, max_context=self.max_context)
        above("vllm", 0, gpu_memory_utilization=self.gpu_memory_utilization)
        at_most("vllm", 1, gpu_memory_utilization=self.gpu_memory_utilization)
        if self.distributed_executor_backend not in (None, "mp", "ray", "uni"):
            backend = self.distributed_executor_backend
            raise ConfigError(f"vllm: distributed_executor_backend must be mp, ray or uni, got {backend!r}")
        if self.distributed_executor_backend == "uni" and self.num_workers > 1:
            raise ConfigError(f"vllm: distributed_executor_backend=uni runs 1 worker, not {self.num_workers}: use mp")
        if self.in_process and (self.num_workers > 1 or self.distributed_executor_backend in ("mp", "ray")):
            raise ConfigError("vllm: in_process=true runs one worker here: parallelism needs in_process=false")
        self.lora_rank()

    @property
    def num_workers(self) -> int:
        """Number of devices that the model uses."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def runs_in_process(self, on_cpu: bool) -> bool:
        """Whether vLLM's core runs in a thread of this process; by default on a CPU without parallelism."""
        if self.in_process is not None:
            return self.in_process
        return on_cpu and self.num_workers == 1 and self.distributed_executor_backend in (None, "uni")

    def lora_rank(self) -> int:
        """Rank of the adapter (0 without one), from its `adapter_config.json`."""
        if self.lora is None:
            return 0
        path = Path(self.lora).expanduser() / "adapter_config.json"
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["r"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            cause = f"{type(exc).__name__}: {exc}"
            raise ConfigError(f"vllm: lora={self.lora!r} is no LoRA adapter, see {path} ({cause})") from exc

    def environment(self, on_cpu: bool) -> Mapping[str, str]:
        """Environment variables that vLLM reads while it starts."""
        values = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if self.runs_in_process(on_cpu) else "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process may have threads, which break a forked child
        }
        if on_cpu:  # one thread more than there are idle cores makes it a hundred times slower
            values |= {"OMP_NUM_THREADS": str(self.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return values

    def engine_args(self, folder: Path, on_cpu: bool) -> dict[str, Any]:
        """Keyword arguments of vLLM's `EngineArgs`; None leaves the choice to vLLM."""
        args: dict[str, Any] = {
            "model": str(folder),
            "dtype": self.dtype,
            "quantization": self.quantization,
            "max_model_len": self.max_context,
            "max_num_seqs": self.max_num_seqs,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "tensor_parallel_size": self.tensor_parallel_size,
            "pipeline_parallel_size": self.pipeline_parallel_size,
            "data_parallel_size": self.data_parallel_size,
            "distributed_executor_backend": self.distributed_executor_backend,
            "enforce_eager": bool(on_cpu if self.enforce_eager is None else self.enforce_eager),
            "enable_prefix_caching": True,
            "use_tqdm_on_load": False,
            "worker_extension_cls": WORKER_EXTENSION,
            "enable_lora": self.lora is not None,
        }
        if self.lora is not None:
            args["max_lora_rank"] = _allowed_rank(self.lora_rank())
        if on_cpu:
            args |= {
                "block_size": CPU_BLOCK,
                "kv_cache_memory_bytes": self.kv_cache_bytes or CPU_CACHE_BYTES,
                "enable_chunked_prefill": False,
            }
        return {name: value for name, value in args.items() if value is not None}


def _allowed_rank(rank: int) -> int:
    """The smallest size of vLLM's adapter slots that is at least `rank`."""
    sizes = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    fitting = [size for size in sizes if size >= rank]
    if not fitting:
        raise ConfigError(f"vllm: LoRA adapters of rank {rank} do not fit: {sizes[-1]} is the largest")
    return fitting[0]
