"""Tasks: one short file each; the file's name is the task's. `NAME:ARG` chooses within a task that has many kinds.

A path to a JSON-lines, CSV or TOML file is a task as well (`evals.tasks._files`), or a mixture of several.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evals.task import Task
from ttc.config.plugins import PluginShape
from ttc.config.recipes import load_toml, split_model, user_file
from ttc.config.registry import Registry
from ttc.errors import ConfigError

__all__ = ["ROWS", "TASKS", "load_task", "task_file"]

TASKS = Registry("task", "evals.tasks", "ttc.tasks", PluginShape(("evals.task:Task",), num_free=1))
ROWS = (".jsonl", ".jsonl.gz", ".csv")
"""The endings of a user's file of problems."""
_TOML = ".toml"


def load_task(name: str) -> Callable[..., Task]:
    """Return the factory of the task called `name`, of NAME:ARG, or of the task in a file (JSON lines, CSV, TOML).

    Raises:
        UnknownName: no task of that name.
        ConfigError: a file that does not exist or has another ending, an argument for a task that takes none, or none
            for one that needs it.
    """
    if name.endswith((*ROWS, _TOML)):
        if not Path(name).expanduser().is_file():
            raise ConfigError(f"task file {name!r} does not exist")
        factory = partial(_reader(name), name)
        factory.__name__ = Path(name).name  # type: ignore[attr-defined]
        return factory
    path = Path(name).expanduser()
    plain, argument = split_model(name)
    is_folder, is_file = "/" in name and path.is_dir(), path.suffix not in ("", ".py") and path.is_file()
    is_missing = not is_file and _called_like_a_file(plain)
    if is_folder or is_file or is_missing:
        what = "task folder" if is_folder else "task file"
        raise ConfigError(
            f"{what} {name!r}{' does not exist;' if is_missing else ':'} a task is read from "
            f"{', '.join((*ROWS, _TOML))} or FILE.py:FUNCTION; ttc.evaluate takes data frames and datasets "
            "(pandas.read_parquet, datasets.load_from_disk)"
        )
    task_factory = TASKS.load(plain)
    takes = [p for p in inspect.signature(task_factory).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if argument is None:
        if takes:
            raise ConfigError(f"task {plain} needs a {takes[0].name}: {plain}:{takes[0].name.upper()}")
        return task_factory
    if not takes:
        raise ConfigError(f"task {plain} takes nothing after a colon, got {argument!r}")
    named_factory = partial(task_factory, argument)
    named_factory.__name__ = plain  # type: ignore[attr-defined]
    return named_factory


def _called_like_a_file(name: str) -> bool:
    """Whether a name that is no task's looks like a data file: rows.tsv."""
    return user_file(name) is None and Path(name).suffix not in ("", ".py") and name not in TASKS.names()


def _reader(name: str) -> Callable[..., Task]:
    """The reader of a task file; imported here because named tasks do not need it."""
    from evals.tasks._files import jsonl, mixture, toml_task

    if not name.endswith(_TOML):
        return jsonl
    return mixture if "parts" in load_toml(Path(name).expanduser()) else toml_task


def task_file(name: str) -> Path | None:
    """Return the user's file that defines a task, of Python or TOML; JSON lines hold only problems."""
    return Path(name).expanduser() if name.endswith(_TOML) else user_file(split_model(name)[0])
