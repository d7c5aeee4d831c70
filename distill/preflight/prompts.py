"""No prompt of training tells its answer or is measured.

Where answers are generated beforehand such problems are dropped, each with its reason; a student that writes while it
trains draws them itself, so there the job is refused.
"""

from __future__ import annotations

from distill.method import Job
from distill.preflight import Finding
from distill.preflight._common import fine, raw_items, reads_tokens, refused
from evals.decontamination import answer_leaks, overlaps, prompt_text

__all__ = ["prompts"]


def prompts(job: Job) -> Finding:
    """Look for answers and for measured problems in the prompts that are trained on."""
    if not reads_tokens(job):
        left = sum(len(domain.items) for domain in job.domains)
        return fine("prompts", f"{left} problems are left that tell no answer and are not measured")
    measured = [
        prompt_text(item) for d in job.domains if d.held_out for item in d.held_out.items(job.spec.eval.limit, 0)
    ]
    for domain, items in raw_items(job).items():
        told = next(answer_leaks(items), None)
        if told is not None:
            return refused(
                "prompts",
                f"the prompt of {told.problem_id} ({domain}) tells its answer: {told.shared[:60]!r}",
                "take the answers out of the task's prompts",
            )
        same = next(overlaps([prompt_text(item) for item in items], measured), None)
        if same is not None:
            return refused(
                "prompts",
                f"{items[same.train].problem.id} ({domain}) is measured too: {same.shared[:60]!r} ({same.how})",
                "take another split for training",
            )
    return fine("prompts", "no prompt tells its answer or is measured")
