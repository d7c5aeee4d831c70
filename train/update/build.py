"""How a model is held while it is trained: whole or by adapters, activations kept or computed again, bf16 or fp32.

Weights and optimiser moments are fp32 in every case; `autocast` computes in bf16 from them (Micikevicius et al. 2018,
arXiv:1710.03740, without loss scaling, which bf16 does not need). Gradient checkpointing (Chen et al. 2016,
arXiv:1604.06174) costs one more forward pass and keeps one activation per layer. `shard` splits the weights over the
processes of a run (`train.base.models`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.base.models import add_lora, load_model, shard
from train.base.world import ALONE, World
from train.update.logprobs import token_logprobs
from ttc import seeds
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Fields of every stage that may train more than all weights in fp32.

    Args:
        lora: rank of low-rank adapters on all linear layers; 0 trains all weights.
        lora_alpha: their scale; None is twice the rank.
        checkpointing: compute activations again in the backward pass instead of keeping them.
        autocast: compute in bf16, with fp32 weights.
        shard: split the weights over the processes of the run (FSDP2); with one process, do nothing.
    """

    lora: int = 0
    lora_alpha: float | None = None
    checkpointing: bool = False
    autocast: bool = False
    shard: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that no adapter can have."""
        alpha = self.lora_alpha
        if self.lora < 0 or (alpha is not None and (not self.lora or not alpha > 0)):
            raise ConfigError(f"lora must be at least 0, and lora_alpha above 0 with it: {self.lora}, {alpha}")

    def load(self, folder: Path, device: str, seed: int, world: World = ALONE) -> Any:
        """The model of a folder, ready to be trained; `seed` is the run's."""
        model = load_model(folder, device, checkpointing=self.checkpointing)
        if self.lora:
            alpha = 2.0 * self.lora if self.lora_alpha is None else self.lora_alpha
            add_lora(model, self.lora, alpha, seeds.derive(seed, "lora") % (1 << 31))
        return shard(model, world, token_logprobs) if self.shard else model
