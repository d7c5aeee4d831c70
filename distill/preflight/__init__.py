"""Checks before anything is spent: each refuses one way in which distillation goes wrong silently, and names the fix.

    def NAME(job) -> Finding            distill/preflight/NAME.py, or an entry point of ttc.preflight

A check reads model folders and the resolved job, loads no more than it needs, and never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distill.spec.method import Job
from ttc.config.plugin_shape import PluginShape
from ttc.config.registry import Registry
from ttc.errors import TTCError

__all__ = ["CHECKS", "Finding", "run"]

CHECKS = Registry(
    "check", "distill.preflight", "ttc.preflight",
    PluginShape(("distill.preflight:Finding",), takes=("job",), has_options=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: whether it is all right, what it saw, and how to mend it."""

    check: str
    ok: bool
    text: str
    fix: str = ""


def run(job: Job) -> list[Finding]:
    """Run all checks, in the order of their names; one that cannot be made refuses the job with its own error."""
    return [_checked(name, job) for name in CHECKS.names()]


def _checked(name: str, job: Job) -> Finding:
    check: Callable[[Job], Finding] = CHECKS.load(name)
    try:
        finding: Finding = CHECKS.checked(name, check(job))
        return finding
    except TTCError as exc:
        return Finding(name, False, f"the check cannot be made: {exc}", "see what the other checks say first")
