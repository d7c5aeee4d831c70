"""Before against after: how a model folder answers held-out problems, and by how much a stage moved a number.

Every stage measures itself by these two functions, so their results are alike in every report: the value before and
after, each with its 95 % interval, and the paired difference with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from pathlib import Path

from evals.statistics import mean_interval, paired_interval
from evals.task import Item, Task
from train.held_out import HeldOut, accuracy
from train.specs import make_verifier
from train.stage import Setting
from ttc.core import Engine
from ttc.registry import ENGINES
from ttc.thinking import Thinking

__all__ = ["answered", "gains", "open_engine"]


def open_engine(folder: Path, setting: Setting) -> Engine:
    """The embedded engine on a model folder: fp32, and the same bits whatever is batched together."""
    factory = ENGINES.load("embedded")
    options = {"dtype": "float32", "device": setting.device, "threads": setting.threads, "batch_invariant": True}
    found: Engine = factory(str(folder), **options)
    return found


def answered(
    task: Task, items: Sequence[Item], folder: Path, setting: Setting, thinking: Thinking | None = None
) -> list[float]:
    """1 or 0 per problem: whether the greedy answer of the model in `folder` is right."""
    return asyncio.run(_answered(task, items, folder, setting, thinking))


async def _answered(
    task: Task, items: Sequence[Item], folder: Path, setting: Setting, thinking: Thinking | None
) -> list[float]:
    engine, verifier = open_engine(folder, setting), make_verifier(task)
    try:
        right, _ = await accuracy(HeldOut(items, verifier, task.sampling, setting.seed, thinking), engine)
    finally:
        await engine.close()
        await verifier.close()
    return [float(value) for value in right]


def gains(
    name: str, before: Sequence[float], after: Sequence[float], seed: int, clusters: Sequence[Hashable] = ()
) -> dict[str, float]:
    """`NAME_before`, `NAME_after` and `NAME_gain`, each with `_low` and `_high`; the values are shares in [0, 1]."""
    groups = clusters or range(len(before))
    found = {
        f"{name}_before": mean_interval(before, groups, seed=seed),
        f"{name}_after": mean_interval(after, groups, seed=seed),
        f"{name}_gain": paired_interval(before, after, groups, seed=seed),
    }
    flat: dict[str, float] = {}
    for key, interval in found.items():
        flat |= {key: interval.value, f"{key}_low": interval.low, f"{key}_high": interval.high}
    return flat
