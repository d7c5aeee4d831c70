"""One optimiser for the family: Muon for the matrices inside, AdamW for the rest.

Paper: Muon, Jordan et al. 2024; its learning rate is matched to AdamW's as in "Muon is scalable"
(arXiv 2502.16982). Cost: a few percent of a step. Schedule: linear warm-up, flat, linear decay to 0.
"""

from collections.abc import Mapping
from typing import Any

import torch


class Optimiser:
    """Muon and AdamW stepped together under one schedule of `steps` steps."""

    def __init__(self, model: torch.nn.Module, lr: float, steps: int, decay: float = 2 / 7) -> None:
        """Split the parameters; `decay` is the share of the run over which the rate falls to 0."""
        inside = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
        known = {id(p) for p in inside}
        rest = [p for p in model.parameters() if id(p) not in known]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inside, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._lr, self._steps, self._decay = lr, steps, decay
        self._model = model

    def step(self, number: int) -> None:
        """Apply the gradients at step `number` (from 0) and clear them."""
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._lr * self._scale(number)
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint keeps."""
        return [part.state_dict() for part in self._parts]

    def load(self, state: list[Mapping[str, Any]]) -> None:
        """Restore what `state` returned."""
        for part, saved in zip(self._parts, state, strict=True):
            part.load_state_dict(dict(saved))

    def _scale(self, number: int) -> float:
        warm = min(100, max(1, self._steps // 4))
        rising = (number + 1) / warm
        falling = (self._steps - number) / max(1.0, self._steps * self._decay)
        return min(1.0, rising, falling)
