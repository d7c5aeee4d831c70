"""Rows never attend across each other.

Packing several rows into one sequence without a block mask makes a student repeat itself (open-r1 issue 520). Packing
is refused unless the stage that learns the rows knows it, which it does only with a mask.
"""

from __future__ import annotations

import inspect

from distill.method import Job
from distill.preflight import Finding
from distill.preflight._common import fine, is_off, refused
from train.registries import STAGES

__all__ = ["packing"]


def packing(job: Job) -> Finding:
    """Look for packing in [train]."""
    asked = not is_off(job.spec.train.get("packing", False))
    if asked and "packing" not in inspect.signature(STAGES.load("sft")).parameters:
        return refused(
            "packing",
            "train.packing would let rows attend to each other",
            "leave train.packing out; rows of like length share a micro-batch and pad little",
        )
    return fine("packing", "packed with a block mask" if asked else "every row is a sequence of its own")
