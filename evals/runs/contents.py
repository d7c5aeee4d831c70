"""What an evaluation was made of, by content, as run.json holds it: models, user files, plans and problems.

    {"weights of model nano": "9f2c...", "strategy file mine.py": "77ab...", "problems of task arithmetic": "d01e..."}

Names are for people: a folder that holds another run is refused by them, before the engine is loaded. Of a model behind
a server there are the digests of what is read of it here, its tokenizer as a rule; what the server says of it stands in
run.json as `served`. Problems are digested as they are asked, with their targets, so a line that --limit leaves out
does not count. Cost: each weight file once, about a second per gigabyte, then remembered; the task's problems once.

Left out: what a reward server says of itself; the versions of torch and of engines in this process.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from evals.task import Item
from ttc.config.recipes import dump
from ttc.identity.digests import digest_of, file_digest, named, part_contents, source_digests, strategy_contents

if TYPE_CHECKING:
    from evals.runs.experiment import Arm, Experiment

__all__ = ["arm_contents", "problems_digest", "shared_contents"]


def shared_contents(experiment: Experiment) -> dict[str, str]:
    """Return what all arms share: engine, verifier, the task's own file and its problems; loads no model.

    Raises:
        ConfigError: a folder or file cannot be read, or a model is not here and cannot be fetched.
    """
    file = experiment.task_file
    return {
        **part_contents(experiment.engine),
        **part_contents(experiment.verifier),
        **({} if file is None else named(_file_digests(file), before="task file ")),
        f"problems of task {experiment.task.name}": problems_digest(experiment.items),
    }


def arm_contents(experiment: Experiment, arm: Arm) -> dict[str, str]:
    """Return what an arm adds: its strategy's files, and its scorer's. Raises like `shared_contents`."""
    scorer = experiment.scorer if arm.choice.takes_scorer else None
    return {**strategy_contents(arm.choice), **({} if scorer is None else part_contents(scorer))}


def problems_digest(items: Iterable[Item]) -> str:
    """Return the digest of problems in their order: what is asked, and what a verifier holds."""
    return digest_of(_row(item) for item in items)


def _file_digests(file: Path) -> dict[str, str]:
    return source_digests(file) if file.suffix == ".py" else {file.name: file_digest(file)}


def _row(item: Item) -> list[object]:
    problem = item.problem
    messages = [[message.role, message.content] for message in problem.messages]
    return [problem.id, problem.kind, messages, dump(problem.meta), dump(item.target), item.cluster, item.difficulty]
