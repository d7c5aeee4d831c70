"""What decides a training run, by content, as recorded in run.json: models, user files, code and problems.

    {"weights of --model": "9f2c...", "data of 2-sft: rows.jsonl": "77ab...", "problems of task of 3-grpo": "d01e..."}

The names are for people: an error before any work uses them. Included are the model that the run starts from; every
file and model folder that a text among a stage's fields names, alone or as a part (`mine.py:loss`, `data:rows.jsonl`,
`a=models/a`), code with the modules beside it; and of every task that a stage asks (`Asking`) the problems that it
takes of it and what its verifier reads. What the run makes itself (a stage named by another) follows from the rest.
Cost: each model's files once, about a second per gigabyte, then remembered; every task's problems once.

Left out: files that a user's own code opens or names, and versions of installed packages.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from evals.data.sources import NamedRows
from evals.task import Task, problems_digest
from train.base.stage import Asking, Naming
from train.recipe.recipe import Recipe, RecipeStep
from train.registries import make_task
from ttc.config.choices import PartChoice
from ttc.config.registry import VERIFIERS
from ttc.identity.digests import (
    code_digests,
    file_digest,
    model_digests,
    named,
    part_contents,
    source_digests,
    texts_in,
)

_BETWEEN = re.compile(r"[:=,]")
"""What stands between the parts of a text: NAME:KEY=VALUE,..., KIND:WHERE, DOMAIN=FOLDER."""


def run_contents(recipe: Recipe, model: Path | None, out: Path) -> dict[str, str]:
    """Return the digests of all that decides a run of `recipe` from `model` in the folder `out`; loads no model.

    Raises:
        ConfigError: a file or folder cannot be read, or a task has no problems.
    """
    contents = {} if model is None else named(model_digests(model), after=" of --model")
    stages: set[str] = set()
    for number, step in enumerate(recipe.steps, start=1):
        place = f"{number}-{step.kind}"
        contents |= _stage_contents(step, place, stages, out)
        stages.add(place)
    if recipe.retention is not None:
        for spec in recipe.retention.tasks:
            owner = f"retention task {spec}"
            contents |= path_contents(owner, spec, out)
            contents |= task_contents(owner, make_task(spec), recipe.retention.limit)
    return contents


def path_contents(owner: str, text: str, out: Path) -> dict[str, str]:
    """Return the digests of the files and model folders that `text` names, as `owner: PATH` or `ROLE of owner: PATH`.

    A bare word counts only if it is the whole text and names a file. Files in `out` were made by the run itself.
    """
    contents: dict[str, str] = {}
    for part in dict.fromkeys([text, *_BETWEEN.split(text)]):
        path = _place(part, out)
        if path is None:
            continue
        if path.suffix == ".py" and path.is_file():
            contents |= {f"{owner}: {path.parent / name}": digest for name, digest in source_digests(path).items()}
        elif path.is_file() and (part == text or _is_path(part)):
            contents[f"{owner}: {part}"] = file_digest(path)
        elif _is_path(part):
            contents |= _model_contents(owner, path)
    return contents


def task_contents(owner: str, task: Task, limit: int | None) -> dict[str, str]:
    """Return the digests of the first `limit` problems of a task, and of what its verifier reads."""
    verifier = part_contents(PartChoice.of(VERIFIERS, task.check.verifier, task.check.params))
    return {f"problems of {owner}": problems_digest(task.sequence(limit, 0)), **named(verifier, after=f" of {owner}")}


def _stage_contents(step: RecipeStep, place: str, made: set[str], out: Path) -> dict[str, str]:
    """The contents of stage `place`; names in `made` are stages of the run, not files."""
    contents = code_digests("stage", step.kind)
    asked = step.stage.tasks() if isinstance(step.stage, Asking) else {}
    for field, value in step.fields.items():
        for text in texts_in(value) if field in asked else map(_located, texts_in(value)):
            if text not in made and text.partition(":")[2] not in made:
                contents |= path_contents(f"{field} of {place}", text, out)
    if isinstance(step.stage, Naming):
        for field, names in step.stage.models().items():
            for folder in (_place(name, out) for name in names if name not in made):
                contents |= {} if folder is None else _model_contents(f"{field} of {place}", folder)
    for field, (task, limit) in asked.items():
        contents |= task_contents(f"{field} of {place}", task, limit)
    return contents


def _located(text: str) -> str:
    """`text`, or the local copy if it names rows to learn from a data set that has one."""
    named = NamedRows.of(text)
    file = None if named is None else named.file()
    return text if file is None else str(file)


def _place(text: str, out: Path) -> Path | None:
    """The file or folder outside of `out` that `text`, which may be any text, names; None without one."""
    path = os.path.expanduser(text)
    if not text or not os.path.exists(path) or Path(path).resolve().is_relative_to(out.resolve()):
        return None
    return Path(path)


def _is_path(part: str) -> bool:
    """Whether a part of a text can be meant as a path, and not a word that is also a file's name."""
    return "/" in part or "." in part


def _model_contents(owner: str, folder: Path) -> dict[str, str]:
    """The digests of a model folder, or of those in it: what a run made, or the members of an ensemble."""
    inside = sorted(path.parent for path in folder.glob("*/config.json"))
    folders = [folder] if (folder / "config.json").is_file() else inside
    return {
        name: digest
        for place in folders
        for name, digest in named(model_digests(place), after=f" of {owner}: {place}").items()
    }
