"""The disk holds what the job writes.

A full disk ends a job in the middle of a checkpoint. Counted are two checkpoints (weights and two moments of the
optimiser, fp32) and the student, twice over for safety; the ledger is small beside them.
"""

from __future__ import annotations

import shutil

from distill.preflight import Finding, fine, num_weights, refused
from distill.spec.method import DistillJob
from ttc.config.values import storage

_COPIES = 2 * 3 + 2
"""Of the weights in fp32: two checkpoints of three tensors per weight, the student of the run and its copy."""


def disk(job: DistillJob) -> Finding:
    """Compare the free space with what will be written."""
    place = next(folder for folder in (job.folder, *job.folder.resolve().parents) if folder.exists())
    free, needed = shutil.disk_usage(place).free, 4 * _COPIES * num_weights(job.student)
    text = f"{storage(needed)} are needed and {storage(free)} are free"
    if needed > free:
        return refused(f"{text} where the job's folder is", "free some, or give --out on another disk")
    return fine(text)
