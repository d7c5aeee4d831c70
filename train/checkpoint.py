"""Checkpoints from which a run goes on bit for bit: weights, optimiser, counters, sampler, health.

A checkpoint is written beside its place and renamed, so there is never half of one; the newest `keep` stay. Weights are
safetensors and everything else JSON or tensors without code (`weights_only`). Random draws need no state: they are pure
functions of (seed, step). Bit for bit means on one CPU, with the same build of torch, number of threads and dtype, and
rollouts by an engine that is itself deterministic; elsewhere a run goes on to rounding.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train.sharding import inner, spread, whole
from ttc.errors import TrainingError

__all__ = ["Checkpoints"]


class Checkpoints:
    """The checkpoints of one stage."""

    def __init__(self, folder: Path, keep: int = 2, *, writes: bool = True) -> None:
        """Keep the newest `keep`; without `writes` they are another process's, and only read here."""
        self._folder, self._keep, self._writes = folder, keep, writes

    def save(self, step: int, model: Any, optimiser: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write the state after `step` updates."""
        from safetensors.torch import save_file

        target = self._folder / f"step-{step:06d}"
        # tied weights are stored once: parameters() knows them once
        weights = {name: whole(tensor.detach()).contiguous() for name, tensor in inner(model).named_parameters()}
        if not self._writes:
            return target
        partial = self._folder / f".partial-{step:06d}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(weights, str(partial / "model.safetensors"))
        torch.save(dict(optimiser), partial / "optimiser.pt")
        (partial / "state.json").write_text(json.dumps({**state, "step": step}))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old)
        return target

    def load(self, model: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Put the newest weights into `model`; returns (optimiser, state), or None when there is no checkpoint.

        Raises:
            TrainingError: the checkpoint belongs to another model.
        """
        from safetensors.torch import load_file

        found = self._all()
        if not found:
            return None
        newest = found[-1]
        weights = load_file(str(newest / "model.safetensors"))
        own = dict(inner(model).named_parameters())
        if weights.keys() != own.keys() or any(own[name].shape != tensor.shape for name, tensor in weights.items()):
            raise TrainingError(f"{newest} holds the weights of another model; start the run in a new folder")
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(spread(tensor, own[name]))
        optimiser = torch.load(newest / "optimiser.pt", weights_only=True)
        return optimiser, json.loads((newest / "state.json").read_text())

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*")) if self._folder.is_dir() else []
