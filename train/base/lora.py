"""Low-rank adapters: train a few numbers beside frozen weights.

Hu et al. 2021 (arXiv:2106.09685): a linear layer W x becomes W x + (alpha / rank) B A x with A random and B zero, so
training starts at the model itself. All linear layers but the head get one (Dettmers et al. 2023 found that to matter
more than the rank). Whatever leaves the trainer (weights pushed to an engine, a saved folder) is merged under the names
of the plain model, so nothing else knows of adapters. Cost: two thin matrix products per layer; the optimiser keeps
moments of the adapters alone. Own code because peft's wrapper changes what `base_model` and the state's names mean, on
which scoring and weight sync rest. Left out: quantised weights, adapters kept apart from their model.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from train.base.sharding import inner, whole
from ttc.errors import ConfigError

__all__ = ["LoraLinear", "add_lora", "merged_state"]


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, base: torch.nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        limit = 1 / math.sqrt(base.in_features)
        start = (torch.rand(rank, base.in_features, generator=generator) * 2 - 1) * limit
        self.down = torch.nn.Parameter(start.to(base.weight.device))
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output with the adapter's: (.., in) -> (.., out)."""
        output: torch.Tensor = self.base(x) + self.scale * ((x @ self.down.T) @ self.up.T)
        return output

    @torch.no_grad()
    def merged(self) -> torch.Tensor:
        """The weight of one plain layer that does the same: (out, in)."""
        return whole(self.base.weight) + self.scale * (whole(self.up) @ whole(self.down))


def add_lora(model: Any, rank: int, alpha: float, seed: int) -> None:
    """Freeze `model` and put an adapter on every linear layer but the head, in place; `seed` draws the start.

    Raises:
        ConfigError: rank < 1, alpha <= 0, or a model without such layers.
    """
    if rank < 1 or not alpha > 0:
        raise ConfigError(f"lora must be a rank of at least 1 with lora_alpha above 0, got {rank} and {alpha}")
    head = model.get_output_embeddings()
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, torch.nn.Linear) and child is not head
    ]
    if not places:
        raise ConfigError("lora: the model has no linear layers to put adapters on")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parent, name, child in places:
        setattr(parent, name, LoraLinear(child, rank, alpha, generator))


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """The model's state with all adapters merged, whole, under the names of the plain model.

    All processes of a model with split weights must ask.
    """
    model = inner(model)
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        owner, _, last = name.rpartition(".")
        if owner in adapted:
            continue  # the adapter's own tensors
        layer = owner.removesuffix(".base")
        merges = layer in adapted and owner.endswith(".base")
        plain = f"{layer}.{last}" if merges else name
        state[plain] = adapted[layer].merged() if merges and last == "weight" else whole(tensor.detach())
    return state
