"""A stage: one step of a recipe, from a model folder to a model folder.

    factory(**fields of the recipe) -> Stage;  stage.check();  stage.run(Setting) -> Result

A stage is a function in `train/stages/` (or an entry point of `ttc.stages`, so that other packages add kinds): its
keywords are the fields that a recipe may set. `check` refuses what cannot work before anything is loaded. `run` writes
only below its own folder, resumes from what it finds there, and measures its own held-out metric before and after.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evals.data.sources import DATA, NamedRows
from evals.task import Task
from train.base.world import ALONE, World
from ttc.concurrent import StopRequest
from ttc.config.values import counted, why_no_file
from ttc.durable import flaws, replace_link, replace_text, sums_of
from ttc.errors import ConfigError, RecordError

DONE = "done.json"
ALL_KEPT = "all updates are kept"
"""What a signal leaves of a stage whose last update is done."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a stage runs: its folder, the model folder it starts from (None: from nothing), the seed, the device.

    A stage that says `distributed = True` is run by every process of `world`, others by the first alone. A stage that
    can resume from the middle checks `stop` there.
    """

    folder: Path
    model: Path | None
    seed: int
    device: str
    threads: int
    log: Callable[[str], None]
    world: World = ALONE
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def own(self) -> Path:
        """Folder for what every process writes: the stage's for the first process, one below it for each other."""
        if self.world.main:
            return self.folder
        place = self.folder / f".process-{self.world.rank}"
        place.mkdir(parents=True, exist_ok=True)
        return place


@dataclass(frozen=True, slots=True)
class StageResult:
    """A stage's result: the model folder, numbers for the report, and why it ended early, if it did."""

    model: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    stopped: str = ""


class Stage(Protocol):
    """One step of a recipe, its fields already bound."""

    def check(self, has_model: bool) -> None:
        """Raise ConfigError for what cannot work; `has_model`: whether a model comes in."""
        ...

    def run(self, setting: Setting) -> StageResult:
        """Do the work, resuming what the folder holds."""
        ...


@runtime_checkable
class Asking(Protocol):
    """A stage that asks problems: they decide the run, so run.json records them by content."""

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """The tasks by the field that names them, each with the most problems that are used (None: all)."""
        ...


@runtime_checkable
class Naming(Protocol):
    """A stage that reads models beside the one it starts from: their weights decide the run, too."""

    def models(self) -> Mapping[str, tuple[str, ...]]:
        """Their names by field: each a stage of the run or a folder."""
        ...


def kept(step: int, setting: Setting) -> str:
    """What is kept of a stage interrupted after `step` updates, in words."""
    return f"{counted(step, 'update')} of {setting.folder.name} {'is' if step == 1 else 'are'} kept"


_UNITS = ((3600, "h"), (60, "min"), (1, "s"))


def time_left(seconds: float) -> str:
    """How long the rest takes, as the end of a line; empty if nothing is left."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f", about {max(seconds / size, 1):.0f} {unit} left" if seconds > 0 else ""


def check_model(kind: str, has_model: bool) -> None:
    """Raise ConfigError if a stage of this kind has nothing to start from."""
    if not has_model:
        raise ConfigError(f"{kind} needs a model: put a pretrain stage before it, or give --model FOLDER")


def model_of(kind: str, setting: Setting) -> Path:
    """The model folder that a stage of this kind starts from; raises ConfigError without one."""
    check_model(kind, setting.model is not None)
    return setting.model or Path()


def check_file(stage: str, data: Path | None) -> None:
    """Raise ConfigError for a named file that is missing; for a data set, its local copy is checked."""
    named = None if data is None else NamedRows.of(str(data))
    path = data if named is None else named.path
    if path is not None and not path.is_file():
        raise ConfigError(f"{stage}: data {path} {why_no_file(path)}; name a file of JSON lines")
    if named is not None and (path is not None or os.environ.get(DATA)):
        next(named.rows(), None)


def one_of(stage: str, **given: object) -> None:
    """Raise ConfigError unless exactly one of the fields is given."""
    present = [name for name, value in given.items() if value is not None]
    if len(present) != 1:
        raise ConfigError(f"{stage}: give exactly one of {', '.join(given)}; got {', '.join(present) or 'none'}")


def read_with(stage: str, owner: str, is_named: object, **are_set: bool) -> None:
    """Raise ConfigError for the first field that only qualifies `owner` but is set without it."""
    for name, is_set in are_set.items():
        if is_set and not is_named:
            raise ConfigError(f"{stage}: {name} is read with {owner} alone: name one, or leave {name} out")


def check_form(field: str, text: str, needed: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Raise ConfigError unless a prompt form contains {NAME} of all `needed`, and no other braces.

    `beside` are further names that it may contain.
    """
    for name in needed:
        if f"{{{name}}}" not in text:
            raise ConfigError(f"{field} must hold {{{name}}}")
    try:
        text.format(**dict.fromkeys((*needed, *beside), ""))
    except (KeyError, IndexError, ValueError, AttributeError) as exc:
        raise ConfigError(f"{field}: its braces are no field ({exc}); write {{{{ and }}}} for braces") from exc


def rollouts_path(name: str, setting: Setting) -> Path:
    """The file of rollouts that `name` means; raises ConfigError if it is missing."""
    beside = setting.folder.parent / name / "rollouts.jsonl"
    path = beside if beside.is_file() else Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"rollouts {name!r}: neither {beside} nor a file of that name exists")
    return path


def pass_through(setting: Setting) -> str:
    """Link `model` to the incoming policy, for a stage that does not change it."""
    link = setting.folder / "model"
    replace_link(link, setting.model or Path())
    return str(link)


def last_attempt(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of a stage by step, as written by the attempt that counts.

    An interrupted stage resumes from a checkpoint: lines written after that are dropped, even if it ends earlier.
    """
    kept_rows: list[dict[str, Any]] = []
    for row in rows:
        while kept_rows and kept_rows[-1]["step"] >= row["step"]:
            kept_rows.pop()
        kept_rows.append(row)
    return kept_rows


def write_result(folder: Path, result: StageResult) -> None:
    """Mark a stage as done, with a SHA-256 of every file of its models; paths are relative to `folder`."""
    folders = {path.parent for path in folder.glob("*/config.json") if not path.parent.is_symlink()}
    folders |= {place for place in (Path(result.model).resolve(),) if place.is_relative_to(folder.resolve())}
    places = sorted({os.path.relpath(place.resolve(), folder.resolve()) for place in folders})
    files = {f"{place}/{name}": digest for place in places for name, digest in sums_of(folder / place).items()}
    data = {**asdict(result), "model": os.path.relpath(result.model, folder), "files": files}
    replace_text(folder / DONE, json.dumps(data, indent=1) + "\n")


def check_models(folder: Path) -> None:
    """Raise RecordError if a model of a finished stage has changed, naming the files; reads them all.

    Files added later do not count.
    """
    path = folder / DONE
    changed = flaws(folder, json.loads(path.read_text()).get("files", {}))
    if changed:
        raise RecordError(
            f"{folder}: {'; '.join(changed)}. Put back what the stage wrote, or delete {folder} to make it again"
        )


def read_result(folder: Path) -> StageResult | None:
    """The result of a finished stage; None when it is not finished. Raises RecordError for a broken file."""
    path = folder / DONE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text())
        return StageResult(str((folder / data["model"]).resolve()), data["metrics"], data["stopped"])
    except (ValueError, KeyError, TypeError) as exc:
        raise RecordError(f"{path}: not the result of a stage ({exc}); delete its folder to run it again") from exc
