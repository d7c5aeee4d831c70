"""The fields of [train] are those of the stage that will learn.

A misspelt field would be found after everything is generated. Bound are the fields of `sft` for methods that generate
first, those of `on_policy` for a student that writes while it trains.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, method_of, refused
from distill.spec.method import DistillJob
from train.registries import STAGES
from ttc.config.signatures import parsed
from ttc.errors import ConfigError

__all__ = ["training"]


def training(job: DistillJob) -> Finding:
    """Bind the fields without running anything."""
    kind = "sft" if method_of(job).assignments(job) else "on_policy"
    # health is a table, as in a recipe; the stage itself checks the names of its rules
    fields = {key: value for key, value in job.spec.train.items() if key not in ("epochs", "packing", "health")}
    try:
        parsed(STAGES.load(kind), fields, supply={})
    except ConfigError as exc:
        return refused(f"[train]: {exc}", f"see the fields by: ttc list stages {kind}")
    return fine(f"[train] has fields of the stage {kind}")
