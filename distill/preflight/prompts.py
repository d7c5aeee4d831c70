"""No training prompt gives its answer away or is measured, for a gate or for retention.

If answers are generated beforehand, such problems are dropped, each with its reason, and at least two must be left. A
student that writes while it trains draws every problem of its tasks, so the job is refused.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, reads_tokens, refused
from distill.spec.method import DistillJob
from ttc.config.values import counted

_FIXES = {
    "measured": ("is ", "take another split for training, or measure another one"),
    "tells its answer": ("", "take the answers out of the task's prompts"),
}
"""By how the reason of a dropped problem begins: the verb before it, and what to do."""


def prompts(job: DistillJob) -> Finding:
    """Look for answers and measured problems in the training prompts."""
    if not reads_tokens(job):
        left = sum(len(domain.items) for domain in job.domains)
        if left == 1:
            return refused(
                f"only {job.domains[0].items[0].problem.id} is left to ask, and imitation holds whole prompts out",
                "take more problems: a higher limit, or another task",
            )
        return fine(f"{counted(left, 'problem')} left, which do not contain their answer and are not measured")
    for domain in job.domains:
        for name, reason in domain.dropped:
            for kind, (verb, fix) in _FIXES.items():
                if reason.startswith(kind):
                    return refused(f"{name} ({domain.name}) {verb}{reason}", fix)
    return fine("no prompt contains its answer or is measured")
