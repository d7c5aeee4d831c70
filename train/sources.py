"""Where an offline stage takes its rows from: a file, or the rollouts of a stage of the same run.

`rollouts = "2-sample"` names a stage's folder beside this one, and `rollouts = "path/rollouts.jsonl"` a file of another
run.
"""

from __future__ import annotations

from pathlib import Path

from train.stage import Setting
from ttc.errors import ConfigError

__all__ = ["one_of", "rollouts_path"]


def one_of(stage: str, **given: object) -> None:
    """Raise ConfigError unless exactly one of the fields is given."""
    present = [name for name, value in given.items() if value is not None]
    if len(present) != 1:
        raise ConfigError(f"{stage}: give exactly one of {', '.join(given)}; got {', '.join(present) or 'none'}")


def rollouts_path(name: str, setting: Setting) -> Path:
    """The rollouts that `name` means; raises ConfigError when they are not there."""
    beside = setting.folder.parent / name / "rollouts.jsonl"
    path = beside if beside.is_file() else Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"rollouts {name!r}: neither {beside} nor a file of that name exists")
    return path
