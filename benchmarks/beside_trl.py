"""Common parts of the comparisons with TRL: timing of whole steps, one evaluation of answers, and the facts of a run.

The cost of a step is the cost of a training run of `steps` steps minus that of a run of one step, divided by the
difference in steps. Loading models and engines, first compilations and the final files are in both and cancel out;
everything a trainer does at every step (metrics, health rules, records, the log) is included, on both sides. Times are
CPU seconds of the process, and wall seconds. Curves come from a third run, whose models are evaluated during training
by one function of this toolkit; that run is not timed.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from benchmarks.machine import commit
from evals.task import Task
from train.base.stage import Setting, Stage
from train.measure.measure import HeldOut, accuracy
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_verifier
from ttc.core import Sampling
from ttc.engines.embedded.engine import embedded

Measure = Callable[[Any], Mapping[str, float]]
"""Greedy and sampled held-out accuracy of a model."""


def step_cost(train: Callable[[int], object], steps: int) -> dict[str, float]:
    """CPU and wall seconds per step of `train`, which takes the number of steps."""
    train(1)  # warm-up: costs of a process's first run
    spent: list[tuple[float, float]] = []
    for count in (1, steps):
        began = time.process_time(), time.perf_counter()
        train(count)
        spent.append((time.process_time() - began[0], time.perf_counter() - began[1]))
    cpu, wall = ((last - first) / (steps - 1) for first, last in zip(*spent, strict=True))
    return {"cpu_s": round(cpu, 4), "wall_s": round(wall, 4)}


def measurer(folder: Path, task: Task, limit: int, tokens: int, seed: int) -> Measure:
    """How models of the shape in `folder` answer the task: greedily, and once at temperature 1 from the same seeds."""
    engine = embedded(str(folder), dtype="float32", device="cpu")
    sampling = Sampling(temperature=1.0, max_tokens=tokens)
    held_out = HeldOut(task.items(limit, 0), make_verifier(task), sampling, seed)

    async def go(model: Any) -> dict[str, float]:
        await engine.load_weights(model.state_dict())  # type: ignore[attr-defined]
        values = {}
        for name, greedy in (("greedy", True), ("sampled", False)):
            right, _ = await accuracy(held_out, engine, greedy=greedy)
            values[name] = round(sum(right) / len(right), 4)
        return values

    return lambda model: asyncio.run(go(model))


def cipher_base(folder: Path, seed: int) -> Path:
    """The base model that the recipe cipher-grpo pretrains on a seed."""
    recipe = read_recipe("cipher-grpo", overrides={"grpo.steps": "1", "grpo.eval_every": "1"})
    run_recipe(recipe, RunOptions(folder / "base", seed, None, "cpu", torch.get_num_threads()), lambda text: None)
    return folder / "base" / "1-pretrain" / "model"


def staged(stage: Stage, base: Path, out: Path, seed: int) -> list[dict[str, Any]]:
    """Run a stage of this toolkit from `base`, in the folder `out`, anew; the rows of its metrics."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    stage.run(Setting(out, base, seed, "cpu", torch.get_num_threads(), lambda text: None))
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def curve_of(rows: Sequence[Mapping[str, Any]], every: int) -> list[dict[str, float]]:
    """The points of a stage that measured after every `every` updates."""
    return [
        {"step": row["step"], "greedy": round(row["held_out"], 4), "sampled": round(row["held_out_sampled"], 4)}
        for row in rows
        if "held_out" in row and row["step"] and row["step"] % every == 0
    ]


class Curve(TrainerCallback):  # type: ignore[misc]
    """TRL's model, measured every so many steps."""

    def __init__(self, measure: Measure, every: int) -> None:
        self._measure, self._every = measure, every
        self.points: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        """Measure the model if a measurement is due."""
        if state.global_step % self._every == 0:
            self.points.append({"step": state.global_step, **self._measure(model)})


def facts() -> dict[str, Any]:
    """Date, commit, versions of libraries, and number of threads."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "commit": commit(), **versions, "threads": torch.get_num_threads()}
