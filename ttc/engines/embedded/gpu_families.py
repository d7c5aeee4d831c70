"""Which families the GPU decoder runs, and how they differ: Llama, Qwen2, Qwen3, and Mistral with its window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ttc.engines.embedded.device.shape import Style
from ttc.engines.shared.shape import Dims

__all__ = ["DeviceFamily", "architecture"]


@dataclass(frozen=True, slots=True)
class DeviceFamily:
    """`windows` of each layer; None sees all."""

    dims: Dims
    style: Style
    windows: tuple[int | None, ...]


def architecture(config: Mapping[str, Any]) -> DeviceFamily:
    """Read a config.json that `runs` accepts."""
    dims = Dims.from_config(config)
    window = config.get("sliding_window") if config["model_type"] == "mistral" else None
    dims = replace(dims, max_context=int(config.get("max_position_embeddings", 2048)))
    return DeviceFamily(dims, Style(), (int(window) if window else None,) * dims.num_layers)
