"""With a teacher of the student's own weights, the loss at the first update must be below 1e-4 nats per token.

A job refuses such a teacher, so the stage is called directly.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from benchmarks.distill.place import FEWER, Place
from benchmarks.distill.stock import rejection_student
from distill.supervision.divergence import Kind
from train.base.stage import Setting
from train.registries import STAGES

KINDS: tuple[Kind, ...] = ("reverse", "forward", "jsd", "sampled")


def measure(place: Place) -> dict[str, Any]:
    """One update of the student with itself as teacher, for each divergence."""
    own = rejection_student(place)
    found: dict[str, float] = {}
    for kind in KINDS:
        folder = place.folder / f"self_test_{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fields = {
            "task": "chain:split=train,count=512", "held_out": FEWER, "teacher": str(own), "steps": 1, "lr": 1e-3,
            "divergence": kind, "held_out_limit": 16, "record": False,
        }  # fmt: skip
        stage = STAGES.create("on_policy", fields, supply={})
        stage.run(Setting(folder, own, place.seed, "cpu", 1, place.log))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found[kind] = next(row["divergence"] for row in rows if "divergence" in row)
    return {"nats_per_token": found}
