"""From a folder to a running scheduler on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ttc.engines.embedded.core.alone import alone
from ttc.engines.embedded.core.batch import BatchLimits
from ttc.engines.embedded.core.scheduler import Scheduler
from ttc.engines.embedded.core.weights import read_tensors
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import StepWeights, fold
from ttc.engines.embedded.gpu.batch import DeviceBatch
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.budget import budget, stored_numbers
from ttc.engines.embedded.gpu.decoder import DeviceDecoder
from ttc.engines.embedded.gpu.families import DeviceFamily
from ttc.engines.embedded.kernels.tensors import HEAD_DIMS
from ttc.errors import ConfigError

__all__ = ["start"]


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
    """Load the weights and start the worker; raises ConfigError, before weights are read, for what does not fit."""
    dims = family.dims
    if dims.head_dim not in HEAD_DIMS:
        raise ConfigError(
            f"{folder}: heads of {dims.head_dim} numbers are not run on a GPU ({HEAD_DIMS} are): use --engine vllm"
        )
    plan = budget(
        dims,
        weights=stored_numbers(folder),
        itemsize=dtype.itemsize,
        free=torch.cuda.mem_get_info(device)[0],
        max_batch=max_batch,
        max_context=max_context,
        kv_bytes=kv_bytes,
    )
    runtime = CudaRuntime(device)
    state = read_tensors(folder)
    with runtime.here():
        weights = alone(lambda: _fold(state, family, dtype, device, plan.max_context))
        body = DeviceBody(
            weights, runtime, num_pages=plan.num_pages, max_context=plan.max_context, windows=family.windows
        )
    limits = BatchLimits(max_batch, plan.kv_bytes)
    return Scheduler(body, DeviceDecoder, decode_text, limits=limits, threads=threads, make_batch=DeviceBatch)


def _fold(
    state: Mapping[str, torch.Tensor],
    family: DeviceFamily,
    dtype: torch.dtype,
    device: torch.device,
    max_context: int,
) -> StepWeights:
    return fold(
        state, family.dims, dtype, device, max_context=max_context, style=family.style, rotary=family.rotary
    )  # fmt: skip
