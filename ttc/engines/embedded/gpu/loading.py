"""Load a model folder onto a GPU and start its scheduler; or load a reward model's body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ttc.engines.embedded.core.batch import BatchLimits
from ttc.engines.embedded.core.model import beside_body
from ttc.engines.embedded.core.scheduler import Scheduler
from ttc.engines.embedded.core.weights import check_tied, read_tensors
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import StepWeights, fold, text_names
from ttc.engines.embedded.gpu.batch import DeviceBatch
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.budget import ENGINE, REWARD_MODEL, DeviceBudget, Owner, budget, stored_numbers
from ttc.engines.embedded.gpu.decoder import DeviceDecoder
from ttc.engines.embedded.gpu.families import DeviceFamily, architecture
from ttc.engines.embedded.kernels.tensors import HEAD_DIMS
from ttc.engines.shared.compute import alone, pick_dtype
from ttc.engines.shared.shape import read_config
from ttc.errors import ConfigError


def start(
    folder: Path,
    family: DeviceFamily,
    decode_text: Callable[[list[int]], str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    threads: int,
    max_batch: int,
    max_context: int | None,
    kv_bytes: int | None,
) -> Scheduler:
    """Load the weights and start the worker; raises ConfigError, before reading weights, where they do not fit."""
    plan = _plan(folder, family, device, dtype, max_batch, max_context, kv_bytes, ENGINE)
    state = text_names(read_tensors(folder))
    check_tied(state, family.dims, folder)
    body = _load(state, family, dtype, device, plan, head=True)
    limits = BatchLimits(max_batch, plan.kv_bytes)
    return Scheduler(body, DeviceDecoder, decode_text, limits=limits, threads=threads, make_batch=DeviceBatch)


def reward_body(
    folder: Path, *, device: torch.device, dtype: str, max_context: int | None, kv_bytes: int | None, head: bool
) -> tuple[DeviceBody, dict[str, torch.Tensor]]:
    """Load a reward model: its body, with its language-model head on demand, and the folder's other tensors.

    Raises:
        ConfigError: the GPU decoder does not run its family, or it does not fit into free memory; raised before
            weights are read.
    """
    config = read_config(folder)
    family = architecture(config)
    if family is None:
        raise ConfigError(f"{folder}: model_type {config['model_type']!r} is not supported by the torch core")
    number = pick_dtype(dtype, device)
    plan = _plan(folder, family, device, number, 0, max_context, kv_bytes, REWARD_MODEL)
    state = text_names(read_tensors(folder))
    return _load(state, family, number, device, plan, head=head), beside_body(state)


def _plan(
    folder: Path,
    family: DeviceFamily,
    device: torch.device,
    dtype: torch.dtype,
    max_batch: int,
    max_context: int | None,
    kv_bytes: int | None,
    owner: Owner,
) -> DeviceBudget:
    """The model's share of the GPU's free memory."""
    dims = family.dims
    if dims.head_dim not in HEAD_DIMS:
        raise ConfigError(
            f"{folder}: head size {dims.head_dim} is not supported on a GPU ({HEAD_DIMS} are): use --engine vllm"
        )
    return budget(
        dims,
        weights=stored_numbers(folder),
        itemsize=dtype.itemsize,
        free=torch.cuda.mem_get_info(device)[0],
        max_batch=max_batch,
        max_context=max_context,
        kv_bytes=kv_bytes,
        owner=owner,
    )


def _load(
    state: Mapping[str, torch.Tensor],
    family: DeviceFamily,
    dtype: torch.dtype,
    device: torch.device,
    plan: DeviceBudget,
    *,
    head: bool,
) -> DeviceBody:
    runtime = CudaRuntime(device)

    def build() -> StepWeights:
        return fold(
            state, family.dims, dtype, device,
            max_context=plan.max_context, style=family.style, rotary=family.rotary, head=head,
        )  # fmt: skip

    with runtime.here():
        return DeviceBody(
            alone(build), runtime, num_pages=plan.num_pages, max_context=plan.max_context, windows=family.windows
        )
