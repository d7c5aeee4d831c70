"""No prompt of training tells its answer or is measured.

Where answers are generated beforehand such problems are dropped, each with its reason; a student that writes while it
trains draws them itself, so there the job is refused.
"""

from __future__ import annotations

from distill.data.pipeline import clean_prompts
from distill.preflight import Finding, fine, raw_items, reads_tokens, refused
from distill.spec.method import DistillJob
from evals.data.decontamination import answer_leaks
from ttc.config.values import counted


def prompts(job: DistillJob) -> Finding:
    """Look for answers and for measured problems in the prompts that are trained on."""
    if not reads_tokens(job):
        left = sum(len(domain.items) for domain in job.domains)
        return fine(f"{counted(left, 'problem')} left, which tell no answer and are not measured")
    held_out = [domain.held_out.items(job.spec.eval.limit, 0) for domain in job.domains if domain.held_out is not None]
    for domain, items in raw_items(job).items():
        leak = next(answer_leaks(items), None)
        if leak is not None:
            return refused(
                f"the prompt of {leak.problem_id} ({domain}) tells its answer: {leak.shared[:60]!r}",
                "take the answers out of the task's prompts",
            )
        lost = [pair for pair in clean_prompts(items, held_out).dropped if pair[1].startswith("measured")]
        if lost:
            name, reason = lost[0]
            return refused(f"{name} ({domain}) is {reason}", "take another split for training")
    return fine("no prompt tells its answer or is measured")
