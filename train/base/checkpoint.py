"""Checkpoints from which a run goes on bit for bit: weights, optimiser, counters, sampler, health.

A checkpoint is written beside its place, brought to the disk, sealed (`train.base.seal`) and renamed, so there is never
half of one; the newest `keep` stay. Reading takes the newest that is whole, and says which ones are not. Weights are
safetensors and everything else JSON or tensors without code (`weights_only`). Random draws need no state: they are pure
functions of (seed, step). Cost: its bytes are written once, and read once more for the seal and at a resume. Bit for
bit means on one CPU, with the same build of torch, number of threads and dtype, and rollouts by an engine that is
itself deterministic; elsewhere a run goes on to rounding.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from train.base.models import inner, spread, whole
from train.base.seal import newest_whole, numbered, seal
from ttc.durable import replaced_folder
from ttc.errors import TrainingError

_NAME = re.compile(r"step-(\d+)")


class Checkpoints:
    """The checkpoints of one stage."""

    def __init__(self, folder: Path, log: Callable[[str], None], keep: int = 2, *, writes: bool = True) -> None:
        """Keep the newest `keep`; without `writes` they are another process's, and only read here.

        Args:
            folder: where they are; made when the first one is written.
            log: told of every checkpoint that is not whole.
            keep: how many stay; with 1 there is none to fall back on.
            writes: whether this process writes.
        """
        self._folder, self._log, self._keep, self._writes = folder, log, keep, writes

    def save(self, step: int, model: Any, optimiser: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write the state after `step` updates, and drop what is older than the newest `keep`."""
        from safetensors.torch import save_file

        target = self._folder / f"step-{step:06d}"
        # tied weights are stored once: parameters() knows them once
        weights = {name: whole(tensor.detach()).contiguous() for name, tensor in inner(model).named_parameters()}
        if not self._writes:
            return target
        with replaced_folder(target) as partial:
            save_file(weights, str(partial / "model.safetensors"))
            torch.save(dict(optimiser), partial / "optimiser.pt")
            (partial / "state.json").write_text(json.dumps({**state, "step": step}))
            seal(partial)
        # only now, and never counting a later one: those were not whole when the run went on from before them
        places = numbered(self._folder, _NAME)
        later = [place for number, place in places if number > step]
        older = [place for number, place in places if number <= step][: -self._keep]
        for place in [*later, *older]:
            shutil.rmtree(place)
        return target

    def load(self, model: Any, most: int | None = None) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Put the newest whole weights into `model`; returns (optimiser, state), or None when there is no checkpoint.

        Of those after at most `most` updates, where that is given.

        Raises:
            TrainingError: there are checkpoints and none is whole, or the newest belongs to another model.
        """
        from safetensors.torch import load_file

        newest = newest_whole(self._folder, _NAME, self._log, most)
        if newest is None:
            return None
        weights = load_file(str(newest / "model.safetensors"))
        own = dict(inner(model).named_parameters())
        if weights.keys() != own.keys() or any(own[name].shape != tensor.shape for name, tensor in weights.items()):
            raise TrainingError(f"{newest} holds the weights of another model; start the run in a new folder")
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(spread(tensor, own[name]))
        optimiser = torch.load(newest / "optimiser.pt", weights_only=True)
        return optimiser, json.loads((newest / "state.json").read_text())
