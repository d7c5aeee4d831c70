"""Tasks: one short file each; the file's name is the task's. `evals.task` finds them by name."""

from evals.task import TASKS

__all__ = ["TASKS"]
