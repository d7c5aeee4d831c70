"""Run a recipe: check everything, then run stage by stage, resuming a killed run.

A run folder holds `run.json` (what was asked, and digests of what it is made of: `train.recipe.contents`), one folder
per stage (`1-pretrain`, `2-grpo`, ..) and `model`, a link to the last stage's model. With other settings, weights,
files or problems a run is refused, not overwritten; a run that failed before anything was made does not keep its
folder. While it runs, no other process may run there (`run.lock`). A finished stage is not run again, but its models
are checked to be unchanged; the checkpoints that it would have resumed from are deleted, unless they are asked for or a
health rule ended it. At the end every stage's model is measured on all held-out tasks, where the recipe asks for it
(`train.measure.retention`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train.base.stage import Setting, Stage, StageResult, check_models, read_result, write_result
from train.base.world import ALONE, World
from train.measure.retention import FILE as RETENTION
from train.measure.retention import measure_retention, write_kept
from train.recipe.contents import run_contents
from train.recipe.recipe import START, Recipe, RecipeStep
from ttc.concurrent import StopRequest
from ttc.config.recipes import differences, dump
from ttc.durable import check_link, is_scratch, replace_link, replace_text
from ttc.errors import ConfigError, TrainingError
from ttc.identity.digests import differing
from ttc.records import LineFile

RUN, LOCK = "run.json", "run.lock"
CONTENTS = "contents"
_CHECKPOINTS = ("checkpoints", "*/checkpoints", "trl")
"""Folders of a stage from which it resumes: of this package's loops, of the members of an ensemble, and of TRL's."""
_BY_CONTENT = (CONTENTS, "model")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where and how a recipe runs; `keep_checkpoints`: also those of finished stages."""

    out: Path
    seed: int
    model: Path | None
    device: str
    threads: int
    world: World = ALONE
    stop: StopRequest = field(default_factory=StopRequest)
    keep_checkpoints: bool = False


def run_recipe(recipe: Recipe, options: RunOptions, log: Callable[[str], None]) -> list[StageResult]:
    """Run all stages; returns their results.

    Raises:
        ConfigError: a stage cannot work, or the folder holds another run, or one that is running.
        TrainingError: a stage cannot go on.
    """
    has_model = options.model is not None
    for step in recipe.steps:
        step.stage.check(has_model)
        if options.world.size > 1 and getattr(step.stage, "overlaps", False):
            raise ConfigError(f"{step.kind}: asynchronous = true is for one learner; set it to false, or --processes 1")
        has_model = True
        if options.model is not None and hasattr(step.stage, "check_family"):
            step.stage.check_family(options.model)
    if not options.world.main:
        return _run_stages(recipe, options, log)
    with _claimed(recipe, options) as is_new:
        try:
            return _run_stages(recipe, options, log)
        except BaseException:
            if is_new:
                _release(options.out)
            raise


def _run_stages(recipe: Recipe, options: RunOptions, log: Callable[[str], None]) -> list[StageResult]:
    """Run the unfinished stages, in a claimed folder."""
    if options.world.main:
        _link_start(options)
    options.world.wait()
    results: list[StageResult] = []
    names = [f"{number}-{step.kind}" for number, step in enumerate(recipe.steps, start=1)]
    model = options.model
    for number, step in enumerate(recipe.steps, start=1):
        folder = options.out / names[number - 1]
        folder.mkdir(exist_ok=True)
        result = options.world.agree(read_result(folder))
        if result is None:
            log(f"stage {number} of {len(recipe.steps)}: {step.kind}")
            if step.start is not None:
                model = options.model if step.start == START else Path(results[names.index(step.start)].model)
            result = _run_stage(step.stage, _setting(options, folder, model, log))
        else:
            if options.world.main:
                check_models(folder)
            log(f"stage {number} of {len(recipe.steps)}: {step.kind} is done")
        results.append(result)
        model = Path(result.model)
        if result.stopped.startswith("health rule"):
            log(f"stopped: {result.stopped}")
            break
        if options.world.main and not options.keep_checkpoints:
            _drop_checkpoints(folder)
    else:
        if options.world.main:
            replace_link(options.out / "model", Path(results[-1].model))
    if recipe.retention is not None and options.world.main and not (options.out / RETENTION).is_file():
        models = [(name, Path(result.model)) for name, result in zip(names, results, strict=False)]
        held_out = [str(step.fields["held_out"]) for step in recipe.steps if "held_out" in step.fields]
        setting = _setting(options, options.out, options.model, log)
        write_kept(options.out, measure_retention(recipe.retention, _distinct(models, options), held_out, setting))
    return results


