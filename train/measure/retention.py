"""What each stage did to the gains of the others: every stage's model on every stage's held-out task.

A recipe's table `[retention]` asks for it; after the last stage `retention.json` is written, and reports show it. For
each model and task: accuracy, greedy and sampled, the change of the sampled one against the model before, paired by
problem, and the win rate over that model: how often its sampled answer scores higher, draw against draw, ties and
answers without a verdict counting one half. Scores are the verifier's, partial credit included. Stages that pass the
policy through have no row.

Cost: a greedy and `samples` sampled answers per problem, task and model. Left out: tasks of stages that did not begin.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals.numbers.statistics import Interval, mean_interval, paired_interval
from evals.task import Item, Task
from train.base.rollout import Collector
from train.base.stage import Setting
from train.measure.measure import HeldOut, accuracy, open_engine
from train.registries import make_task, make_verifier
from train.rollouts.rewards import Rewarder, close_verifier, served
from ttc.config.values import at_least, build
from ttc.core import Engine, Sampling
from ttc.durable import replace_text
from ttc.errors import ConfigError, RecordError

FILE = "retention.json"


@dataclass(frozen=True, slots=True)
class Retention:
    """What is measured after the run: the fields of a recipe's table [retention].

    Args:
        tasks: tasks beside those of the stages' `held_out`, each NAME or NAME:KEY=VALUE,...
        limit: most problems of each.
        samples: sampled answers per problem.
    """

    tasks: tuple[str, ...] = ()
    limit: int = 128
    samples: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers below 1, and tasks that are not there."""
        at_least("retention", 1, limit=self.limit, samples=self.samples)
        for spec in self.tasks:
            make_task(spec)


@dataclass(frozen=True, slots=True)
class Kept:
    """One model on one task; `change` and `wins` are against the model before, None for the first."""

    stage: str
    task: str
    greedy: Interval
    sampled: Interval
    change: Interval | None = None
    wins: Interval | None = None


@dataclass(frozen=True, slots=True)
class TaskAnswers:
    """Whether greedy answers are right, one per problem, and sampled ones, equally many per problem, with scores.

    `groups` names what each problem is weighed together with.
    """

    greedy: Sequence[float]
    sampled: Sequence[float]
    scores: Sequence[float]
    groups: Sequence[str]


def read_retention(table: object, where: str) -> Retention:
    """Bind the table of a recipe; raises ConfigError naming the field."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: retention must be a table [retention]")
    return build(Retention, table, where="retention.")


def measure_retention(
    asked: Retention, models: Sequence[tuple[str, Path]], held_out: Sequence[str], setting: Setting
) -> list[Kept]:
    """Measure `models`, named by their stages and in their order, on the tasks of `held_out` and of `asked`."""
    specs = list(dict.fromkeys([*held_out, *asked.tasks]))
    tasks = {spec: make_task(spec) for spec in specs}
    rows: list[Kept] = []
    before: Mapping[str, TaskAnswers] = {}
    for stage, folder in models:
        setting.log(f"retention: {stage} on {len(specs)} tasks")
        answers = asyncio.run(answer_tasks(tasks, asked, folder, setting))
        rows += [_kept(stage, spec, answers[spec], before.get(spec), setting.seed) for spec in specs]
        before = answers
    return rows


def write_kept(run: Path, rows: Sequence[Kept]) -> None:
    """Write `retention.json` of a run, whole or not at all."""
    replace_text(run / FILE, json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def read_kept(run: Path) -> list[Kept]:
    """What was written; nothing when the run has no such file. Raises RecordError for a broken one."""
    path = run / FILE
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text())
        return [Kept(**{name: _read(name, value) for name, value in row.items()}) for row in rows]
    except (ValueError, TypeError, AttributeError) as exc:
        raise RecordError(f"{path}: not a table of what was retained ({exc}); delete it and run again") from exc


def _read(name: str, value: Any) -> Any:
    return value if name in ("stage", "task") or value is None else Interval(**value)


def _kept(stage: str, spec: str, now: TaskAnswers, before: TaskAnswers | None, seed: int) -> Kept:
    clusters = [group for group in now.groups for _ in range(len(now.sampled) // len(now.groups))]
    greedy = mean_interval(now.greedy, now.groups, seed=seed)
    sampled_accuracy = mean_interval(now.sampled, clusters, seed=seed)
    if before is None:
        return Kept(stage, spec, greedy, sampled_accuracy)
    won = [0.5 + 0.5 * ((a > b) - (a < b)) for a, b in zip(now.scores, before.scores, strict=True)]
    change = paired_interval(before.sampled, now.sampled, clusters, seed=seed)
    return Kept(stage, spec, greedy, sampled_accuracy, change, mean_interval(won, clusters, seed=seed))


async def answer_tasks(
    tasks: Mapping[str, Task], asked: Retention, folder: Path, setting: Setting
) -> dict[str, TaskAnswers]:
    """What the model in `folder` answers to every task, by the task's name here."""
    engine = open_engine(folder, setting)
    try:
        return {
            spec: await _answers(engine, task, task.items(asked.limit, 0), asked.samples, setting)
            for spec, task in tasks.items()
        }
    finally:
        await engine.close()


async def _answers(engine: Engine, task: Task, items: Sequence[Item], samples: int, setting: Setting) -> TaskAnswers:
    verifier = served(make_verifier(task))
    sampling = Sampling(temperature=1.0, max_tokens=task.sampling.max_tokens)
    collector = Collector.plain(engine, samples, sampling.max_tokens, setting.seed)
    try:
        greedy, _ = await accuracy(HeldOut(items, verifier, sampling, setting.seed), engine)
        rollouts = await Rewarder(verifier, partial=True).judge(await collector.collect(items, 0), 0)
    finally:
        await close_verifier(verifier, setting.log)
    is_right = [float(rollout.right) for rollout in rollouts]
    # NaN without a verdict: neither above nor below anything
    scores = [math.nan if rollout.reward is None else rollout.reward for rollout in rollouts]
    return TaskAnswers([float(right) for right in greedy], is_right, scores, [item.group for item in items])
