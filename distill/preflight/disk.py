"""The disk holds what the job writes.

A full disk ends a job in the middle of a checkpoint. Counted are the checkpoints that stand at once (what is trained,
all weights or adapters, and two moments of the optimiser, in fp32), and the student twice; the ledger is small.
"""

from __future__ import annotations

import shutil

from distill.preflight import Finding, fine, num_trained, num_weights, refused
from distill.spec.method import DistillJob
from ttc.config.values import storage

_CHECKPOINTS = 3
"""Two that stay, and the one that is written."""


def disk(job: DistillJob) -> Finding:
    """Compare the free space with what will be written."""
    place = next(folder for folder in (job.folder, *job.folder.resolve().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    needed = 4 * (3 * _CHECKPOINTS * num_trained(job) + 2 * num_weights(job.student))
    text = f"{storage(needed)} are needed and {storage(free)} are free"
    if needed > free:
        return refused(f"{text} where the job's folder is", "free some, or give --out on another disk")
    return fine(text)
