"""A decoder as the captured step needs it: its dimensions, and its weights with the norms folded in.

`fold` reads Hugging Face names. The tensors of `StepWeights` can be used for prefill too: an RMS norm without weight
before `layer.qkv` is the same function as the model's own norm and matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from ttc.engines.shared.shape import QKV, Dims, rope_tables
from ttc.errors import ConfigError

PAGE = 16
"""Tokens per page of keys and values."""


@dataclass(frozen=True, slots=True)
class Style:
    """How families differ: Gemma has GELU, `1 + weight` norms, norms after its products, a scaled embedding."""

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
    """All weights of a decoder; `folded` means that the norms before the products are part of the matrices."""

    dims: Dims
    embed: torch.Tensor
    layers: tuple[StepLayer, ...]
    norm: torch.Tensor
    head: torch.Tensor
    folded: bool
    style: Style = field(default_factory=Style)

    @property
    def query_scale(self) -> float:
        """The factor applied to queries."""
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
    rotary: Sequence[Dims] = (),
    head: bool = True,
) -> StepWeights:
    """Fuse q, k, v and gate, up, and multiply norm weights into the matrices that follow (not in fp16).

    Args:
        state: tensors under Hugging Face names, with or without the leading `model.`.
        dims: the dimensions in config.json.
        dtype: of the matrices; their product with the norm is rounded to it once.
        device: where the weights go.
        max_context: rows of the rotary tables.
        style: how the family differs.
        rotary: for each layer, the dimensions of its rotary tables; `dims` where empty.
        head: whether there is a language-model head; without one, it is an empty matrix.

    Raises:
        ConfigError: a tensor is missing, or its shape differs from config.json.
    """
    source = _Source(state, dims, dtype, device, style)
    kinds = rotary or (dims,) * dims.num_layers
    tables: list[tuple[Dims, torch.Tensor, torch.Tensor]] = []
    for kind in kinds:
        if not any(kind == other for other, _, _ in tables):
            cos, sin = (table.to(device) for table in rope_tables(kind, max_context))
            tables.append((kind, cos, sin))
    turns = [next((cos, sin) for other, cos, sin in tables if other == kind) for kind in kinds]
    embed = source.table("embed_tokens.weight")
    layers = tuple(source.layer(f"layers.{i}.", *turn) for i, turn in enumerate(turns))
    norm, top = source.norm("norm.weight", dims.hidden), embed
    if not (head and dims.tied):
        top = source.table("lm_head.weight") if head else embed.new_empty(0, dims.hidden)
    return StepWeights(dims, embed, layers, norm, top, source.folded, style)


def refold(weights: StepWeights, state: Mapping[str, torch.Tensor]) -> None:
    """Load other weights into the tensors of `weights`, layer by layer; addresses stay. Raises as `fold`."""
    dims, embed = weights.dims, weights.embed
    source = _Source(state, dims, embed.dtype, embed.device, weights.style)
    for index, layer in enumerate(weights.layers):
        new = source.layer(f"layers.{index}.", layer.cos, layer.sin)
        for name in StepLayer.__slots__:
            old = getattr(layer, name)
            if old is not None:
                old.copy_(getattr(new, name))
    embed.copy_(source.table("embed_tokens.weight"))
    weights.norm.copy_(source.norm("norm.weight", dims.hidden))
    if not dims.tied and len(weights.head):
        weights.head.copy_(source.table("lm_head.weight"))


_INSIDE = {"model.language_model.": "model.", "language_model.model.": "model.", "language_model.": ""}
"""What stands before the names of the text's tensors in a model that also reads images, and in one of text alone."""


def text_names(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the names that they have in a model of text alone; those of images keep theirs."""

    def plain(name: str) -> str:
        prefix = next((prefix for prefix in _INSIDE if name.startswith(prefix)), None)
        return name if prefix is None else _INSIDE[prefix] + name.removeprefix(prefix)

    return {plain(name): tensor for name, tensor in state.items()}


class _Source:
    """Finds tensors under their Hugging Face names, checks their shapes, fuses and folds them."""

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        dims: Dims,
        dtype: torch.dtype,
        device: torch.device,
        style: Style,
    ) -> None:
        self._state, self._dims, self._dtype = text_names(state), dims, dtype
        self._device, self._style = device, style
        self.folded = dtype != torch.float16

    def table(self, name: str) -> torch.Tensor:
        """The embedding or the head."""
        return self._tensor(name, self._dims.vocab, self._dims.hidden).to(self._dtype)

    def norm(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight in fp32."""
        return self._tensor(name, size).float() + float(self._style.unit_offset)

    def layer(self, at: str, cos: torch.Tensor, sin: torch.Tensor) -> StepLayer:
        """One block."""
        dims, style, folded = self._dims, self._style, self.folded
        queries, keys, hidden = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim, dims.hidden
        projections = [
            (f"{at}self_attn.{part}_proj", rows) for part, rows in zip("qkv", (queries, keys, keys), strict=True)
        ]
        both = [(f"{at}mlp.{part}_proj", dims.intermediate) for part in ("gate", "up")]
        before_mlp = "pre_feedforward_layernorm" if style.post_norms else "post_attention_layernorm"
        norm_in = self.norm(f"{at}input_layernorm.weight", hidden)
        norm_mlp = self.norm(f"{at}{before_mlp}.weight", hidden)

        def head_norm(part: str) -> torch.Tensor | None:
            return self.norm(f"{at}self_attn.{part}_norm.weight", dims.head_dim) if dims.qk_norm else None

        def norm_behind(part: str) -> torch.Tensor | None:
            return self.norm(f"{at}{part}_layernorm.weight", hidden) if style.post_norms else None

        return StepLayer(
            qkv=self._matrix(projections, hidden, norm_in),
            bias=self._bias(projections) if QKV & dims.biased else None,
            out=self._matrix([(f"{at}self_attn.o_proj", hidden)], queries, None),
            gate_up=self._matrix(both, hidden, norm_mlp),
            down=self._matrix([(f"{at}mlp.down_proj", hidden)], dims.intermediate, None),
            cos=cos,
            sin=sin,
            q_norm=head_norm("q"),
            k_norm=head_norm("k"),
            norm_in=None if folded else norm_in,
            norm_mlp=None if folded else norm_mlp,
            norm_out=norm_behind("post_attention"),
            norm_down=norm_behind("post_feedforward"),
        )

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._state.get(f"model.{name}", self._state.get(name))
        if tensor is None:
            raise ConfigError(f"the weights hold no tensor model.{name}: the folder is incomplete or of another kind")
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        return tensor.detach().to(self._device)

    def _matrix(self, parts: Sequence[tuple[str, int]], width: int, scale: torch.Tensor | None) -> torch.Tensor:
        """The matrices (name, rows) stacked along rows, with the weight of a norm multiplied into their columns."""
        whole = torch.cat([self._tensor(f"{name}.weight", rows, width) for name, rows in parts])
        scaled = whole.float() * scale if self.folded and scale is not None else whole
        return scaled.to(self._dtype).contiguous()

    def _bias(self, parts: Sequence[tuple[str, int]]) -> torch.Tensor:
        return torch.cat([self._tensor(f"{name}.bias", rows) for name, rows in parts]).float()
