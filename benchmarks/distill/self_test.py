"""A teacher with the student's own weights is no distance away: below 1e-4 nats per token at the first update."""

from __future__ import annotations

from typing import Any

from benchmarks.distill.place import Place
from benchmarks.distill.stock import rejection_student, rows_of

__all__ = ["measure"]


def measure(place: Place) -> dict[str, Any]:
    """One step of on-policy distillation from the student itself, for each divergence."""
    own = str(rejection_student(place))
    found: dict[str, float] = {}
    for kind in ("reverse", "forward", "jsd", "sampled"):
        name = f"self_test_{kind}"
        settings = {"student": own, "teacher": own, "train.steps": 1, "eval.limit": 16, "on_policy.divergence": kind}
        place.distill(name, "on_policy", settings)
        (row,) = [row for row in rows_of(place.folder / name, "metrics.jsonl") if "divergence" in row]
        found[kind] = row["divergence"]
    return {"nats_per_token": found}
