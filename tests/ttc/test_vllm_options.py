"""What the vLLM engine refuses and what it asks of vLLM; needs no vLLM."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ttc.config.registry import ENGINES
from ttc.config.signatures import bind
from ttc.engines.vllm import start
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import VllmOptions
from ttc.engines.vllm.requests import Counts
from ttc.engines.vllm.weights import _disagreement
from ttc.errors import ConfigError, MissingExtra

FOLDER = Path("model")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_num_seqs", 0),
        ("tensor_parallel_size", 0),
        ("pipeline_parallel_size", -1),
        ("data_parallel_size", 0),
        ("threads", 0),
        ("kv_cache_bytes", 0),
        ("max_context", 1),
        ("gpu_memory_utilization", 1.5),
        ("gpu_memory_utilization", 0.0),
        ("distributed_executor_backend", "slurm"),
        ("lora", "no/such/adapter"),
    ],
)
def test_an_option_that_no_machine_could_use_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        VllmOptions(**{option: value})


def test_contradictory_parallelism_is_refused() -> None:
    with pytest.raises(ConfigError, match="in_process"):
        VllmOptions(in_process=True, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="in_process"):
        VllmOptions(in_process=True, distributed_executor_backend="ray")
    with pytest.raises(ConfigError, match="uni"):
        VllmOptions(distributed_executor_backend="uni", data_parallel_size=2)


def test_flags_and_configuration_reach_vllm_under_its_own_names() -> None:
    texts = {
        "tensor_parallel_size": "4",
        "pipeline_parallel_size": "2",
        "data_parallel_size": "2",
        "distributed_executor_backend": "ray",
        "gpu_memory_utilization": "0.8",
        "kv_cache_bytes": "1000000",
        "max_num_seqs": "512",
        "dtype": "float16",
        "max_context": "4096",
        "enforce_eager": "true",
        "quantization": "awq",
    }
    args = VllmOptions(**bind(vllm, texts, supply={})).engine_args(FOLDER, on_cpu=False)
    wanted = {
        "model": "model",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "data_parallel_size": 2,
        "distributed_executor_backend": "ray",
        "gpu_memory_utilization": 0.8,
        "kv_cache_memory_bytes": 1000000,
        "max_num_seqs": 512,
        "dtype": "float16",
        "max_model_len": 4096,
        "enforce_eager": True,
        "quantization": "awq",
    }
    assert wanted.items() <= args.items()


def test_a_cpu_gets_small_blocks_whole_prompts_and_a_bounded_cache() -> None:
    on_cpu, on_gpu = (VllmOptions().engine_args(FOLDER, on_cpu=cpu) for cpu in (True, False))
    assert (on_cpu["block_size"], on_cpu["enable_chunked_prefill"], on_cpu["enforce_eager"]) == (32, False, True)
    assert on_cpu["kv_cache_memory_bytes"] == 2 << 30
    assert not {"block_size", "enable_chunked_prefill", "kv_cache_memory_bytes"} & on_gpu.keys()
    assert on_gpu["enforce_eager"] is False and on_gpu["enable_prefix_caching"] is True


def test_one_worker_on_a_cpu_runs_in_this_process_and_everything_else_in_its_own() -> None:
    assert VllmOptions().runs_in_process(on_cpu=True)
    assert not VllmOptions().runs_in_process(on_cpu=False)
    assert not VllmOptions(tensor_parallel_size=2).runs_in_process(on_cpu=True)
    assert not VllmOptions(distributed_executor_backend="mp").runs_in_process(on_cpu=True)
    assert not VllmOptions(in_process=False).runs_in_process(on_cpu=True)
    assert VllmOptions(in_process=True).runs_in_process(on_cpu=False)


def test_the_environment_says_which_mode_and_how_many_threads() -> None:
    assert VllmOptions(threads=2).environment(on_cpu=True)["OMP_NUM_THREADS"] == "2"
    assert VllmOptions().environment(on_cpu=True)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    background = VllmOptions(in_process=False).environment(on_cpu=False)
    assert background["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1" and "OMP_NUM_THREADS" not in background


def test_the_rank_of_an_adapter_is_read_and_rounded_up_to_a_size_vllm_has(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 12}))
    args = VllmOptions(lora=str(tmp_path)).engine_args(FOLDER, on_cpu=True)
    assert (args["enable_lora"], args["max_lora_rank"]) == (True, 16)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4096}))
    with pytest.raises(ConfigError, match="4096"):
        VllmOptions(lora=str(tmp_path)).engine_args(FOLDER, on_cpu=True)


def test_the_engine_is_listed_with_its_parameters() -> None:
    assert "vllm" in ENGINES.names()
    description = ENGINES.describe("vllm")
    assert description.takes_model and all(parameter.doc for parameter in description.parameters)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_vllm_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtra, match=r"pip install .*\[vllm"):
        vllm()


def test_a_folder_that_is_no_model_is_refused_before_vllm_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        vllm(str(tmp_path))


def test_counts_add_up_what_vllm_reports() -> None:
    class Prompt:
        total, cached_tokens = 7, 4

    class Step:
        prompt_token_stats, num_generation_tokens = Prompt, 3

    counts = Counts()
    counts.record(None, Step, mm_cache_stats=None, engine_idx=1)
    counts.record(None, Step)
    counts.record(None, None)
    usage = counts.usage
    assert (usage.prompt, usage.cached, usage.generated) == (14, 8, 6)


def test_a_head_that_kept_its_old_weights_is_noticed() -> None:
    import torch

    class Method:
        def __init__(self, weight: torch.Tensor) -> None:
            self.packed = weight.clone()

        def apply(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
            return x @ self.packed.T

    class Head:
        def __init__(self, weight: torch.Tensor) -> None:
            self.quant_method = Method(weight)

    old, new = torch.randn(2, 50, 16, generator=torch.Generator().manual_seed(1))
    assert _disagreement(Head(new), new) == 0.0
    assert _disagreement(Head(old), new) > 0.3


def test_vllm_finds_no_attributes_in_the_library_that_compiles_our_kernels() -> None:
    """It takes `vars` of whatever has a `__dict__`, and asks that for a kernel."""
    ffi = pytest.importorskip("llvmlite.binding.ffi")
    start._hide_llvmlite()
    assert vars(ffi.lib).get("kernel") is None
    assert callable(ffi.lib.LLVMPY_GetVersionInfo)
