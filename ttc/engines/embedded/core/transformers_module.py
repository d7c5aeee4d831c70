"""Models as transformers' own modules: loading one, its dimensions, and whether two ways to compute it agree."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from ttc.core import ModelShape
from ttc.engines.embedded.core.weights import Linear, gains, is_small
from ttc.engines.shared.compute import alone, attention_options
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError

_MAX_WORDS = 300
"""Most characters quoted from an error of transformers."""

FOREIGN = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a model's own code raises where it cannot compute something."""

TRIED = 8
"""Length of the text on which two ways to compute a model are compared."""

_ROUNDING, _COARSE_ROUNDING = 0.0003, 0.1
"""Relative to the norm of the logits, in fp32 and in 16 bits: rounding stays far below, and wrong positions or
attention far above, except where tokens hardly look at each other."""


@dataclass(frozen=True, slots=True)
class MeasuredDims(Dims):
    """Dimensions of a loaded module, with its actual number of matrix parameters, and the width of its cache."""

    num_params: int = 0
    width: int = 0

    def kv_bytes(self, itemsize: int) -> int:
        """See `Dims.kv_bytes`."""
        return 2 * half_width(self.width) * itemsize

    def model_shape(self, num_outputs: int) -> ModelShape:
        """See `Dims.model_shape`; the head is already counted."""
        return ModelShape(self.num_params, self.num_layers, self.num_heads * self.head_dim)


def half_width(width: int) -> int:
    """The pool stores a token's numbers as a key and a value of one head: how many each holds."""
    return max(-(-width // 2), 1)


def load_module(folder: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """Load a causal language model, or one that also reads images, through transformers.

    Raises:
        ConfigError: transformers cannot load it, or some weights are missing.
    """
    try:
        load, options = _model_class(str(config["model_type"])).from_pretrained, attention_options(folder)
        module, report = alone(lambda: load(str(folder), dtype=dtype, output_loading_info=True, **options))
    except Exception as exc:  # safetensors and huggingface_hub raise bare exceptions
        raise ConfigError(
            f"{folder}: transformers cannot load a {config['model_type']} model here: {words(exc)}"
        ) from exc
    if missing := sorted(report["missing_keys"]):  # transformers initialises them at random and only warns
        raise ConfigError(f"{folder}: the weights hold no tensor {missing[0]}: the folder is incomplete")
    return alone(lambda: module.to(device).eval())


def load_state(module: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Replace the weights of a module; raises ConfigError where some are missing or unknown."""
    missing, unknown = module.load_state_dict(dict(state), strict=False)
    missing = [name for name in missing if name != "lm_head.weight"]
    if missing or unknown:
        raise ConfigError(f"the new weights lack {missing[:3]} or hold unknown {list(unknown)[:3]}")


class PackedLinear(torch.nn.Module):
    """A `torch.nn.Linear` in the CPU's layout (`Linear`), whose plain matrix is freed unless the embedding is tied."""

    def __init__(self, plain: torch.nn.Linear, table: torch.Tensor | None, both: bool) -> None:
        """`table` is the embedding whose matrix it uses, too; `both` as for `Linear`."""
        super().__init__()
        self._table, self._both, self._dtype = table, both, plain.weight.dtype
        self._set(plain.weight, plain.bias)

    def _set(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._bias = None if bias is None else bias.detach().to(self._dtype, copy=True)
        self._matrix = Linear(weight.detach().to(self._dtype), self._bias, both=self._both)

    @property
    def weight(self) -> torch.Tensor:
        """The plain matrix, which some families multiply by themselves (Mamba)."""
        return self._matrix.plain()

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias, likewise."""
        return self._bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the matrix to the last axis."""
        return self._matrix(x.flatten(0, -2).contiguous()).view(*x.shape[:-1], -1)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, _: Any, __: Any, missing_keys: list[str], *___: Any
    ) -> None:
        weight = state_dict.get(f"{prefix}weight", self._table)
        if weight is None:
            missing_keys.append(f"{prefix}weight")
        else:
            self._set(weight, state_dict.get(f"{prefix}bias", self._bias))


def pack(module: Any) -> None:
    """Store the large matrices of a module in the CPU's layout."""
    tables = {id(part.weight): part.weight for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    both = is_small(sum(parameter.numel() for parameter in module.parameters()), module.dtype)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and gains(child.weight):
                setattr(parent, name, PackedLinear(child, tables.get(id(child.weight)), both))


def _model_class(family: str) -> Any:
    """Transformers' class of a family: one that also reads images where there is none for text alone."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    sees = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def words(error: Exception) -> str:
    """What an error of transformers says: some list every known architecture, and some say nothing."""
    return shorten(str(error), _MAX_WORDS, placeholder=" ...") or type(error).__name__


def same(own: torch.Tensor, whole: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits differ by rounding only; NaN counts as rounding."""
    most = _ROUNDING if dtype == torch.float32 else _COARSE_ROUNDING
    return not bool((own - whole).norm() > most * (whole - whole.mean()).norm())


@torch.inference_mode()
def reads_ahead(module: Any) -> bool:
    """Whether logits change with later tokens. In texts of one length rounding is the same, so any dtype shows it."""
    ids = torch.arange(1, TRIED + 1, device=module.device)[None]
    texts = ids, torch.cat((ids[:, :-2], ids[:, :2]), 1)
    first, other = (module(input_ids=text, use_cache=False).logits[0, :-2].float() for text in texts)
    return not same(first, other, torch.float32)


def longest(folder: Path, text: Any, max_context: int | None) -> int:
    """The longest text that can be read; warns if that is shorter than the model's own limit and the requested one."""
    most = int(getattr(text, "max_position_embeddings", 2048))
    steady = _steady(text)
    if steady is not None and steady < min(max_context or most, most):
        warnings.warn(
            f"{folder}: beyond {steady} tokens this model rotates all of its keys by other angles, cached ones "
            f"included, so the embedded engine reads at most {steady} tokens; for up to {most} use --engine vllm",
            RuntimeWarning,
            stacklevel=3,
        )
    return most if steady is None else min(steady, most)


def _steady(text: Any) -> int | None:
    """The text length up to which a token's keys depend only on the text before it; None: always.

    LongRoPE uses other angles for longer texts, so keys computed in a shorter text, or beside a longer one in a batch,
    would belong to another model.
    """
    rope = getattr(text, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    name = "original_max_position_embeddings"
    lengths = [part.get(name) or getattr(text, name, None) for part in parts if part.get("rope_type") == "longrope"]
    return min((int(length) for length in lengths if length), default=None)


def measure(
    module: Any, *, num_layers: int, num_kv_heads: int, head_dim: int, width: int, max_context: int
) -> MeasuredDims:
    """Dimensions from the config and from what attention was seen to use; `num_layers` attend."""
    text, decoder = module.config.get_text_config(), module.get_decoder()
    tables = {id(part.weight) for part in decoder.modules() if isinstance(part, torch.nn.Embedding)}
    matrices = sum(p.numel() for p in decoder.parameters() if p.ndim > 1 and id(p) not in tables)
    return MeasuredDims(
        hidden=text.hidden_size,
        num_layers=num_layers,
        num_heads=getattr(text, "num_attention_heads", 0),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate=getattr(text, "intermediate_size", 0),
        vocab=text.vocab_size,
        eps=0.0,
        tied=not any("lm_head" in name for name, _ in module.named_parameters()),
        qk_norm=False,
        max_context=max_context,
        rope_theta=0.0,
        rope={},
        num_params=matrices + text.vocab_size * text.hidden_size,
        width=width,
    )
