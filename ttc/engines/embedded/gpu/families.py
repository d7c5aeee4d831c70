"""The model families that the GPU decoder runs: Llama, Qwen2, Qwen3, Mistral, SmolLM3 and Gemma 3 (text).

Mistral has a sliding window; so have five of six layers of Gemma 3, with rotary tables of their own. Of a Gemma 3 that
also reads images (4B and larger), the text model runs. Left out: images, sliding windows of Qwen2, mixtures of experts,
biases other than of queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ttc.engines.embedded.device.shape import Style
from ttc.engines.shared.shape import QKV, Dims, positions, supported, window_of


@dataclass(frozen=True, slots=True)
class DeviceFamily:
    """Per layer: `windows` in tokens (None is full attention) and `rotary`, the dimensions of its rotary tables."""

    dims: Dims
    style: Style
    windows: tuple[int | None, ...]
    rotary: tuple[Dims, ...]


def architecture(config: Mapping[str, Any]) -> DeviceFamily | None:
    """Read a config.json; None for a model that the decoder does not run."""
    if config["model_type"] == "gemma3":
        text = config.get("text_config", {})
        ties = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
        config = {**config, **text, "tie_word_embeddings": ties}
    if config["model_type"] == "gemma3_text":
        return _gemma({**_GEMMA, **config})
    if not supported(config):
        return None
    dims = replace(Dims.from_config(config), max_context=positions(config))
    if not dims.biased <= QKV:
        return None
    return DeviceFamily(dims, Style(), (window_of(config),) * dims.num_layers, dims.rotary)


_GEMMA: Mapping[str, Any] = {
    **{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "vocab_size": 262_208},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256},
    **{"max_position_embeddings": 131_072, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh"},
}
"""What transformers assumes of Gemma 3 where config.json does not say it, as in Google's larger models."""


def _gemma(config: Mapping[str, Any]) -> DeviceFamily | None:
    """None where logit caps, another activation or scaled rotary frequencies make it a different model."""
    others = ("final_logit_softcapping", "attn_logit_softcapping", "quantization_config", "attention_bias")
    if any(config.get(name) for name in others) or config["hidden_activation"] != "gelu_pytorch_tanh":
        return None
    full, local = _rotary(config)
    if any(rope.get("rope_type", "default") not in ("default", "linear") for rope in (full, local)):
        return None
    plain = {name: value for name, value in config.items() if name not in ("rope_parameters", "rope_scaling")}
    dims = replace(
        Dims.from_config(plain),
        qk_norm=True,
        tied=bool(config.get("tie_word_embeddings", True)),
        max_context=int(config["max_position_embeddings"]),
        rope_theta=float(full.get("rope_theta", 1e6)),
        rope=full,
    )
    near = replace(dims, rope_theta=float(local.get("rope_theta", 1e4)), rope=local)
    style = Style(
        activation="gelu",
        unit_offset=True,
        post_norms=True,
        embed_scale=dims.hidden**0.5,
        query_scale=float(config["query_pre_attn_scalar"]) ** -0.5,
    )
    kinds = config.get("layer_types") or [
        "full_attention" if (layer + 1) % int(config.get("sliding_window_pattern", 6)) == 0 else "sliding_attention"
        for layer in range(dims.num_layers)
    ]
    slides = [kind == "sliding_attention" for kind in kinds]
    windows = tuple(int(config["sliding_window"]) if sliding else None for sliding in slides)
    return DeviceFamily(dims, style, windows, tuple(near if sliding else dims for sliding in slides))


def _rotary(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Rotary parameters of layers with full attention, and with a window; accepts both notations of config.json."""
    both = config.get("rope_parameters")
    if both:
        return dict(both["full_attention"]), dict(both["sliding_attention"])
    full = {"rope_theta": config.get("rope_theta", 1e6), **(config.get("rope_scaling") or {})}
    return full, {"rope_theta": config.get("rope_local_base_freq", 1e4)}
