"""Tasks: one short file each; the file's name is the task's, and a path to a JSON-lines file is a task as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from evals.jsonl import jsonl
from evals.task import Task
from ttc.errors import UnknownName
from ttc.registry import Registry

__all__ = ["TASKS", "load_task"]

TASKS = Registry("task", "evals.tasks", "ttc.tasks")


def load_task(name: str) -> Callable[..., Task]:
    """Return the factory of the task called `name`, or of the task in the file `name` (.jsonl or .jsonl.gz).

    Raises:
        UnknownName: neither a known task nor an existing file.
    """
    if name.endswith((".jsonl", ".jsonl.gz")):
        if not Path(name).expanduser().is_file():
            raise UnknownName("task file", name, TASKS.names())
        factory = partial(jsonl, name)
        factory.__name__ = Path(name).name  # type: ignore[attr-defined]
        return factory
    return TASKS.load(name)
