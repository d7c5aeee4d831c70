"""The student does not imitate itself by mistake.

Cross-entropy on the student's own unfiltered samples only sharpens it (ms-swift issue 6857). A teacher with the
student's weights makes sense if a strategy searches first or a verifier selects, but never as a supervisor.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, is_off, reads_tokens, refused
from distill.spec.method import DistillJob
from ttc.identity.digests import model_digests


def own_samples(job: DistillJob) -> Finding:
    """Compare the weights of student and teachers."""
    own = model_digests(job.student).get("weights")
    verified = not is_off(job.spec.filters.get("verdict", True))
    for teacher in job.teachers:
        if teacher.digests.get("weights") != own or own is None:
            continue
        if reads_tokens(job):
            return refused(
                f"teacher {teacher.name} has the student's own weights: there is nothing to learn from it",
                "name another teacher, or use method = search, where the student's own search teaches it",
            )
        if not teacher.is_searching and not verified:
            return refused(
                f"teacher {teacher.name} has the student's own weights, and nothing selects among its answers",
                "leave the filter verdict on, give the teacher a strategy, or name another teacher",
            )
    return fine("no student imitates its own unselected answers")
