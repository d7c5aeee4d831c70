"""Checkpoints from which a run resumes bit for bit: weights, optimiser, counters, sampler, health.

A checkpoint holds what is trained: with adapters, only these. It is written beside its final place, synced, sealed
(`ttc.durable`) and renamed, so there is never a partial one; the newest `keep` stay. One written because of a signal is
in a folder of its own until the next one (`keep`), so that an alarm rolls back to the same state as without the signal.
Reading takes the newest intact one, and reports the others. Weights are safetensors and everything else JSON or tensors
without code (`weights_only`). Random draws need no state: they are pure functions of (seed, step). Cost: its bytes are
written once, and read once more for the seal and on resuming. Bit for bit means on one CPU, with the same build of
torch, number of threads and dtype, and rollouts by an engine that is itself deterministic; elsewhere a run goes on to
rounding.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from train.base.weights import inner, spread, whole
from ttc.durable import first_flaw, replaced_folder, seal
from ttc.errors import TrainingError

_NAME = re.compile(r"step-(\d+)")
ASKED = "asked"
"""Folder of the checkpoint that a signal asked for."""


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

    @property
    def newest(self) -> int:
        """The step from which `resume` continues if all is intact; 0 without a checkpoint."""
        places = [*numbered(self._folder, _NAME), *numbered(self._folder / ASKED, _NAME)]
        return max((number for number, _ in places), default=0)

    def save(
        self, step: int, model: Any, optimiser: Mapping[str, Any], state: Mapping[str, Any], until: int | None = None
    ) -> Path:
        """Write the state after `step` updates, and drop all but the newest `keep`.

        The newest of at most `until` updates stays, too: a run that resumes from there has no later one.
        """
        from safetensors.torch import save_file

        target = self._folder / f"step-{step:06d}"
        weights = {name: whole(tensor.detach()).contiguous() for name, tensor in _trained(model).items()}
        if not self._writes:
            return target
        with replaced_folder(target) as partial:
            save_file(weights, str(partial / "model.safetensors"))
            torch.save(dict(optimiser), partial / "optimiser.pt")
            (partial / "state.json").write_text(json.dumps({**state, "step": step}))
            seal(partial)
        # only now, and without later ones: those were damaged when the run resumed from before them
        places = numbered(self._folder, _NAME)
        later = [place for number, place in places if number > step]
        older = [place for number, place in places if number <= step][: -self._keep]
        spared = [place for number, place in places if until is not None and number <= until][-1:]
        for place in [*later, *older]:
            if place not in spared:
                shutil.rmtree(place)
        shutil.rmtree(self._folder / ASKED, ignore_errors=True)
        return target

    def keep(self, step: int, model: Any, optimiser: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Write the state after `step` updates for `resume` only, because of a signal; unless it exists already.

        At step 0 nothing was learnt yet.
        """
        places = numbered(self._folder, _NAME)
        if step == 0 or step in dict(places):
            return
        Checkpoints(self._folder / ASKED, self._log, 1, writes=self._writes).save(step, model, optimiser, state)
        self.drop_after(step)  # damaged, or this run would have resumed from it

    def drop_after(self, step: int) -> None:
        """Drop states after `step` updates, from where this run resumes: a lost attempt wrote them."""
        for number, place in numbered(self._folder, _NAME):
            if self._writes and number > step:
                shutil.rmtree(place)

    def resume(self, model: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Like `load`, but also considers a state written because of a signal, if that is newer and intact.

        Without any, a stage that has counted updates in its metrics is said to start again.
        """
        newest = max((number for number, _ in numbered(self._folder, _NAME)), default=0)
        places = [place for number, place in numbered(self._folder / ASKED, _NAME) if number > newest]
        broken = {place.name: flaw for place in places if (flaw := first_flaw(place))}
        for name, flaw in broken.items():
            self._log(f"{self._folder.name}/{ASKED}/{name} is not whole: {flaw}; an earlier one is used instead")
        state = self.load(model) if not places or broken else self._read(model, places[-1])
        metrics = self._folder.parent / "metrics.jsonl"
        if state is None and metrics.is_file() and metrics.stat().st_size:
            self._log(f"{self._folder.parent.name} ended before its first checkpoint (save_every): it starts again")
        return state

    def load(self, model: Any, most: int | None = None) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Put the newest whole weights into `model`; returns (optimiser, state), or None when there is no checkpoint.

        With `most`, only states after at most that many updates count.

        Raises:
            TrainingError: there are checkpoints and none is whole, or the newest belongs to another model.
        """
        newest = newest_whole(self._folder, _NAME, self._log, most)
        return None if newest is None else self._read(model, newest)

    def _read(self, model: Any, newest: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        from safetensors.torch import load_file

        weights = load_file(str(newest / "model.safetensors"))
        own = _trained(model)
        if weights.keys() != own.keys() or any(own[name].shape != tensor.shape for name, tensor in weights.items()):
            raise TrainingError(f"{newest} holds the weights of another model; start the run in a new folder")
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(spread(tensor, own[name]))
        optimiser = torch.load(newest / "optimiser.pt", weights_only=True)
        return optimiser, json.loads((newest / "state.json").read_text())


def _trained(model: Any) -> dict[str, torch.Tensor]:
    """What an update may change of a model, by name, tied weights once: those under adapters stay as they were read."""
    return {name: tensor for name, tensor in inner(model).named_parameters() if tensor.requires_grad}


def numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The folders in `folder` whose names match, by the number in the pattern's first group, in order."""
    places = folder.iterdir() if folder.is_dir() else ()
    named = [(name.fullmatch(place.name), place) for place in places if place.is_dir()]
    return sorted((int(match[1]), place) for match, place in named if match is not None)


def newest_whole(
    folder: Path, name: re.Pattern[str], log: Callable[[str], None], most: int | None = None
) -> Path | None:
    """The intact sealed checkpoint of the highest number, at most `most`; None when there is no checkpoint.

    Newer damaged ones are reported to `log`, with their first flaw and what is used instead.

    Raises:
        TrainingError: there are checkpoints and none is whole; names the files.
    """
    broken: list[str] = []
    for number, place in reversed(numbered(folder, name)):
        if most is not None and number > most:
            continue
        flaw = first_flaw(place)
        if not flaw:
            for text in broken:
                log(f"{folder.name}/{text}; {place.name} is used instead")
            return place
        broken.append(f"{place.name} is not whole: {flaw}")
    if broken:
        raise TrainingError(
            f"{folder} holds no whole checkpoint: {'; '.join(broken)}. Put back the files of one of them, or delete "
            "the folder to start the stage again"
        )
    return None
