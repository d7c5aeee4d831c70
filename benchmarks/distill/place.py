"""Common parts of the claims: a folder per seed; models and measurements that are made once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.job.job import run_job
from distill.spec.spec import read_spec
from evals.numbers.statistics import Interval, mean_interval, paired_interval
from train.measure.measure import HeldOut, accuracy
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_task, make_verifier
from ttc.config.registry import ENGINES
from ttc.session.thinking import Thinking

EXAMPLES = Path(__file__).parents[2] / "distill" / "examples"
HELD_OUT = "chain:count=2000"
FEWER = "chain:count=500"
"""The first of those problems, for models that nothing is claimed of by a point or two."""

BRIEF: Mapping[str, object] = {"eval.limit": 64, "eval.teachers": False}
"""What jobs measure by themselves where the claim measures it anyway."""


@dataclass(frozen=True, slots=True)
class Answers:
    """1 or 0 per problem, greedy and sampled, and the mean length of the greedy answers in tokens."""

    greedy: list[float]
    sampled: list[float]
    length: float


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one seed."""

    folder: Path
    seed: int
    log: Callable[[str], None]

    def train(
        self, name: str, recipe: str, changes: Mapping[str, object] | None = None, model: Path | None = None
    ) -> Path:
        """Run an example recipe, or find what it left; returns the model folder."""
        out = self.folder / name
        if not (out / "model").exists():
            found = read_recipe(str(EXAMPLES / f"{recipe}.toml"), overrides=changes or {})
            self._spend(name, lambda: run_recipe(found, RunOptions(out, self.seed, model, "cpu", 1), self.log))
        return (out / "model").resolve()

    def distill(self, name: str, spec: str, settings: Mapping[str, object]) -> Path:
        """Run an example job, or find what it left; returns the student's folder.

        A job that a health rule stopped has no student; its last weights are measured all the same.
        """
        out = self.folder / name
        given = read_spec(EXAMPLES / f"{spec}.toml", {"seed": self.seed, **BRIEF, **settings})
        if not (self.folder / f"{name}.cpu.json").is_file():
            self._spend(name, lambda: run_job(given, out, self.log))
        stopped = sorted(out.glob("train/*/*/model"))
        return (out / "model" if (out / "model").exists() else stopped[-1]).resolve()

    def spent(self, *names: str) -> float:
        """CPU-seconds that making these models took."""
        return sum(float(json.loads((self.folder / f"{name}.cpu.json").read_text())) for name in names)

    def answers(self, model: Path, task: str = HELD_OUT, thinking: Thinking | None = None) -> Answers:
        """Answer a task with a model, greedily and sampled with the same seeds for every model; measured once."""
        key = hashlib.sha256(f"{model.relative_to(self.folder)} {task} {thinking}".encode()).hexdigest()[:16]
        path = self.folder / "answers" / f"{key}.json"
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(asyncio.run(_answered(model, task, thinking, self.seed))))
        return Answers(**json.loads(path.read_text()))

    def _spend(self, name: str, work: Callable[[], object]) -> None:
        began = cpu_seconds()
        self.log(f"seed {self.seed}: {name}")
        work()
        (self.folder / f"{name}.cpu.json").write_text(json.dumps(round(cpu_seconds() - began, 1)))


async def _answered(model: Path, task: str, thinking: Thinking | None, seed: int) -> dict[str, Any]:
    asked = make_task(task)
    engine = ENGINES.load("embedded")(str(model), dtype="float32", device="cpu")
    verifier = make_verifier(asked)
    held_out = HeldOut(asked.items(None, 0), verifier, asked.sampling, seed, thinking)
    try:
        greedy, usage = await accuracy(held_out, engine)
        sampled, _ = await accuracy(held_out, engine, greedy=False)
    finally:
        await engine.close()
        await verifier.close()
    right = {"greedy": [float(x) for x in greedy], "sampled": [float(x) for x in sampled]}
    return {**right, "length": usage.generated / len(greedy)}


def cpu_seconds() -> float:
    """User and system time of this process and of those it has waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(found.ru_utime + found.ru_stime for found in both)


def told(answers: Answers, seed: int) -> dict[str, Any]:
    """Accuracies in per cent as [value, low, high], and the mean length."""
    return {
        "greedy": _percent(mean_interval(answers.greedy, range(len(answers.greedy)), seed=seed)),
        "sampled": _percent(mean_interval(answers.sampled, range(len(answers.sampled)), seed=seed)),
        "length": round(answers.length, 1),
    }


def gap(first: Answers, second: Answers, seed: int) -> dict[str, Any]:
    """How much better `second` is, paired by problem, in points as [value, low, high]."""
    numbers = range(len(first.greedy))
    return {
        "greedy": _percent(paired_interval(first.greedy, second.greedy, numbers, seed=seed)),
        "sampled": _percent(paired_interval(first.sampled, second.sampled, numbers, seed=seed)),
    }


def _percent(found: Interval) -> list[float]:
    return [round(100 * value, 2) for value in (found.value, found.low, found.high)]
