"""A token's weight depends neither on padding nor on how a batch is split.

A trainer that divided by the labels counted before generation trained at a rate that drifted with length (TRL issue
4719). The normaliser that the job trains with is run on a small mask: widened by padding it must give the same weights,
none of them outside of the mask.
"""

from __future__ import annotations

import torch

from distill.preflight import Finding, fine, refused
from distill.spec.method import DistillJob
from train.update.batch import NORMALISERS


def normaliser(job: DistillJob) -> Finding:
    """Run the job's normaliser on a mask and on a wider one."""
    name = str(job.spec.train.get("normaliser", "token"))
    names = ", ".join(NORMALISERS)
    if name not in NORMALISERS:
        return refused(f"train.normaliser = {name!r} is not known", f"use one of {names}")
    mask = torch.arange(7)[None] < torch.tensor([7, 2, 4])[:, None]
    wide = torch.cat([mask, torch.zeros(3, 5, dtype=torch.bool)], 1)
    narrow, wider = (NORMALISERS[name](some.float(), 3, 16) for some in (mask, wide))
    if not torch.equal(wider[:, :7], narrow) or bool((narrow * ~mask).any()):
        return refused(
            f"the weights of normaliser {name} change with padding, so the rate would drift with length",
            f"divide by the number of tokens in the mask, not by the width; or use one of {names}",
        )
    return fine(f"the weights of {name} depend only on the mask")
