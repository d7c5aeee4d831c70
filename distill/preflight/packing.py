"""Rows never attend across each other.

Packing several rows into one sequence without a block mask makes a student repeat itself (open-r1 issue 520). `packed`
of the stage `sft` packs with one; `packing`, as other trainers call it, is refused instead of being taken for it.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, is_off, refused
from distill.spec.method import DistillJob


def packing(job: DistillJob) -> Finding:
    """Look for packing in [train]."""
    if not is_off(job.spec.train.get("packing", False)):
        return refused(
            "train.packing would let rows attend to each other",
            "use train.packed = 1024, which packs rows of a sequence behind a block mask, or leave it out",
        )
    if is_off(job.spec.train.get("packed", 0)):
        return fine("every row is a sequence of its own")
    return fine(f"rows share sequences of {job.spec.train['packed']} tokens behind a block mask")
