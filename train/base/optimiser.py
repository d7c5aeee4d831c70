"""AdamW under a schedule, used by every loop of this package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from train.base.weights import spread, whole, whole_tree
from train.base.world import ALONE, World
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate: linear warm-up to `lr`, then constant or linear decay to 0 at `steps`."""

    lr: float
    steps: int
    warmup: int = 0
    decay: bool = False

    def __post_init__(self) -> None:
        """Refuse a rate that is not positive, and a negative warm-up."""
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr must be above 0, got {self.lr}")
        if self.warmup < 0:
            raise ConfigError(f"warmup must be at least 0, got {self.warmup}")

    def rate(self, step: int) -> float:
        """The rate of optimiser step `step`, from 0."""
        rising = min((step + 1) / self.warmup, 1.0) if self.warmup else 1.0
        falling = max(self.steps - step, 0) / max(self.steps - self.warmup, 1) if self.decay else 1.0
        return self.lr * min(rising, falling)


class Optimiser:
    """AdamW under a schedule, with the gradient's norm clipped; in a `world` the gradient is the sum of all."""

    def __init__(
        self, model: Any, schedule: Schedule, *, world: World = ALONE, weight_decay: float = 0.0, clip: float = 1.0
    ) -> None:
        """`clip` is the largest norm of an applied gradient."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._inner = torch.optim.AdamW(
            trained, lr=schedule.lr, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True
        )
        self._trained, self.schedule, self._world, self._clip = trained, schedule, world, clip
        self.taken = 0
        self.scale = 1.0
        self.rate = 0.0
        """The rate of the last step."""

    def step(self) -> float:
        """Apply and clear the gradients; returns their norm before clipping. A norm that is not finite is skipped."""
        if self._world.size > 1:
            for parameter in self._trained:  # a process without a micro-batch has no gradient yet
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self._sum([parameter.grad for parameter in self._trained if parameter.grad is not None])
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self._trained, self._clip)))
        self.rate = self.schedule.rate(self.taken) * self.scale
        if math.isfinite(norm):
            for group in self._inner.param_groups:
                group["lr"] = self.rate
            self._inner.step()
        self._inner.zero_grad(set_to_none=True)
        self.taken += 1
        return norm

    def _sum(self, gradients: Sequence[torch.Tensor]) -> None:
        """Sum every gradient over all processes; gradients of split weights are their mean already."""
        split = [gradient for gradient in gradients if hasattr(gradient, "full_tensor")]
        for gradient in split:
            gradient.mul_(self._world.size)
        if not split:
            self._world.add(gradients)

    def sound(self) -> bool:
        """Whether all trained weights are finite numbers, in all processes; reads them all."""
        parts = (getattr(weight, "to_local", lambda own=weight: own)() for weight in self._trained)
        return all(self._world.gather([all(bool(torch.isfinite(part).all()) for part in parts)]))

    def state(self) -> dict[str, Any]:
        """The whole state for a checkpoint; all processes of split weights must call this."""
        return {"inner": whole_tree(self._inner.state_dict()), "taken": self.taken, "scale": self.scale}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        inner = state["inner"]
        moments = {
            number: {name: spread(value, self._trained[number]) for name, value in values.items()}
            for number, values in inner["state"].items()
        }
        self._inner.load_state_dict({**inner, "state": moments})
        self.taken, self.scale = int(state["taken"]), float(state["scale"])
