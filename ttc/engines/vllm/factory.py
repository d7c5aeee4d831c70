"""vLLM: continuous batching on GPUs and CPUs, tensor, pipeline and data parallel, many machines through Ray.

Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention". Runs what vLLM
runs, through `AsyncLLM` with its own processes; on a CPU its core is stepped in this process. Cost: one request per
draw, whose prompt is found in the prefix cache. Its own thinking budget is used once a self-test has proven it
exact (`ttc.engines.vllm.thinking_cap`). Left out: determinism across schedules, self-certainty, speculative decoding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ttc.config.signatures import checked_by
from ttc.core import Engine
from ttc.engines.shared.folder import generator_folder
from ttc.engines.shared.options import check_model
from ttc.engines.vllm.options import Backend, Options
from ttc.identity.reads import ModelFolder, reads

__all__ = ["vllm"]


def _check(model: str | None, **options: Any) -> None:
    Options(**options)
    check_model(model)


def _reads(*, model: str | None, lora: str | None, **_: object) -> list[ModelFolder]:
    adapter = [] if lora is None else [ModelFolder(Path(lora).expanduser(), owner=f"adapter {lora}")]
    return [ModelFolder(generator_folder(model)), *adapter]


@reads(_reads)
@checked_by(_check)
def vllm(
    model: str | None = None,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    max_context: int | None = None,
    max_num_seqs: int = 256,
    kv_cache_bytes: int | None = None,
    gpu_memory_utilization: float = 0.9,
    enforce_eager: bool | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    distributed_executor_backend: Backend | None = None,
    in_process: bool | None = None,
    threads: int = 1,
    lora: str | None = None,
) -> Engine:
    """Load a model into vLLM.

    Args:
        model: a model folder or a hub id; None is the packaged teacher.
        dtype: "auto" (the model's own), "bfloat16", "float16" or "float32".
        quantization: vLLM's name of the method (awq, gptq, fp8, ...); None reads it from the model.
        max_context: a limit below the model's own, in tokens.
        max_num_seqs: most sequences decoded at once.
        kv_cache_bytes: memory for keys and values; None is 2 GiB on a CPU, what gpu_memory_utilization leaves on a GPU.
        gpu_memory_utilization: share of each GPU's memory that vLLM may fill.
        enforce_eager: neither compile nor capture graphs; None is true on a CPU (compiling makes every start slow).
        tensor_parallel_size: devices that share each layer.
        pipeline_parallel_size: stages of layers, each on its own devices.
        data_parallel_size: copies of the model.
        distributed_executor_backend: mp (one machine), ray (many) or uni (one worker); None is vLLM's choice.
        in_process: step vLLM in this process instead of its own ones; None does so on a CPU with one worker.
        threads: compute threads on a CPU; more than 1 only helps on an otherwise idle machine.
        lora: folder of a LoRA adapter that every request uses.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: the folder, a file in it, or an option cannot be used.
        EngineError: vLLM did not start.
    """
    options = Options(
        dtype=dtype,
        quantization=quantization,
        max_context=max_context,
        max_num_seqs=max_num_seqs,
        kv_cache_bytes=kv_cache_bytes,
        gpu_memory_utilization=gpu_memory_utilization,
        enforce_eager=enforce_eager,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        distributed_executor_backend=distributed_executor_backend,
        in_process=in_process,
        threads=threads,
        lora=lora,
    )
    folder = generator_folder(model)

    from ttc.engines.vllm.engine import VllmEngine

    return VllmEngine(model or "nano-teacher", folder, options)