def _link_start(options: RunOptions) -> None:
    """Link the model that the run starts from, so that stages can name it like each other's."""
    place = options.out / START
    is_copy = place.is_dir() and not place.is_symlink()
    if is_copy and options.model is not None and options.model.resolve() != place.resolve():
        raise ConfigError(f"{place} is not the model of --model; delete it, or give another --out")
    if options.model is not None and (place.is_symlink() or not place.exists()):
        replace_link(place, options.model)


def _run_stage(stage: Stage, setting: Setting) -> StageResult:
    """Run a stage: by all processes if it splits its work, else by the first while the others wait."""
    world, is_split = setting.world, getattr(stage, "distributed", False)
    if world.size > 1 and not is_split:
        setting.log(f"{setting.folder.name} is not split: the first of {world.size} processes works, the others wait")
    if world.main or is_split:
        result = stage.run(setting if is_split else replace(setting, world=ALONE))
        if world.main:
            write_result(setting.folder, result)
    world.wait()
    outcome = read_result(setting.folder)
    if outcome is None:
        raise TrainingError(f"{setting.folder.name} has no result; the first process did not finish it")
    return outcome


def _drop_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a finished stage, which take several times the room of its model."""
    for place in [place for pattern in _CHECKPOINTS for place in folder.glob(pattern)]:
        shutil.rmtree(place)


def _setting(options: RunOptions, folder: Path, model: Path | None, log: Callable[[str], None]) -> Setting:
    return Setting(folder, model, options.seed, options.device, options.threads, log, options.world, options.stop)


def _distinct(models: Sequence[tuple[str, Path]], options: RunOptions) -> list[tuple[str, Path]]:
    """The start, if there is one, and every stage that made a model of its own."""
    distinct = [] if options.model is None else [("start", options.model)]
    for name, model in models:
        if all(model.resolve() != other.resolve() for _, other in distinct):
            distinct.append((name, model))
    return distinct


def stage_folders(out: Path) -> list[Path]:
    """The stage folders of a run, in order; raises ConfigError when `out` is no run."""
    if not (out / RUN).is_file():
        raise ConfigError(f"{out} is not a training run: it has no {RUN}")
    folders = [path for path in out.iterdir() if path.is_dir() and path.name.partition("-")[0].isdigit()]
    return sorted(folders, key=lambda path: int(path.name.partition("-")[0]))


def read_asked(out: Path) -> dict[str, Any]:
    """The request of the run in `out`; raises ConfigError if `out` is no run, or its run.json cannot be read."""
    path = out / RUN
    if not path.is_file():
        raise ConfigError(f"{out} is not a training run: it has no {RUN}")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ConfigError(f"{path} cannot be read ({exc}); choose another folder") from exc
    if not isinstance(settings, dict) or not isinstance(settings.get("stages"), list):
        raise ConfigError(f"{path}: stages: expected a list; choose another folder")
    return settings


def claim(recipe: Recipe, options: RunOptions) -> bool:
    """Write the request into the folder, or compare it with what is there; returns whether it was new."""
    with _claimed(recipe, options) as is_new:
        return is_new


@contextmanager
def _claimed(recipe: Recipe, options: RunOptions) -> Iterator[bool]:
    """Lock the folder against other processes and write request and contents there; yields whether it is new.

    Raises:
        ConfigError: the folder holds another run, naming the setting or the content that differs, or something else.
    """
    settings = _asked(recipe, options)
    _check_place(recipe, options, settings)
    options.out.mkdir(parents=True, exist_ok=True)
    check_link(options.out / "model")
    with LineFile(options.out / LOCK):
        is_new = _check_place(recipe, options, settings)  # by now another process may have put another run there
        if is_new:
            replace_text(options.out / RUN, json.dumps(settings, indent=1) + "\n")
        yield is_new


def _check_place(recipe: Recipe, options: RunOptions, settings: dict[str, Any]) -> bool:
    """Compare a folder with the request; returns whether it holds no run yet."""
    if (options.out / RUN).is_file():
        _compare(options.out, _reworded(read_asked(options.out), recipe), settings)
        return False
    _check_fresh(options.out)
    return True


def check_start(out: Path) -> None:
    """Refuse a folder, before a start model is put there, that holds something else or a run without a start model."""
    if not (out / RUN).is_file():
        _check_fresh(out)
    elif read_asked(out).get("model") is None:
        raise ConfigError(f"{out} holds a run that started from no model; give another --out, or leave --model out")


def _check_fresh(out: Path) -> None:
    if out.exists() and (not out.is_dir() or not _is_fresh(out)):
        raise ConfigError(f"{out} is a file, or not empty, and holds no run; give another --out")


def _release(out: Path) -> None:
    """Release a folder in which nothing was made, so that a corrected run can use it."""
    folders = [path for path in out.iterdir() if path.is_dir() and path.name.partition("-")[0].isdigit()]
    if any(path.is_file() and not is_scratch(path) for folder in folders for path in folder.rglob("*")):
        return
    for folder in folders:
        shutil.rmtree(folder)
    (out / RUN).unlink()


def _is_fresh(out: Path) -> bool:
    """Whether a folder holds nothing but remains of a killed run and the model to start from."""
    return all(is_scratch(path) or path.name in (START, LOCK) for path in out.iterdir())


def _asked(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """The content of run.json, as plain JSON data."""
    settings: dict[str, object] = {
        "recipe": recipe.name,
        "seed": options.seed,
        "model": options.model.name if options.model else None,
        "stages": [
            {"kind": step.kind, "digest": step.digest, "fields": step.fields, **_start(step)} for step in recipe.steps
        ],
    }
    if recipe.gates is not None:
        settings["gates"] = dict(recipe.gates)
    if recipe.retention is not None:
        settings["retention"] = dump(recipe.retention)
    settings[CONTENTS] = run_contents(recipe, options.model, options.out)
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _start(step: RecipeStep) -> dict[str, str]:
    """Whose model a stage starts from, if its recipe says so."""
    return {} if step.start is None else {"start": step.start}


def _reworded(there: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """A run's request, with stages written as in `recipe` if they mean the same: `--set` gives texts."""
    if len(there["stages"]) != len(recipe.steps):
        return there
    entries = [_worded_as(step, entry) for step, entry in zip(recipe.steps, there["stages"], strict=True)]
    return {**there, "stages": entries}


