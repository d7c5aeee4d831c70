"""Cut answers are not learnt like finished ones.

A cut answer teaches a student never to stop; trainers log their share and do not mask them. Here the filter `truncated`
and the field `mask_truncated` keep them out; a job that turns either off is refused.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, is_off, refused
from distill.spec.method import DistillJob


def truncation(job: DistillJob) -> Finding:
    """Check that cut answers are kept out."""
    for field, value in (
        ("filters.truncated", job.spec.filters.get("truncated")),
        ("train.mask_truncated", job.spec.train.get("mask_truncated")),
    ):
        if value is not None and is_off(value):
            return refused(
                f"{field} = false would learn answers that were cut as if they were finished",
                f"leave {field} out, and raise sampling.max_tokens if too many are cut",
            )
    return fine("answers that were cut are not learnt")
