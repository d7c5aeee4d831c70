"""A model's weights in training: with low-rank adapters, split over processes, and whole and merged where they leave.

Low-rank adapters train a few numbers beside frozen weights. Hu et al. 2021 (arXiv:2106.09685): a linear layer W x
becomes W x + (alpha / rank) B A x with A random and B zero, so training starts at the model itself. All linear layers
but the head get one (Dettmers et al. 2023 found that to matter more than the rank), except those whose family computes
with them in another way: experts in one tensor, grouped layers. Weights that leave the trainer
(pushed to an engine, saved to a folder) are merged under the names of the plain model, so nothing else needs to know of
adapters. Cost: two thin matrix products per layer; the optimiser keeps moments only of the adapters. We do not use
peft, because its wrapper changes the meaning of `base_model` and of the state's names, on which scoring and weight sync
rely. Adapters are also written separately (`save_adapter`); `train.base.adapters` merges them elsewhere.

A model that one device cannot hold with its moments is split over the processes by FSDP2. Zhao et al. 2023
(arXiv:2304.11277), in torch's form by parameter (`fully_shard`): every process keeps its part of each weight, gradient
and moment; a layer's weights are gathered while it computes. Scoring, a function passed in, goes through `forward`,
around which gathering happens. Weights that leave the trainer (for an engine, checkpoints, folders) are gathered whole,
by all processes together. Processes must run equally many forward passes, so an update needs at least one row for each.
Cost: two gathers and one scatter of the weights per micro-batch.

Left out: sharding critics and references, and folders too large for one process's memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from train.base.world import World
from ttc.durable import replace_text, replaced_folder
from ttc.errors import ConfigError


def num_parameters(model: Any) -> int:
    """Count the parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


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
    """Split the weights of `model` over `world`, layer by layer; with one process, return the model itself.

    `score` is what the forward pass of the split model does: see `Sharded`.
    """
    if world.size == 1:
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    sharded = Sharded(model, score)
    # gathered again after every pass, so that a pass without a backward one leaves no old weights behind
    fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
    return sharded


def layers_of(model: Any) -> torch.nn.ModuleList:
    """The layers of a model, whatever its family calls them: the list that holds most of its weights.

    Raises:
        ConfigError: it has none.
    """
    lists = [module for module in model.base_model.modules() if isinstance(module, torch.nn.ModuleList)]
    if not lists:
        raise ConfigError(
            f"a model of the family {model.config.model_type} has no list of layers to split by: no shard"
        )
    return max(lists, key=num_parameters)


def inner(model: Any) -> Any:
    """The model itself."""
    return model.model if isinstance(model, Sharded) else model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be split; every process must call this."""
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


def load_whole(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy whole tensors, named as `merged_state` names them, into a model whose weights may be split."""
    with torch.no_grad():
        for name, own in inner(model).state_dict().items():
            own.copy_(spread(state[name], own))


