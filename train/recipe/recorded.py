"""Which stage of a run recorded its rollouts, and what that stage was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.recipe.run import read_asked, stage_folders
from ttc.errors import ConfigError

__all__ = ["ROLLOUTS", "Recorded", "recorded_stage"]

ROLLOUTS = "rollouts.jsonl"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A stage's folder, its place in the run (from 1), its kind, its fields and the seed of the run."""

    folder: Path
    place: int
    kind: str
    fields: Mapping[str, Any]
    seed: int


def recorded_stage(run: Path, number: int | None, *, beside: tuple[str, ...] = ()) -> Recorded:
    """Return stage `number` of a run, or the last that has rollouts, and the files `beside` them.

    Raises:
        ConfigError: no such run, or no such stage in it.
    """
    needed = (ROLLOUTS, *beside)
    folders = [path for path in stage_folders(run) if all((path / name).is_file() for name in needed)]
    chosen = [path for path in folders if number is None or path.name.startswith(f"{number}-")]
    if not chosen:
        raise ConfigError(f"{run} has no stage with recorded rollouts" + (f" numbered {number}" if number else ""))
    folder = chosen[-1]
    place = int(folder.name.partition("-")[0])
    asked = read_asked(run)
    made = asked["stages"][place - 1]
    return Recorded(folder, place, str(made["kind"]), dict(made["fields"]), int(asked["seed"]))
