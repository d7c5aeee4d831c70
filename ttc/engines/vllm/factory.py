"""vLLM: continuous batching on GPUs and CPUs, tensor, pipeline and data parallel, many machines through Ray.

Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention". Runs what vLLM
runs, through `AsyncLLM` with its own processes; on a CPU its core is stepped in this process. Cost: one request per
draw, whose prompt is found in the prefix cache. Its own thinking budget is used once a self-test has proven it
exact (`ttc.engines.vllm.thinking_cap`). Left out: determinism across schedules, self-certainty, speculative decoding.
"""

from __future__ import annotations

from pathlib import Path

from ttc.config.signatures import checked_by
from ttc.core import Engine
from ttc.engines.shared.folder import check_model, generator_folder
from ttc.engines.vllm.options import VllmOptions
from ttc.identity.digests import ModelFolder, reads

__all__ = ["vllm"]


def _reads(*, model: str | None, options: VllmOptions) -> list[ModelFolder]:
    lora = options.lora
    adapter = [] if lora is None else [ModelFolder(Path(lora).expanduser(), owner=f"adapter {lora}")]
    return [ModelFolder(generator_folder(model)), *adapter]


@reads(_reads)
@checked_by(check_model)
def vllm(model: str | None = None, options: VllmOptions = VllmOptions()) -> Engine:  # noqa: B008  a frozen value
    """Load a model into vLLM.

    Args:
        model: a model folder or a hub id; None is the packaged teacher.
        options: how vLLM runs it.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: the folder, a file in it, or an option cannot be used.
        EngineError: vLLM did not start.
    """
    from ttc.engines.vllm.engine import VllmEngine

    return VllmEngine(model or "nano-teacher", generator_folder(model), options)
