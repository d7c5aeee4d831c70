"""The fields of [train] are known to the training stages, with valid values, and the student can be trained so.

Otherwise a misspelt field, or a family that takes no adapters, would be found only after everything is generated. Every
stage of the method is made as the job would make it if all answers were kept; none is run. Cost: the student is loaded
once, if the memory holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from distill.preflight import Finding, fine, method_of, refused
from distill.preflight.memory import memory
from distill.spec.method import DistillJob, planned_data
from train.measure.measure import EXACT, check_engine
from train.recipe.recipe import bind_stage
from train.update.logprobs import check_packing
from train.update.update import Build
from ttc.errors import ConfigError


def training(job: DistillJob) -> Finding:
    """Make the stages without running anything; `packing` has its own check."""
    own = {key: value for key, value in job.spec.train.items() if key != "packing"}
    method, job = method_of(job), replace(job, spec=replace(job.spec, train=own))
    data = planned_data(job, method.assignments(job))
    try:
        for kind, table in method.stages(job, data):
            step = bind_stage({"kind": kind, **table}, f"stage {kind}")
            check_engine(str(table.get("engine", EXACT)))
            _load(job, step.values)
    except ConfigError as exc:
        kind = "on_policy" if data is None else "sft"
        return refused(f"[train]: {exc}", f"see the fields by: ttc list stages {kind}")
    return fine("[train] has fields of the stages that learn, and the student can be trained so")


def _load(job: DistillJob, values: Mapping[str, Any]) -> None:
    """Load the student as a stage with these values does; raises ConfigError where it cannot be trained so."""
    if not memory(job).ok:
        return
    build = Build(**{field.name: values[field.name] for field in fields(Build) if field.name in values})
    model = build.load(job.student, job.spec.device, job.spec.seed)
    if values.get("packed"):
        check_packing(model)
