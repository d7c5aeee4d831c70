"""Model dimensions and rotary tables, read from a Hugging Face `config.json`.

Covers Llama, Mistral, Qwen2, Qwen3 and SmolLM3 with full attention and the rotary variants default, linear, llama3 and
yarn (Peng et al. 2023, arXiv 2309.00071). For anything else `supported` returns False, and the model runs through
transformers' modules: sliding windows, other activations, mixture-of-experts, dynamic rotary scaling.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc.core import ModelShape
from ttc.errors import ConfigError

if TYPE_CHECKING:
    import torch

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")


@dataclass(frozen=True, slots=True)
class Dims:
    """The dimensions of one decoder; `rope` is the rotary part of the config, `qk_norm` is true for Qwen3.

    `biased` names the projections that have a bias, `unrotated` the layers whose queries and keys are not rotated
    (NoPE, Yang et al. 2025, arXiv 2501.18795).
    """

    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    tied: bool
    qk_norm: bool
    max_context: int
    rope_theta: float
    rope: Mapping[str, Any]
    biased: frozenset[str] = frozenset()
    unrotated: frozenset[int] = frozenset()

    @property
    def rotary(self) -> tuple[Dims, ...]:
        """For each layer, the dimensions of its rotary tables."""
        still = replace(self, rope={"rope_type": _UNROTATED})
        return tuple(still if layer in self.unrotated else self for layer in range(self.num_layers))

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of keys and values per token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize

    def model_shape(self, num_outputs: int) -> ModelShape:
        """The shape for FLOP accounting, with a head of `num_outputs` rows (the vocabulary, or a scorer's labels)."""
        attention = self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        params = self.num_layers * layer + self.hidden * num_outputs
        return ModelShape(params, self.num_layers, self.num_heads * self.head_dim)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dims:
        """Read the dimensions; raises ConfigError naming a missing field."""
        try:
            config = {**_DEFAULTS.get(config["model_type"], {}), **config}
            heads = int(config["num_attention_heads"])
            rope = _stretched(config)
            return cls(
                hidden=int(config["hidden_size"]),
                num_layers=int(config["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
                intermediate=int(config["intermediate_size"]),
                vocab=int(config["vocab_size"]),
                eps=float(config.get("rms_norm_eps", 1e-6)),
                tied=bool(config.get("tie_word_embeddings", False)),
                qk_norm=config["model_type"] == "qwen3",
                max_context=_max_context(config),
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
                rope=rope,
                biased=_biased(config),
                unrotated=_unrotated(config),
            )
        except KeyError as exc:
            raise ConfigError(f"config.json lacks the field {exc.args[0]!r}") from exc


_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"smollm3": {"tie_word_embeddings": True, "rope_theta": 2e6}}
"""What transformers assumes of a family where config.json does not say it, and does not of the others."""


def _unrotated(config: Mapping[str, Any]) -> frozenset[int]:
    """SmolLM3's layers without rotary positions: those with a 0 in `no_rope_layers`, by default each fourth."""
    if config["model_type"] != "smollm3":
        return frozenset()
    interval, layers = int(config.get("no_rope_layer_interval", 4)), range(int(config["num_hidden_layers"]))
    rotated = config.get("no_rope_layers") or [(layer + 1) % interval for layer in layers]
    return frozenset(layer for layer in layers if not rotated[layer])


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _stretched(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary part, with transformers' defaults for a missing original context or scaling factor."""
    own, rope = int(config.get("max_position_embeddings", 2048)), _rope(config)
    kind, name = rope.get("rope_type", rope.get("type")), "original_max_position_embeddings"
    if kind in ("llama3", "yarn"):
        rope[name] = config.get(name) or rope.get(name) or own
    if kind == "yarn" and rope.get("factor") is None:
        rope["factor"] = own / rope[name]
    return rope


def _max_context(config: Mapping[str, Any]) -> int:
    """The context over which attention is full; for Mistral at most its window."""
    return min(positions(config), _window(config))


def positions(config: Mapping[str, Any]) -> int:
    """The model's context; with YaRN the scaled one, whether or not max_position_embeddings was raised, too."""
    own, rope = int(config.get("max_position_embeddings", 2048)), _rope(config)
    factor, old = rope.get("factor"), rope.get("original_max_position_embeddings")
    if rope.get("rope_type", rope.get("type")) != "yarn" or factor is None or old is None:
        return own
    return max(own, int(float(factor) * float(old)))


def _window(config: Mapping[str, Any]) -> int:
    return window_of(config) or 1 << 62


def window_of(config: Mapping[str, Any]) -> int | None:
    """Mistral's window in tokens, by default that of transformers; None is full attention."""
    window = config.get("sliding_window", 4096) if config["model_type"] == "mistral" else None
    return int(window) if window else None


def slides(config: Mapping[str, Any], max_context: int | None) -> bool:
    """Whether the window is shorter than `max_context` tokens (None: the model's own context)."""
    own = positions(config)
    return _window(config) < min(max_context or own, own)


QKV = frozenset({"q_proj", "k_proj", "v_proj"})
_ATTENTION = QKV | {"o_proj"}
_LLAMA = {"attention_bias": _ATTENTION, "mlp_bias": frozenset({"gate_proj", "up_proj", "down_proj"})}
_BIASED: Mapping[str, Mapping[str, frozenset[str]]] = {
    "llama": _LLAMA,
    "smollm3": _LLAMA,
    "qwen2": {"model_type": QKV},  # always
    "qwen3": {"attention_bias": _ATTENTION},
}
"""The field of config.json that gives a family's projections a bias. Transformers ignores it in other families."""


def _biased(config: Mapping[str, Any]) -> frozenset[str]:
    """The projections that have a bias."""
    fields = _BIASED.get(config["model_type"], {})
    return frozenset[str]().union(*(parts for field, parts in fields.items() if config.get(field)))


def read_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` of a model folder; raises ConfigError naming a missing or invalid file."""
    path = folder / "config.json"
    if not path.is_file():
        need = "a model folder holds config.json, *.safetensors and a tokenizer"
        raise ConfigError(f"{path} does not exist: {need}{_cure(folder)}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(config, dict) or "model_type" not in config:
        raise ConfigError(f"{path} has no field 'model_type'")
    return config


def _cure(folder: Path) -> str:
    """Advice for a folder without a config.json."""
    inner = folder / "model"  # the layout of runs of `ttc train` and jobs of `ttc distill`
    if (inner / "config.json").is_file():
        return f"; name {inner}"
    if (folder / "adapter_config.json").is_file():
        return (
            "; this one holds an adapter: merge it into its model (peft: merge_and_unload) and save that, or name the "
            "model with --engine vllm --set engine.lora=FOLDER"
        )
    return ""


def supported(config: Mapping[str, Any]) -> bool:
    """Whether the torch core can run this model; otherwise transformers' own module does."""
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    layers = config.get("layer_types") or ()
    return (
        config["model_type"] in FAMILIES
        and config.get("hidden_act", "silu") == "silu"
        and kind in _ROPE
        and kind != _UNROTATED
        and all(rope.get(name) is not None for name in _NEEDED.get(kind, ()))
        and not config.get("use_sliding_window", False)
        and all(layer == "full_attention" for layer in layers)
        and not config.get("quantization_config")
        and float(config.get("partial_rotary_factor") or 1.0) == 1.0
    )


def full_attention(config: Mapping[str, Any], max_context: int | None) -> bool:
    """Whether the torch core can run this model within `max_context` tokens (None: the model's own context)."""
    return supported(config) and not slides(config, max_context)


def rope_tables(dims: Dims, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed-sine tables, each (length, head_dim) in fp32.

    The sine has the minus sign of `rotate_half` folded into its first half, so that
    rotated = x * cos + roll(x, head_dim / 2) * sin.
    """
    import torch

    kind = dims.rope.get("rope_type", dims.rope.get("type", "default"))
    inverse, scale = _ROPE[kind](dims)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def _default(dims: Dims) -> tuple[torch.Tensor, float]:
    import torch

    exponent = torch.arange(0, dims.head_dim, 2, dtype=torch.float32) / dims.head_dim
    return 1.0 / (dims.rope_theta**exponent), 1.0


def _still(dims: Dims) -> tuple[torch.Tensor, float]:
    import torch

    return torch.zeros(dims.head_dim // 2), 1.0


def _linear(dims: Dims) -> tuple[torch.Tensor, float]:
    return _default(dims)[0] / float(dims.rope["factor"]), 1.0


def _llama3(dims: Dims) -> tuple[torch.Tensor, float]:
    import torch

    inverse, _ = _default(dims)
    factor, low = float(dims.rope["factor"]), float(dims.rope["low_freq_factor"])
    high, old = float(dims.rope["high_freq_factor"]), float(dims.rope["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse
    smooth = (old / wavelength - low) / (high - low)
    mixed = (1 - smooth) * inverse / factor + smooth * inverse
    slow = torch.where(wavelength > old / low, inverse / factor, inverse)
    middle = (wavelength <= old / low) & (wavelength >= old / high)
    return torch.where(middle, mixed, slow), 1.0


def _yarn(dims: Dims) -> tuple[torch.Tensor, float]:
    import torch

    inverse, _ = _default(dims)
    old, factor = float(dims.rope["original_max_position_embeddings"]), float(dims.rope["factor"])
    scale = dims.rope.get("attention_factor")
    scale = _attention_factor(dims.rope, factor) if scale is None else float(scale)

    def dimension(rotations: float) -> float:
        turns = math.log(old / (rotations * 2 * math.pi))
        return dims.head_dim * turns / (2 * math.log(dims.rope_theta))

    low, high = dimension(float(dims.rope.get("beta_fast") or 32)), dimension(float(dims.rope.get("beta_slow") or 1))
    if dims.rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims.head_dim - 1)
    steps = torch.arange(dims.head_dim // 2, dtype=torch.float32)
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return inverse / factor * ramp + inverse * (1 - ramp), scale


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """YaRN's scale of queries and keys where the config does not set it."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    return scale(float(above)) / scale(float(below)) if above and below else scale(1.0)


_NEEDED: Mapping[str, Sequence[str]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""Fields without which transformers refuses a variant."""

_UNROTATED = "unrotated"
"""Not a variant of config.json: angles of zero, for a layer without rotary positions."""

_ROPE: Mapping[str, Callable[[Dims], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    _UNROTATED: _still,
}
