"""Where an offline stage takes its rows from, a file or a run's own rollouts, and which of them it holds out.

`rollouts = "2-sample"` names a stage's folder beside this one, and `rollouts = "path/rollouts.jsonl"` a file of another
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from train.base.stage import Setting
from train.examples.examples import held_apart
from ttc.errors import ConfigError

__all__ = ["check_file", "check_positive", "check_share", "one_of", "parted", "rollouts_path"]


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=_Keyed)


def check_file(stage: str, data: Path | None) -> None:
    """Raise ConfigError for a file that was named and is not there."""
    if data is not None and not data.is_file():
        raise ConfigError(f"{stage}: data {data} does not exist")


def check_positive(stage: str, **given: int) -> None:
    """Raise ConfigError for a number that must be at least 1 and is not."""
    for name, value in given.items():
        if value < 1:
            raise ConfigError(f"{stage}: {name} must be at least 1, got {value}")


def check_share(stage: str, share: float) -> None:
    """Raise ConfigError unless the held-out share lies strictly between 0 and 1."""
    if not 0 < share < 1:
        raise ConfigError(f"{stage}: held_out_share must be in (0, 1), got {share}")


def parted(stage: str, rows: Sequence[T], share: float, setting: Setting) -> tuple[list[T], list[T]]:
    """Rows to train on and rows held out, whole prompts at a time; raises ConfigError when a side is empty."""
    out = held_apart([row.key for row in rows], share)
    train = [row for row, held in zip(rows, out, strict=True) if not held]
    measured = [row for row, held in zip(rows, out, strict=True) if held]
    if not train or not measured:
        raise ConfigError(f"{stage}: {len(rows)} rows are too few to hold some out; raise held_out_share")
    setting.log(f"{len(train)} rows, {len(measured)} held out")
    return train, measured


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