def spread(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` split like `like`; unchanged if `like` is not split or has another shape."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    split: Any = like
    part: DTensor = distribute_tensor(tensor.to(split.device), split.device_mesh, split.placements)
    return part


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
        output: torch.Tensor = self.base(x)
        # The adapter works in the type of the pass, and is scaled where it is narrow, not over (.., out).
        low = self.scale * torch.nn.functional.linear(x, self.down.to(x.dtype)).flatten(0, -2)  # (N, rank)
        return torch.addmm(output.flatten(0, -2), low, self.up.T.to(output.dtype)).view_as(output)

    @property
    def weight(self) -> torch.Tensor:
        """The merged weight, with its gradient: some families' code multiplies by it and does not call the layer."""
        return self.base.weight + self.scale * (self.up @ self.down).to(self.base.weight.dtype)

    @property
    def bias(self) -> torch.Tensor | None:
        """The layer's own."""
        return self.base.bias

    @torch.no_grad()
    def merged(self) -> torch.Tensor:
        """The weight of an equivalent plain layer: (out, in)."""
        return whole(self.base.weight) + self.scale * (whole(self.up) @ whole(self.down))


@torch.no_grad()
def _computes_linearly(layer: torch.nn.Module) -> bool:
    """Whether this is a linear layer, and one of a family's own class computes as torch's does: grouped ones do not."""
    if not isinstance(layer, torch.nn.Linear) or type(layer) is torch.nn.Linear:
        return isinstance(layer, torch.nn.Linear)
    weight = layer.weight
    x = torch.linspace(-1, 1, layer.in_features, dtype=weight.dtype, device=weight.device)[None]
    plain = torch.nn.functional.linear(x, weight, layer.bias)
    try:
        own = layer(x)
    except RuntimeError:  # it takes another shape
        return False
    return own.shape == plain.shape and torch.allclose(own, plain, rtol=1e-2, atol=1e-2 * float(plain.abs().max()))


def add_lora(model: Any, rank: int, alpha: float, seed: int, head: torch.nn.Module | None = None) -> None:
    """Freeze `model` and put an adapter on every linear layer but the head, in place; `seed` initialises them.

    A separate `head`, of a scoring model, is still trained in full.

    Raises:
        ConfigError: rank < 1, alpha <= 0, or a model without such layers.
    """
    if rank < 1 or not alpha > 0:
        raise ConfigError(f"lora must be a rank of at least 1 with lora_alpha above 0, got {rank} and {alpha}")
    left_out = (model.get_output_embeddings(), head)
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _computes_linearly(child) and all(child is not one for one in left_out)
    ]
    if not places:
        family = model.config.model_type
        raise ConfigError(f"lora: a {family} model has no plain linear layers to put adapters on; set lora = 0")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if head is not None:
        head.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    for parent, name, child in places:
        setattr(parent, name, LoraLinear(child, rank, alpha, generator))


def merged_state(model: Any, device: str | None = None) -> dict[str, torch.Tensor]:
    """The model's whole state with all adapters merged, under the names of the plain model; moved to `device` if given.

    All processes of a model with split weights must call this.
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
        weight = adapted[layer].merged() if merges and last == "weight" else whole(tensor.detach())
        state[plain] = weight if device is None else weight.to(device)
    return state


ADAPTER = "adapter"
"""What the folder of an adapter is called beside the weights that it was merged into."""

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

ADAPTER_ORIGIN = "origin.json"
"""Beside peft's two files: which weights the adapter belongs to, and how a reward model of it is read."""

PREFIX = "base_model.model."

DOWN, UP = ".lora_A.weight", ".lora_B.weight"


def save_adapter(model: Any, folder: Path, *, task: str = "CAUSAL_LM", writes: bool = True) -> None:
    """Write the adapters of `model`, and other trained weights, to `folder`/adapter; nothing without adapters.

    In bf16 and in peft's layout, which other programs read: 5 MB for rank 8 of a model of 135 M. Other trained weights
    (the head of a reward model) have their own names; the digest of the frozen weights is `base` in a separate file,
    since the order of several metadata entries in safetensors changes from run to run. All processes of a model with
    split weights must call; without `writes` this one only helps to gather them.
    """
    from safetensors.torch import save_file

    model = inner(model)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    if not layers:
        return
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        tensors |= {f"{PREFIX}{name}{DOWN}": whole(layer.down), f"{PREFIX}{name}{UP}": whole(layer.up)}
    own = {name for layer in layers for name in (f"{layer}.down", f"{layer}.up")}
    beside = {n: whole(p) for n, p in model.named_parameters() if p.requires_grad and n not in own}
    tensors |= {f"{PREFIX}{name}": tensor for name, tensor in beside.items()}
    frozen = ((n.replace(".base.", "."), whole(p)) for n, p in model.named_parameters() if not p.requires_grad)
    base = weights_digest(frozen)
    if not writes:
        return
    one = next(iter(layers.values()))
    rank = one.down.shape[0]
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "r": rank,
        "lora_alpha": one.scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "base_model_name_or_path": None,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in beside}) or None,
    }
    reading = getattr(model.config, "ttc_prm", None)
    origin = {"base": base} if reading is None else {"base": base, "ttc_prm": reading}
    stored = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    with replaced_folder(folder / ADAPTER) as fresh:
        save_file(dict(sorted(stored.items())), str(fresh / ADAPTER_WEIGHTS), metadata={"format": "pt"})
        replace_text(fresh / ADAPTER_CONFIG, json.dumps(config, indent=1) + "\n")
        replace_text(fresh / ADAPTER_ORIGIN, json.dumps(origin, indent=1) + "\n")


def weights_digest(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over names and values in fp32, in the order of names: the same for a model in bf16 and in fp32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights, key=lambda pair: pair[0]):
        digest.update(name.encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()
