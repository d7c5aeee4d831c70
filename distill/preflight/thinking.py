"""A student that should learn thoughts has markers to put them between.

Otherwise the first row with a thought would be refused after all answers were paid for. Markers are single tokens, or
text of several, which budgets count as exactly.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, refused, teacher_folders
from distill.spec.method import DistillJob
from ttc.engines.shared.text import Text


def thinking(job: DistillJob) -> Finding:
    """Look for the student's markers where a teacher may think."""
    text = Text(job.student)
    if text.markers is not None:
        opening, closing = text.markers
        sizes = f"{len(text.think_open)} and {len(text.think_close)} tokens"
        return fine(f"the student thinks between {opening} and {closing} ({sizes})")
    if job.spec.thinking.template is False:
        return fine("no thinking markers needed: thinking is off")
    thinkers = [name for name, folder in teacher_folders(job).items() if Text(folder).markers is not None]
    if thinkers:
        return refused(
            f"{thinkers[0]} thinks, and the student has no thinking markers",
            'name them: thinking.open = "<think>", thinking.close = "</think>"',
        )
    return fine("no teacher is known to think")
