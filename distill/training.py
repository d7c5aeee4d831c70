"""Training of a job: the method's stages as a run of `train`, in a folder named by what goes into it.

The folder's name is a digest of the stages, the rows, the student and the seed: the same training is resumed or found
done, and changed data or settings train anew beside it. There is no second trainer: kinds are those of `train`'s
registry, which this package adds to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.digests import digest_of, file_digest
from distill.method import Data
from distill.resolve import Plan
from train.recipe import Recipe, bind_stage
from train.run import Options, run_recipe
from train.stage import Result

__all__ = ["Trained", "train_student"]


@dataclass(frozen=True, slots=True)
class Trained:
    """A run of `train`: its folder, what its stages reported, and its model; None when a health rule ended it."""

    folder: Path
    results: Sequence[Result]
    kinds: Sequence[str]

    @property
    def model(self) -> Path | None:
        """The folder of the student."""
        return None if self.results[-1].stopped.startswith("health rule") else Path(self.results[-1].model)

    @property
    def metrics(self) -> dict[str, Mapping[str, float]]:
        """Numbers of each stage by its folder's name."""
        names = [f"{number}-{kind}" for number, kind in enumerate(self.kinds, start=1)]
        return {name: result.metrics for name, result in zip(names, self.results, strict=False)}


def train_student(plan: Plan, data: Data | None, log: Callable[[str], None]) -> Trained:
    """Run the method's stages from the student's folder, resuming what is there.

    Raises:
        ConfigError: a stage cannot work.
        TrainingError: a stage cannot go on.
    """
    import torch
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    spec, job = plan.spec, plan.job
    tables = list(plan.method.stages(job, data))
    steps = tuple(
        bind_stage({"kind": kind, **fields}, f"{spec.method}, stage {number}")
        for number, (kind, fields) in enumerate(tables, start=1)
    )
    folder = job.folder / "train" / _digest(plan, tables, data)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(spec.threads)
    options = Options(folder, spec.seed, job.student, spec.device, spec.threads)
    results = run_recipe(Recipe(spec.name, plan.method.about(job), steps), options, log)
    return Trained(folder, results, [kind for kind, _ in tables])


def _digest(plan: Plan, tables: Sequence[tuple[str, Mapping[str, Any]]], data: Data | None) -> str:
    """Of what training depends on; the file of rows counts by its content, not by its place."""
    place = None if data is None else str(data.path)
    settings = [[kind, {k: v for k, v in fields.items() if v != place}] for kind, fields in tables]
    rows = None if data is None else file_digest(data.path)
    return digest_of([str(settings), rows, plan.digests["student"], plan.digests["teachers"], plan.spec.seed])
