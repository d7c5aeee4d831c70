"""Student and teacher mean the same by every id.

Equal sizes tell nothing: one family has 151,936 rows in one model and 152,064 in another for the same tokens, and
others have the same size for different ones (TRL issues 2215 and 4562). Compared are the bytes of every used id.
"""

from __future__ import annotations

from distill.data.vocabulary import differences
from distill.preflight import Finding
from distill.preflight._common import fine, reads_tokens, refused, skipped, teacher_folders
from distill.spec.method import Job

__all__ = ["tokenizer"]


def tokenizer(job: Job) -> Finding:
    """Compare what ids stand for."""
    if not reads_tokens(job):
        return skipped("tokenizer")
    for name, folder in teacher_folders(job).items():
        found = differences(job.student, folder)
        if found:
            token, ours, theirs = found[0]
            return refused(
                "tokenizer",
                f"{len(found)} ids differ: {token} is {ours} to the student and {theirs} to {name}",
                "take a teacher of the student's tokenizer, or a method that passes texts: rejection or search",
            )
    return fine("tokenizer", "every id stands for the same bytes")
