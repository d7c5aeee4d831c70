"""The memory that a model needs on a GPU, in bytes, computed before weights are read; too large a model is refused.

It needs the weights, the scratch memory of steps and prefill, and one pool of keys and values, allocated as a whole.
Admission leaves an eighth of the pool free (at most one full context), since the prefix tree copies what it splits. The
engine allocates nothing beyond these.

A reward model is loaded after the engine and budgets the memory then free: weights, scratch memory of prefill and a
pool of its own. Two models have two pools, since a layer's pages are one tensor of fixed shape, and models differ in
layers and heads; each pool evicts only its own prefixes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ttc.engines.embedded.core.pool import PAGE
from ttc.engines.shared.folder import weight_files
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError

_GIB = 1 << 30
_PREFILL = 2048  # tokens of a batch, as `Body.extend` cuts them
_FIXED = 512 << 20  # libraries' workspaces and the context of CUDA
_SHARE = 5  # one part in this many of free memory stays free


@dataclass(frozen=True, slots=True)
class Owner:
    """Who the budget is for: the prefix of its options in errors, and advice where the model does not fit."""

    prefix: str
    advice: str


ENGINE = Owner("", "take a smaller model or batch, or --engine vllm with tensor_parallel_size")
REWARD_MODEL = Owner(
    "scorer.", "leave it more with engine.kv_bytes, or take a smaller model, scorer.device=cpu or another GPU"
)


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """`num_pages` of the pool, `kv_bytes` available to admission, and the most tokens of a sequence."""

    num_pages: int
    kv_bytes: int
    max_context: int


_IMAGES = ("vision_tower.", "multi_modal_projector.")
"""Beginnings of the names of tensors that only images need."""


def stored_numbers(folder: Path) -> int:
    """Number of parameters of the text model in a folder's files, from their headers; 0 where it has none.

    Raises ConfigError for a damaged file.
    """
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in filter(Path.is_file, weight_files(folder)):
        try:
            with safe_open(str(file), framework="pt") as tensors:
                names = [name for name in tensors.keys() if not name.removeprefix("model.").startswith(_IMAGES)]  # noqa: SIM118
                total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
        except SafetensorError as exc:
            raise ConfigError(f"{file} is not a safetensors file: {exc}") from exc
    return total


def scratch_bytes(dims: Dims, itemsize: int, max_batch: int, max_context: int) -> int:
    """Size of a step's buffers, its partial results, the activations of a prefill and the rotary tables."""
    heads = dims.num_heads + 2 * dims.num_kv_heads
    row = dims.vocab * itemsize + dims.vocab // 8 + 3 * dims.vocab // 256  # logits, mask, survey
    row += itemsize * (3 * dims.hidden + heads * dims.head_dim + 3 * dims.intermediate)
    row += 16 * dims.num_heads * 4 * (dims.head_dim + 1)  # partial results: sixteen per row
    token = itemsize * (4 * dims.hidden + 2 * heads * dims.head_dim + 4 * dims.intermediate)
    token += 4 * 2 * heads * dims.head_dim  # rotary in fp32
    return max_batch * row + _PREFILL * token + max_context * dims.head_dim * 8 + _FIXED


def budget(
    dims: Dims,
    *,
    weights: int,
    itemsize: int,
    free: int,
    max_batch: int,
    max_context: int | None,
    kv_bytes: int | None,
    owner: Owner = ENGINE,
) -> DeviceBudget:
    """Divide the memory of a GPU.

    Args:
        dims: of the model.
        weights: number of parameters.
        itemsize: bytes of a parameter.
        free: free bytes of the GPU.
        max_batch: most sequences decoded at once; 0 for a model that only scores.
        max_context: most tokens of a sequence; None is the model's own limit.
        kv_bytes: for keys and values; None is four fifths of the rest.
        owner: for error messages.

    Raises:
        ConfigError: the weights, `kv_bytes` or one sequence of `max_context` tokens do not fit; the message says
            what would.
    """
    context = min(max_context or dims.max_context, dims.max_context)
    scratch = scratch_bytes(dims, itemsize, max_batch, context)
    left = free - weights * itemsize - scratch
    page = PAGE * dims.kv_bytes(itemsize)
    steps = f" for max_batch={max_batch}" if max_batch else ""
    needs = f"weights take {_gib(weights * itemsize)}, scratch memory{steps} {_gib(scratch)}"
    option = f"{owner.prefix}kv_bytes"
    if left < 2 * page:
        raise ConfigError(f"the model does not fit on the GPU: {needs}, and {_gib(free)} are free; {owner.advice}")
    if kv_bytes is not None and kv_bytes > left:
        raise ConfigError(
            f"{option}={kv_bytes} ({_gib(kv_bytes)}) does not fit on the GPU: {needs}, and {_gib(free)} are free; "
            f"set {option} to at most {left}"
        )
    pages = (kv_bytes or left - left // _SHARE) // page
    admitted = pages - min(pages // 8, -(-context // PAGE))
    if context > (admitted - 2) * PAGE:
        fits = max((admitted - 2) * PAGE, 0)
        size = f"{option}={pages * page} ({_gib(pages * page)})"
        raise ConfigError(
            f"a sequence of {owner.prefix}max_context={context} needs {_gib(context * dims.kv_bytes(itemsize))} of "
            f"keys and values, and {size} holds {fits} tokens beside what is kept free: "
            f"set {owner.prefix}max_context={fits}" + (f", or raise {option}" if kv_bytes is not None else "")
        )
    return DeviceBudget(pages, admitted * page, context)


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
