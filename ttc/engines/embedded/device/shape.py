"""What a decoder is to the captured step: its numbers, and its weights with the norms folded in.

`fold` reads Hugging Face names. The tensors of `StepWeights` can serve prefill too: a plain RMS norm without weight in
front of `layer.qkv` is the same function as the model's own norm and its own matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from ttc.engines.shared.shape import Dims, rope_tables
from ttc.errors import ConfigError

__all__ = ["PAGE", "StepLayer", "StepWeights", "Style", "fold"]

PAGE = 16
"""Tokens of one page of keys and values."""


@dataclass(frozen=True, slots=True)
class Style:
    """Where families differ: Gemma has GELU, `1 + weight` norms, norms behind its products, a scaled embedding."""

    activation: Literal["silu", "gelu"] = "silu"
    unit_offset: bool = False
    post_norms: bool = False
    embed_scale: float = 1.0
    query_scale: float | None = None


@dataclass(frozen=True, slots=True)
class StepLayer:
    """One block. Matrices are (out, in); norms fp32, None where folded or absent; `cos`, `sin` (context, head size)."""

    qkv: torch.Tensor
    bias: torch.Tensor | None
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    norm_in: torch.Tensor | None = None
    norm_mlp: torch.Tensor | None = None
    norm_out: torch.Tensor | None = None
    norm_down: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepWeights:
    """All of a decoder; `folded` says that the norms before the products stand in the matrices."""

    dims: Dims
    embed: torch.Tensor
    layers: tuple[StepLayer, ...]
    norm: torch.Tensor
    head: torch.Tensor
    folded: bool
    style: Style = field(default_factory=Style)

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by."""
        return self.style.query_scale if self.style.query_scale is not None else self.dims.head_dim**-0.5

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Every tensor whose address a captured step holds."""
        slots = [getattr(layer, name) for layer in self.layers for name in StepLayer.__slots__]
        return (self.embed, self.norm, self.head, *(tensor for tensor in slots if tensor is not None))


def fold(
    state: Mapping[str, torch.Tensor],
    dims: Dims,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_context: int,
    style: Style = Style(),
) -> StepWeights:
    """Fuse q, k, v and gate, up, and multiply norm weights into the matrices behind them (not in fp16).

    Args:
        state: tensors under Hugging Face names, with or without the leading `model.`.
        dims: the numbers of config.json.
        dtype: of the matrices; the product with the norm is rounded to it once.
        device: where the weights go.
        max_context: rows of the rotary tables.
        style: what the family does otherwise.

    Raises:
        ConfigError: a tensor is missing.
    """
    folded = dtype != torch.float16
    cos, sin = (table.to(device) for table in rope_tables(dims, max_context))

    def optional(name: str) -> torch.Tensor | None:
        tensor = state.get(f"model.{name}", state.get(name))
        return None if tensor is None else tensor.detach().to(device)

    def tensor(name: str) -> torch.Tensor:
        value = optional(name)
        if value is None:
            raise ConfigError(f"the weights hold no tensor model.{name}: the folder is incomplete or of another kind")
        return value

    def norm(name: str) -> torch.Tensor:
        return tensor(name).float() + float(style.unit_offset)

    def matrix(names: list[str], scale: torch.Tensor | None) -> torch.Tensor:
        whole = torch.cat([tensor(f"{name}.weight") for name in names])
        return (whole.float() * scale if folded and scale is not None else whole).to(dtype).contiguous()

    def layer(at: str) -> StepLayer:
        projections = [f"{at}self_attn.{part}_proj" for part in "qkv"]
        biases = [bias for bias in (optional(f"{name}.bias") for name in projections) if bias is not None]
        before_mlp = "pre_feedforward_layernorm" if style.post_norms else "post_attention_layernorm"
        norm_in, norm_mlp = norm(f"{at}input_layernorm.weight"), norm(f"{at}{before_mlp}.weight")
        return StepLayer(
            qkv=matrix(projections, norm_in),
            bias=torch.cat(biases).float() if biases else None,
            out=matrix([f"{at}self_attn.o_proj"], None),
            gate_up=matrix([f"{at}mlp.gate_proj", f"{at}mlp.up_proj"], norm_mlp),
            down=matrix([f"{at}mlp.down_proj"], None),
            cos=cos,
            sin=sin,
            q_norm=norm(f"{at}self_attn.q_norm.weight") if dims.qk_norm else None,
            k_norm=norm(f"{at}self_attn.k_norm.weight") if dims.qk_norm else None,
            norm_in=None if folded else norm_in,
            norm_mlp=None if folded else norm_mlp,
            norm_out=norm(f"{at}post_attention_layernorm.weight") if style.post_norms else None,
            norm_down=norm(f"{at}post_feedforward_layernorm.weight") if style.post_norms else None,
        )

    embed = tensor("embed_tokens.weight").to(dtype)
    head = embed if dims.tied else tensor("lm_head.weight").to(dtype)
    layers = tuple(layer(f"layers.{i}.") for i in range(dims.num_layers))
    return StepWeights(dims, embed, layers, norm("norm.weight"), head, folded, style)
