"""Training of a job: the method's stages as a run of `train`, in a folder named by what goes into it.

The folder's name is a digest of the stages, the rows, the student and the seed: the same training is resumed or found
done, and changed data or settings train anew beside it. There is no second trainer: kinds are those of `train`'s
registry, which this package adds to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.plan.resolve import Plan
from distill.spec.digests import name_of
from distill.spec.method import Data
from train.base.stage import StageResult
from train.recipe.recipe import Recipe, RecipeStep, bind_stage
from train.recipe.run import RunOptions, run_recipe
from ttc.identity.digests import file_digest

__all__ = ["Trained", "train_student"]


@dataclass(frozen=True, slots=True)
class Trained:
    """A run of `train`: its folder, what its stages reported, and its model; None when a health rule ended it."""

    folder: Path
    results: Sequence[StageResult]
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
    steps = [
        bind_stage({"kind": kind, **fields}, f"{spec.method}, stage {number}")
        for number, (kind, fields) in enumerate(tables, start=1)
    ]
    named = [replace(step, fields=_portable(step.fields, data)) for step in steps]
    folder = job.folder / "train" / _digest(plan, named)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(spec.threads)
    options = RunOptions(folder, spec.seed, job.student, spec.device, spec.threads)
    results = run_recipe(Recipe(spec.method, plan.method.about(job), tuple(named)), options, log)
    return Trained(folder, results, [kind for kind, _ in tables])


def _portable(fields: Mapping[str, Any], data: Data | None) -> dict[str, Any]:
    """Fields as a run records them: the file of rows by its content, so that a job's folder may be moved."""
    place = None if data is None else str(data.path)
    return {
        key: f"rows {file_digest(Path(value))}" if place is not None and value == place else value
        for key, value in fields.items()
    }


def _digest(plan: Plan, steps: Sequence[RecipeStep]) -> str:
    """Of what training depends on."""
    settings = [[step.kind, str(sorted(step.fields.items()))] for step in steps]
    return name_of([settings, plan.digests["student"], plan.digests["teachers"], plan.spec.seed])
