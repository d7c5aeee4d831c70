"""A mixture of tasks in one TOML file: each row has the verifier, or the learnt reward, of its task.

    [parts.gsm8k]                          a name for curves and targets
    task = "gsm8k:split=train"             any task, NAME or NAME:KEY=VALUE,..., or another file
    share = 0.5                            of all rows; every part says one, or none does and all rows are taken
    [parts.requests]
    task = "prompts"
    share = 0.5
    reward = "learnt"                      what is rewarded: verifier, learnt (a reward model alone), or both
    leave_out = ["choice"]                 answer kinds that are not taken: multiple choice can be guessed
    limit = 5000                           most rows of the part

Balanced shares take no row twice: the part that runs out first decides how many there are. Rows of a part are taken in
an order fixed by their ids. The part's name stands before the ids and is the item's difficulty, so that samplers and
curves (`family/NAME`, `held_out/NAME`) go by part. Left out: shares that change over a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evals.task import TASKS, Item, Task, VerifierSpec, load_task, sample
from ttc.config.recipes import load_toml, parse_spec
from ttc.config.signatures import call
from ttc.config.values import above, at_least, build
from ttc.core import Json, Sampling
from ttc.errors import ConfigError

RewardedBy: TypeAlias = Literal["both", "verifier", "learnt"]


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One task of a mixture; see the module."""

    task: str
    share: float | None = None
    reward: RewardedBy = "both"
    leave_out: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse shares and limits that take nothing."""
        above("mixture", 0, share=self.share)
        at_least("mixture", 1, limit=self.limit)


def mixture(path: str, *, data: str | None = None) -> Task:
    """Several tasks as one.

    Args:
        path: the TOML file.
        data: folder with local copies of the parts' data sets; absent: the hub.
    """
    tables = load_toml(Path(path).expanduser())
    if set(tables) != {"parts"} or not isinstance(tables["parts"], Mapping) or not tables["parts"]:
        raise ConfigError(f"{path}: a mixture takes tables [parts.NAME], nothing else")
    parts = {name: build(MixturePart, table, where=f"{path}: parts.{name}.") for name, table in tables["parts"].items()}
    if len({part.share is None for part in parts.values()}) > 1:
        raise ConfigError(f"{path}: give every part a share, or none")
    tasks = {name: _named_task(part.task, data) for name, part in parts.items()}

    def load(limit: int | None, seed: int) -> list[Item]:
        return balanced(
            {name: _part_items(name, parts[name], task, seed) for name, task in tasks.items()}, parts, limit
        )

    return Task(
        name=Path(path).name,
        kind=next(iter(tasks.values())).kind,
        load=load,
        sampling=Sampling(max_tokens=max(task.sampling.max_tokens for task in tasks.values())),
        params={"path": path},
        verifier=VerifierSpec("mixture", {"parts": {name: _check_of(task) for name, task in tasks.items()}}),
        procedural=any(task.procedural for task in tasks.values()),
    )


def _named_task(spec: str, data: str | None) -> Task:

    name, options = parse_spec(spec)
    supply = {"data": data} if data is not None and "data" not in options else {}
    task: Task = TASKS.checked(name, call(load_task(name), options, supply=supply))
    return task


def _check_of(task: Task) -> dict[str, Json]:
    return {"verifier": task.check.verifier, "params": dict(task.check.params)}


def _part_items(name: str, part: MixturePart, task: Task, seed: int) -> list[Item]:
    items = [item for item in task.items(part.limit, seed) if item.problem.kind not in part.leave_out]
    if not items:
        raise ConfigError(f"mixture: parts.{name}.leave_out leaves nothing of {part.task}")
    return [_renamed(name, part, item) for item in items]


def _renamed(name: str, part: MixturePart, item: Item) -> Item:
    target: dict[str, Any] = {"part": name, "target": item.target}
    if part.reward != "both":
        target["reward"] = part.reward
    cluster = f"{name}/{item.cluster}" if item.cluster else ""
    return Item(replace(item.problem, id=f"{name}/{item.problem.id}"), target, cluster, name)


def balanced(rows: Mapping[str, Sequence[Item]], parts: Mapping[str, MixturePart], limit: int | None) -> list[Item]:
    """As many rows in the shares of their parts as there are without taking one twice, at most `limit`."""
    shares = {name: part.share for name, part in parts.items() if part.share is not None}
    if not shares:
        return sample([item for items in rows.values() for item in items], limit)
    total = sum(shares.values())
    most = min(len(rows[name]) * total / share for name, share in shares.items())
    most = most if limit is None else min(most, limit)
    return [item for name in rows for item in sample(rows[name], max(int(most * shares[name] / total + 1e-9), 1))]
