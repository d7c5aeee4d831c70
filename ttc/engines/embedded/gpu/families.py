"""The model families that the GPU decoder runs: Llama, Qwen2, Qwen3, Mistral, SmolLM3 and Gemma 3 (text).

Mistral has a sliding window; so have five of six layers of Gemma 3, with rotary tables of their own. Left out: Gemma's
vision models, sliding windows of Qwen2, mixtures of experts, biases other than of queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ttc.engines.embedded.device.shape import Style
from ttc.engines.shared.shape import QKV, Dims, positions, supported, window_of

__all__ = ["DeviceFamily", "architecture"]


@dataclass(frozen=True, slots=True)
class DeviceFamily:
    """Per layer: `windows` in tokens (None is full attention) and `rotary`, the dimensions of its rotary tables."""

    dims: Dims
    style: Style
    windows: tuple[int | None, ...]
    rotary: tuple[Dims, ...]


def architecture(config: Mapping[str, Any]) -> DeviceFamily | None:
    """Read a config.json; None for a model that the decoder does not run."""
    if config["model_type"] == "gemma3_text":
        return _gemma(config) if not (config.get("quantization_config") or config.get("attention_bias")) else None
    if not supported(config):
        return None
    dims = replace(Dims.from_config(config), max_context=positions(config))
    if not dims.biased <= QKV:
        return None
    return DeviceFamily(dims, Style(), (window_of(config),) * dims.num_layers, dims.rotary)


def _gemma(config: Mapping[str, Any]) -> DeviceFamily | None:
    """None where logit caps, another activation or scaled rotary frequencies make it a different model."""
    capped = config.get("final_logit_softcapping") or config.get("attn_logit_softcapping")
    if capped or config.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
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
        query_scale=float(config.get("query_pre_attn_scalar", dims.head_dim)) ** -0.5,
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
