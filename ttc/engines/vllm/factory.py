"""vLLM: continuous batching on GPUs and CPUs, tensor, pipeline and data parallel, many machines through Ray.

Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention". Runs every model
that vLLM supports, through `AsyncLLM` with its own processes; on a CPU its core is stepped in this process. Cost: one
request per draw, whose prompt is in the prefix cache. vLLM's own thinking budget is used if a self-test shows it to be
exact (`ttc.engines.vllm.thinking_cap`). With `base_url`, separate vLLM servers draw (`ttc.engines.vllm.servers`), to
which a trainer pushes its weights. Left out: determinism across schedules, self-certainty, speculative decoding.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ttc.config.signatures import checked_by
from ttc.config.values import at_least
from ttc.core import Engine
from ttc.engines.shared.folder import check_model, generator_folder
from ttc.engines.vllm.options import VllmOptions
from ttc.errors import ConfigError
from ttc.identity.digests import BESIDE_WEIGHTS, ModelFolder, reads


def _reads(*, model: str | None, options: VllmOptions, base_url: str | None, **_: object) -> list[ModelFolder]:
    if base_url is not None:
        return [ModelFolder(generator_folder(model), BESIDE_WEIGHTS)]
    lora = options.lora
    adapter = [] if lora is None else [ModelFolder(Path(lora).expanduser(), owner=f"adapter {lora}")]
    return [ModelFolder(generator_folder(model)), *adapter]


_REMOTE = ("dtype", "max_context", "seeded", "logprobs")
"""Options that also apply where the model runs on servers."""


def _check(*, model: str | None, options: VllmOptions, base_url: str | None, **_: object) -> None:
    check_model(model)
    usual = VllmOptions()
    if base_url is not None and replace(options, **{name: getattr(usual, name) for name in _REMOTE}) != usual:
        raise ConfigError(
            f"vllm: with base_url, options other than {', '.join(_REMOTE)} are set where the server is started"
        )


@reads(_reads)
@checked_by(_check)
def vllm(
    model: str | None = None,
    options: VllmOptions = VllmOptions(),  # noqa: B008  a frozen value
    *,
    base_url: str | None = None,
    weights_dir: Path | None = None,
    wait_s: float = 120.0,
    api_key_env: str = "OPENAI_API_KEY",
) -> Engine:
    """Load a model into vLLM, or use vLLM servers.

    Args:
        model: a model folder or a hub id; None is the packaged teacher. With base_url, the folder of its tokenizer.
        options: how vLLM runs it. With base_url, dtype is that of the servers, which sets how closely they must agree.
        base_url: servers to use instead: http://HOST:PORT/v1, several separated by commas.
        weights_dir: with base_url, a folder that the servers can read, too, for new weights (default: the temporary
            one, when they run on this machine).
        wait_s: with base_url, seconds to wait for a first server to answer.
        api_key_env: with base_url, the environment variable with the servers' key, if they need one.

    Raises:
        MissingExtra: no base_url, and vLLM is not installed.
        ConfigError: the folder, a file in it, an option, or a server cannot be used.
        EngineError: vLLM did not start.
    """
    at_least("vllm", 0, wait_s=wait_s)
    folder = generator_folder(model)
    if base_url is None:
        from ttc.engines.vllm.engine import VllmEngine

        return VllmEngine(model or "nano-teacher", folder, options)
    from ttc.engines.vllm.servers import vllm_servers

    urls = [url.strip().rstrip("/") for url in base_url.split(",") if url.strip()]
    common = {name: getattr(options, name) for name in ("max_context", "seeded", "logprobs")}
    return vllm_servers(
        urls, folder, weights_dir=weights_dir, wait_s=wait_s, options={**common, "api_key_env": api_key_env}
    )
