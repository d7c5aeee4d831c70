"""A model whose weights are split over the processes: FSDP2, for models that one device cannot hold with its moments.

Zhao et al. 2023 (arXiv:2304.11277), in torch's form by parameter (`fully_shard`): every process keeps its part of each
weight, gradient and moment; a layer's weights are gathered while it computes. Scoring, which is handed in, goes
through `forward`, around which the gathering happens. What leaves the trainer (weights for an engine, checkpoints,
folders) is gathered whole, by all processes together. Processes must run equally many forward passes, so an update
needs at least one row for each. Cost: two gathers and one scatter of the weights per micro-batch. Left out: sharding
critics and references, and folders too large for one process's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from train.base.world import World

__all__ = ["Sharded", "inner", "shard", "spread", "whole", "whole_tree"]


class Sharded(torch.nn.Module):
    """The model, and the scoring of tokens as its forward pass."""

    def __init__(self, model: Any, score: Callable[..., Any]) -> None:
        """`score(model, ..)` gives log-probabilities, as `train.update.logprobs.token_logprobs` does."""
        super().__init__()
        self.model, self._score = model, score

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    def forward(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        """What `score` gives, as a tuple, whose tensors gathering follows."""
        scored = self._score(self.model, *arguments, **options)
        tensors = (scored.logprobs, scored.entropy)
        return tensors if scored.compared is None else (*tensors, scored.compared)


def shard(model: Any, world: World, score: Callable[..., Any]) -> Any:
    """Split the weights of `model` over `world`, layer by layer; the model itself where there is one process.

    `score` is what the forward pass of the split model does: see `Sharded`.
    """
    if world.size == 1:
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    sharded = Sharded(model, score)
    # gathered anew after every pass, so that a pass without a backward one leaves no old weights behind
    fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
    return sharded


def inner(model: Any) -> Any:
    """The model itself."""
    return model.model if isinstance(model, Sharded) else model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be split; every process must ask."""
    gather = getattr(tensor, "full_tensor", None)
    all_of_it: torch.Tensor = tensor if gather is None else gather()
    return all_of_it


def whole_tree(value: Any) -> Any:
    """`whole` for every tensor in nested dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        return whole(value)
    if isinstance(value, Mapping):
        return {name: whole_tree(item) for name, item in value.items()}
    return [whole_tree(item) for item in value] if isinstance(value, list) else value


def spread(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` split as `like` is; itself where `like` is not, or has another shape."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    split: Any = like
    part: DTensor = distribute_tensor(tensor.to(split.device), split.device_mesh, split.placements)
    return part
