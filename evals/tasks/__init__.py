"""Tasks: one short file each; the file's name is the task's. `NAME:ARG` chooses within a task that has many kinds.

A path to a file of rows (JSON lines, CSV, JSON, parquet) is a task as well (`evals.tasks.rows`), and so is a TOML file
that describes one (`evals.tasks.toml`) or several (`evals.tasks.mixture`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evals.task import ROWS, Task, has_rows
from ttc.config.plugins import PluginShape
from ttc.config.recipes import load_toml, split_model, user_file
from ttc.config.registry import Registry
from ttc.errors import ConfigError

__all__ = ["TASKS", "load_task", "task_file"]

TASKS = Registry("task", "evals.tasks", "ttc.tasks", PluginShape(("evals.task:Task",), num_free=1))
_TOML = ".toml"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load_task(name: str) -> Callable[..., Task]:
    """Return the factory of the task called `name`, of NAME:ARG, or of the task in a file (rows or TOML).

    Raises:
        UnknownName: no task of that name.
        ConfigError: a file that does not exist or has another ending, an argument for a task that takes none, or none
            for one that needs it.
    """
    path = Path(name).expanduser()
    if has_rows(path) or name.lower().endswith(ROWS) or name.endswith(_TOML):
        if not path.exists():
            raise ConfigError(f"task file {name!r} does not exist")
        factory = partial(TASKS.load(_kind_of(path)), name)
        factory.__name__ = path.name  # type: ignore[attr-defined]
        return factory
    plain, argument = split_model(name)
    is_folder, is_file = "/" in name and path.is_dir(), path.suffix not in ("", ".py") and path.is_file()
    is_missing = not is_file and _called_like_a_file(plain)
    if is_folder or is_file or is_missing:
        what = "task folder" if is_folder else "task file"
        raise ConfigError(
            f"{what} {name!r}{' does not exist;' if is_missing else ':'} a task is read from "
            f"{', '.join((*ROWS, _TOML))}, a folder of save_to_disk, or FILE.py:FUNCTION; "
            "save a table of a spreadsheet as CSV"
        )
    if _HUB_ID.fullmatch(name):
        raise ConfigError(f"there is no task {name!r}; a data set of the hub is hub:{name}")
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


def _kind_of(path: Path) -> str:
    """The task that reads a file."""
    if path.suffix != _TOML:
        return "rows"
    return "mixture" if "parts" in load_toml(path) else "toml"


def task_file(name: str) -> Path | None:
    """Return the user's file that defines a task, of Python or TOML; JSON lines hold only problems."""
    return Path(name).expanduser() if name.endswith(_TOML) else user_file(split_model(name)[0])
