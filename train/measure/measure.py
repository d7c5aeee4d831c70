"""Before against after: how a model folder answers held-out problems, and by how much a stage moved a number.

Every stage measures itself by these two functions, so their results are alike in every report: the value before and
after, each with its 95 % interval, and the paired difference with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from pathlib import Path

from evals.numbers.statistics import mean_interval, paired_interval
from evals.task import Item, Task
from train.base.stage import Setting
from train.registries import make_verifier
from train.rollouts.held_out import HeldOut, accuracy
from ttc.config.registry import ENGINES
from ttc.core import Engine
from ttc.records import iterate

__all__ = ["gains", "held_out_gains", "open_engine", "task_gains"]


def open_engine(folder: Path, setting: Setting) -> Engine:
    """The embedded engine on a model folder: fp32, and on one machine the same bits whatever is batched."""
    factory = ENGINES.load("embedded")
    options = {"dtype": "float32", "device": setting.device, "threads": setting.threads, "batch_invariant": True}
    engine: Engine = factory(str(folder), **options)
    return engine


def task_gains(task: Task, limit: int, before: Path, after: Path, setting: Setting) -> dict[str, float]:
    """`gains` of accuracy on a task between two model folders: greedy (`held_out`) and sampled (`held_out_sampled`).

    Samples are drawn at the task's temperature, with equal seeds for both models. Greedy accuracy is nearly all or
    nothing in a small model; sampled accuracy shows what moved.
    """
    items = task.items(limit, 0)
    first, last = (asyncio.run(_answered(task, items, folder, setting)) for folder in (before, after))
    greedy = gains("held_out", first[0], last[0], setting.seed)
    return {**greedy, **gains("held_out_sampled", first[1], last[1], setting.seed)}


def held_out_gains(path: Path, seed: int) -> dict[str, float]:
    """`gains` between the first and the last measurement that a loop wrote to `path`, greedy and sampled."""
    rows = [row for _, row in iterate(path)]
    if len(rows) < 2:
        return {}
    numbers: dict[str, float] = {}
    for field, name in (("right", "held_out"), ("sampled", "held_out_sampled")):
        if field in rows[0] and field in rows[-1]:
            numbers |= gains(name, rows[0][field], rows[-1][field], seed)
    return numbers


async def _answered(
    task: Task, items: Sequence[Item], folder: Path, setting: Setting
) -> tuple[list[float], list[float]]:
    """1 or 0 per problem: whether the greedy answer is right, and whether a sampled one is."""
    engine, verifier = open_engine(folder, setting), make_verifier(task)
    held_out = HeldOut(items, verifier, task.sampling, setting.seed)
    try:
        greedy, _ = await accuracy(held_out, engine)
        samples, _ = await accuracy(held_out, engine, greedy=False)
    finally:
        await engine.close()
        await verifier.close()
    return [float(value) for value in greedy], [float(value) for value in samples]


def gains(
    name: str, before: Sequence[float], after: Sequence[float], seed: int, clusters: Sequence[Hashable] = ()
) -> dict[str, float]:
    """`NAME_before`, `NAME_after` and `NAME_gain`, each with `_low` and `_high`; the values are shares in [0, 1]."""
    groups = clusters or range(len(before))
    intervals = {
        f"{name}_before": mean_interval(before, groups, seed=seed),
        f"{name}_after": mean_interval(after, groups, seed=seed),
        f"{name}_gain": paired_interval(before, after, groups, seed=seed),
    }
    flat: dict[str, float] = {}
    for key, interval in intervals.items():
        flat |= {key: interval.value, f"{key}_low": interval.low, f"{key}_high": interval.high}
    return flat
