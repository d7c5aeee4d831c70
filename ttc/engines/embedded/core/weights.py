"""Weights of one decoder: read from safetensors, fused, and packed for the CPU's matrix units.

`q, k, v` and `gate, up` are fused into one matrix each. On a CPU, large matrices are converted once to oneDNN's layout
(`torch.ops.mkldnn`, private operators that are looked up, never required): plain `F.linear` repeats the conversion at
every call, which costs up to half the time at 4 to 64 rows, where search decodes (`benchmarks.linear_layouts`). In
fp32, packed matrices are slower for one row and for many, so the plain matrix is kept beside the packed one if there is
enough memory; otherwise only the packed one is kept, and a head tied to the embedding is still copied. Smaller fp32
matrices are stored column-major instead of row-major. Swapping weights builds a new `Weights`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from ttc.engines.shared.compute import cpu_prefers_bf16
from ttc.engines.shared.folder import weight_files
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError

_LARGE = 700_000
"""Elements from which an fp32 matrix is packed: smaller ones gain nothing."""
_SMALL_BATCH = range(2, 257)
"""Numbers of rows for which a packed fp32 matrix is faster."""
_PLENTY = 8
"""Plain matrices are kept beside packed ones if they take at most one part in this many of the machine's memory."""


class Linear:
    """`y = x W^T + b`, packed where the CPU supports it; call with x (M, in) contiguous -> (M, out)."""

    __slots__ = ("_bias", "_packed", "_weight", "out_features")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, invariant: bool = False, both: bool = False
    ) -> None:
        """`both` keeps the plain fp32 matrix beside the packed one; `invariant` packs none."""
        self.out_features = weight.shape[0]
        self._bias = bias
        self._packed = _pack(weight) if gains(weight, invariant) else None
        is_kept = self._packed is None or (both and weight.dtype == torch.float32)
        self._weight = _layout(weight, invariant) if is_kept else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the matrix to every row of x."""
        plain = self._plain(len(x))
        if plain is not None:
            return F.linear(x, plain, self._bias)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return residual + self(x), in one kernel where the CPU can."""
        plain = self._plain(len(x))
        if plain is not None:
            return residual + F.linear(x, plain, self._bias)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")
        return y

    def plain(self) -> torch.Tensor:
        """The plain matrix; a copy where only the packed one is kept."""
        matrix = self._packed if self._weight is None else self._weight
        if matrix is None:
            raise RuntimeError("a matrix is kept in one layout at least")
        return matrix.to_dense()

    def _plain(self, num_rows: int) -> torch.Tensor | None:
        """The plain matrix, where it is faster or the only one for this number of rows."""
        return self._weight if self._packed is None or num_rows not in _SMALL_BATCH else None


def gains(weight: torch.Tensor, invariant: bool = False) -> bool:
    """Whether oneDNN's layout is faster: bf16 where the CPU multiplies it, and large fp32 matrices.

    Never for fp32 in batch-invariant mode: oneDNN picks its kernel by the number of rows.
    """
    if weight.device.type != "cpu":
        return False
    if weight.dtype == torch.bfloat16:
        return cpu_prefers_bf16()
    return weight.dtype == torch.float32 and weight.numel() >= _LARGE and not invariant


def _layout(weight: torch.Tensor, invariant: bool) -> torch.Tensor:
    """The plain matrix: small fp32 ones column-major, which is faster for one row and for 8 to 64.

    Not in batch-invariant mode.
    """
    is_small = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() < _LARGE
    return weight.t().contiguous().t() if is_small and not invariant else weight.contiguous()


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        row = weight.new_zeros(1, weight.shape[1])
        out = torch.ops.mkldnn._linear_pointwise(row, packed, None, "none", [], "")
        torch.ops.mkldnn._linear_pointwise.binary(row, out, packed, None, "add")
    except (AttributeError, RuntimeError, TypeError):  # private operators, which another torch may lack or change
        return None
    return packed


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder block. Norm weights are fp32; `qk_norm` (heads + kv heads, head size) is None outside Qwen3."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    norm_in: torch.Tensor
    norm_mlp: torch.Tensor
    qk_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """All matrices of one decoder; `head` is None for a body that was loaded without one."""

    embed: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: Linear | None

    @classmethod
    def build(
        cls,
        state: Mapping[str, torch.Tensor],
        dims: Dims,
        dtype: torch.dtype,
        device: torch.device,
        head: bool,
        invariant: bool = False,
    ) -> Weights:
        """Fuse and pack `state` (Hugging Face names, with or without the leading `model.`).

        `invariant`: every row's result must be the same in every batch. Raises ConfigError if a tensor is missing or
        does not have the shape of config.json.
        """
        source = _Source(
            state, dtype, device, invariant, is_small(sum(tensor.numel() for tensor in state.values()), dtype)
        )
        embed = source("embed_tokens.weight", dims.vocab, dims.hidden)
        layers = tuple(_layer(source, dims, f"layers.{i}.") for i in range(dims.num_layers))
        matrix = None
        if head:
            matrix = source.linear(embed if dims.tied else source("lm_head.weight", dims.vocab, dims.hidden))
        return cls(embed, layers, source("norm.weight", dims.hidden).float(), matrix)


