"""The fields of [train] are known to the training stages, with valid values.

Otherwise a misspelt field, or a rate below 0, would be found only after everything is generated. Every stage of the
method is made as the job would make it if all answers were kept; none is run.
"""

from __future__ import annotations

from dataclasses import replace

from distill.preflight import Finding, fine, method_of, refused
from distill.spec.method import DistillJob, planned_data
from train.measure.measure import EXACT, check_engine
from train.recipe.recipe import bind_stage
from ttc.errors import ConfigError


def training(job: DistillJob) -> Finding:
    """Make the stages without running anything; `packing` has its own check."""
    fields = {key: value for key, value in job.spec.train.items() if key != "packing"}
    method, job = method_of(job), replace(job, spec=replace(job.spec, train=fields))
    data = planned_data(job, method.assignments(job))
    try:
        for kind, table in method.stages(job, data):
            bind_stage({"kind": kind, **table}, f"stage {kind}")
            check_engine(str(table.get("engine", EXACT)))
    except ConfigError as exc:
        kind = "on_policy" if data is None else "sft"
        return refused(f"[train]: {exc}", f"see the fields by: ttc list stages {kind}")
    return fine("[train] has fields of the stages that learn")