def _worded_as(step: RecipeStep, entry: dict[str, Any]) -> dict[str, Any]:
    if entry["kind"] != step.kind or not entry["fields"].keys() <= step.fields.keys():
        return entry
    before = replace(step, fields=entry["fields"])
    if before.digest != entry["digest"]:  # of another start
        return entry
    values, fields = step.values, json.loads(json.dumps(step.fields, default=str))
    same = {name: fields[name] for name, value in before.values.items() if value == values[name]}
    after = replace(step, fields={**entry["fields"], **same})
    digest = step.digest if same.keys() == fields.keys() else after.digest
    return {**entry, "fields": after.fields, "digest": digest, **_start(step)}  # older runs keep no start


def _compare(out: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse a folder whose run had another request or other contents; the model folder's name does not matter.

    Settings are compared first: another file has other content, and its name says more.
    """
    if CONTENTS not in there:
        raise ConfigError(
            f"{out} holds a run of an older version, whose {RUN} keeps no digests of models, files and problems, so "
            "nobody can tell whether they are still the same; give another --out"
        )
    first, second = ({name: value for name, value in run.items() if name not in _BY_CONTENT} for run in (there, here))
    # a digest differs with a field, whose name says more
    for name, before, now in sorted(differences(first, second), key=lambda change: change[0].endswith(".digest")):
        raise ConfigError(
            f"{out} holds a run with other settings: {name} is {before} there and {now} here; "
            "give another --out or delete it"
        )
    changed = differing(there[CONTENTS], here[CONTENTS])
    if changed:
        raise ConfigError(
            f"{out} holds a run that was made with other contents: {', '.join(changed)}; put back what it was made "
            "with, or give another --out"
        )


ROLLOUTS = "rollouts.jsonl"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A stage's folder, its place in the run (from 1), kind and fields, the run's seed, and whose model it took."""

    folder: Path
    place: int
    kind: str
    fields: Mapping[str, Any]
    seed: int
    start: str | None


def recorded_stage(run: Path, number: int | None, *, beside: tuple[str, ...] = ()) -> Recorded:
    """Return stage `number` of a run, or the last that has rollouts, and the files `beside` them.

    Raises:
        ConfigError: no such run, or no such stage in it.
    """
    needed = (ROLLOUTS, *beside)
    folders = [path for path in stage_folders(run) if all((path / name).is_file() for name in needed)]
    matches = [path for path in folders if number is None or path.name.startswith(f"{number}-")]
    if not matches:
        raise ConfigError(f"{run} has no stage with recorded rollouts" + (f" numbered {number}" if number else ""))
    folder = matches[-1]
    place = int(folder.name.partition("-")[0])
    settings = read_asked(run)
    entry = settings["stages"][place - 1]
    kind, fields, start = str(entry["kind"]), dict(entry["fields"]), entry.get("start")
    return Recorded(folder, place, kind, fields, int(settings["seed"]), start)