def is_small(num_weights: int, dtype: torch.dtype) -> bool:
    """Whether memory suffices for a second copy of the weights."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return num_weights * dtype.itemsize * _PLENTY <= memory


class _Source:
    """Finds a tensor under its possible names, checks its shape, casts and moves it."""

    def __init__(
        self, state: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device, invariant: bool, both: bool
    ) -> None:
        self._state, self._dtype, self._device = state, dtype, device
        self._layout = {"invariant": invariant, "both": both}

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return Linear(weight, bias, **self._layout)

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._state.get(f"model.{name}", self._state.get(name))
        if tensor is None:
            raise ConfigError(f"the weights hold no tensor model.{name}: the folder is incomplete or of another kind")
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        return tensor.detach().to(device=self._device, dtype=self._dtype)


def _layer(source: _Source, dims: Dims, prefix: str) -> Layer:
    queries, keys = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim

    def fused(block: str, parts: Sequence[tuple[str, int]], width: int) -> Linear:
        at = f"{prefix}{block}."
        weight = torch.cat([source(f"{at}{part}.weight", rows, width) for part, rows in parts])
        biases = [source(f"{at}{part}.bias", rows) for part, rows in parts if part in dims.biased]
        return source.linear(weight, torch.cat(biases) if biases else None)

    qk_norm = None
    if dims.qk_norm:
        query, key = (source(f"{prefix}self_attn.{x}_norm.weight", dims.head_dim).float() for x in "qk")
        qk_norm = torch.cat((query.expand(dims.num_heads, -1), key.expand(dims.num_kv_heads, -1)))
    return Layer(
        qkv=fused("self_attn", (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)), dims.hidden),
        out=fused("self_attn", (("o_proj", dims.hidden),), queries),
        gate_up=fused("mlp", (("gate_proj", dims.intermediate), ("up_proj", dims.intermediate)), dims.hidden),
        down=fused("mlp", (("down_proj", dims.hidden),), dims.intermediate),
        norm_in=source(f"{prefix}input_layernorm.weight", dims.hidden).float(),
        norm_mlp=source(f"{prefix}post_attention_layernorm.weight", dims.hidden).float(),
        qk_norm=qk_norm,
    )


def check_tied(state: Mapping[str, torch.Tensor], dims: Dims, folder: Path) -> None:
    """Raise ConfigError where config.json ties the head to the embedding but the weights contain another head.

    Transformers would use that head, and vLLM the embedding.
    """
    head, embed = state.get("lm_head.weight"), state.get("model.embed_tokens.weight")
    if dims.tied and head is not None and embed is not None and not torch.equal(head, embed.to(head.dtype)):
        raise ConfigError(
            f"{folder}: config.json ties the head to the embedding, but lm_head.weight is another matrix: set "
            "tie_word_embeddings to false if the head was trained apart, else take that tensor out"
        )


def _other(folder: Path) -> str:
    """Advice for a folder whose weights are in torch's own format."""
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if not pickles:
        return ""
    return (
        f", but {pickles[0]}: write the weights anew with transformers, "
        f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Read every tensor of a folder's model (`weight_files`), as stored.

    Raises ConfigError when there is none, when a shard named by the index is absent, or when a file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = weight_files(folder)
    if not files:
        raise ConfigError(f"{folder} holds no *.safetensors file{_other(folder)}")
    state: dict[str, torch.Tensor] = {}
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{file} is missing: model.safetensors.index.json names it")
        try:
            state.update(load_file(file))
        except SafetensorError as exc:
            raise ConfigError(f"{file} is not a safetensors file: {exc}") from exc
    return state
