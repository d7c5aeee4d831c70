"""Does every stage of every recipe improve its metric? At nano scale, on a CPU.

    python -m benchmarks.recipes --shard 1/4 --out build/recipes
    python -m benchmarks.recipes --shard 0 --out build/recipes --save build/recipes.json

Every recipe runs completely at nano scale, each in a process of its own with one thread. Reported per stage: its own
held-out metrics before and after, with the interval of the paired gain, and processor seconds; where the recipe has a
table `[retention]`, also every stage's model on every held-out task. Accuracy is measured again on eight sampled
answers to each held-out question, where one completion is an answer: a stage itself samples one, whose variance hides
gains of ten points. The base model of recipes that pretrain alike is trained once and copied. An interrupted run is
resumed and a finished one is not run again, so shards may be started in any order, repeatedly and on several cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.machine import commit
from benchmarks.over_seeds import SEEDS
from evals.numbers.statistics import paired_interval
from train.base.stage import DONE, Setting, read_result
from train.measure.retention import Retention, answer_tasks, read_kept
from train.recipe.recipe import Recipe, packaged, read_recipe
from train.recipe.run import RunOptions, claim, run_recipe
from train.registries import make_task

BASE, ROW = "1-pretrain", "row.json"
QUESTIONS, SAMPLES = 128, 8
"""Most questions of a held-out task, and sampled answers to each."""


def read(name: str) -> Recipe:
    """A packaged recipe at its smallest scale."""
    nano = "nano" in packaged()[name].read_text()
    return read_recipe(name, scale="nano" if nano else None)


def run(name: str, seed: int, out: Path) -> None:
    """Run one recipe in this process; writes the measurements of its stages, by themselves and compared."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    recipe, folder = read(name), out / f"seed-{seed}" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    options = RunOptions(folder, seed, None, "cpu", 1)
    claim(recipe, options)
    bases = out / "bases" / f"{recipe.steps[0].digest}-{seed}"
    if (bases / DONE).is_file() and not (folder / BASE).exists():
        shutil.copytree(bases, folder / BASE)
    began, clock = time.perf_counter(), _Clock()
    run_recipe(recipe, options, clock.log)
    if recipe.steps[0].kind == "pretrain" and not bases.exists():
        shutil.copytree(folder / BASE, bases)
    spent, rows = clock.seconds(), []
    again = measured(recipe, folder, seed)
    for number, step in enumerate(recipe.steps, start=1):
        stage = f"{number}-{step.kind}"
        result = read_result(folder / stage)
        if result is not None:
            metrics = {**_gains(result.metrics), **again.get(stage, {})}
            rows.append({"stage": stage, "stopped": result.stopped, **({"metrics": metrics} if metrics else {})})
    kept = [asdict(row) for row in read_kept(folder)]
    row = {
        "recipe": name,
        "seed": seed,
        "commit": commit(),
        "stages": rows,
        "retention": kept,
        "cpu_seconds": spent,
        "wall_seconds": round(time.perf_counter() - began, 1),
    }
    (folder / ROW).write_text(json.dumps(row) + "\n")


def measured(recipe: Recipe, folder: Path, seed: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Stage to `held_out_sampled` of its own task, for stages that have one and made a model."""
    metrics: dict[str, dict[str, dict[str, Any]]] = {}
    models, before = dict[str, Path](), Path()
    for number, step in enumerate(recipe.steps, start=1):
        name = f"{number}-{step.kind}"
        result = read_result(folder / name)
        if result is None:
            break
        before = before if step.start is None else models[step.start]
        after = models[name] = Path(result.model)
        if "held_out" in step.fields and after.resolve() != before.resolve():
            setting = Setting(folder, before, seed, "cpu", 1, lambda text: None)
            metrics[name] = {"held_out_sampled": sampled_gain(str(step.fields["held_out"]), before, after, setting)}
        before = after
    return metrics


def sampled_gain(task: str, before: Path, after: Path, setting: Setting) -> dict[str, Any]:
    """Sampled accuracy of two models on a task, the paired gain over questions, and that of each question."""
    asked, tasks = Retention((), QUESTIONS, SAMPLES), {task: make_task(task)}
    first, last = (asyncio.run(answer_tasks(tasks, asked, model, setting))[task].sampled for model in (before, after))
    questions = [place // SAMPLES for place in range(len(first))]
    change = paired_interval(first, last, questions, seed=setting.seed)
    gains = [
        (sum(last[i : i + SAMPLES]) - sum(first[i : i + SAMPLES])) / SAMPLES for i in range(0, len(first), SAMPLES)
    ]
    values = {"before": fmean(first), "after": fmean(last), "gain": change.value}
    values |= {"gain_low": change.low, "gain_high": change.high}
    return {**{part: round(value, 4) for part, value in values.items()}, "gains": gains}


class _Clock:
    """CPU seconds of each stage, by the messages of the run's log."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float]] = []

    def log(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        is_first_of_retention = text.startswith("retention") and not (
            self._marks and self._marks[-1][0].startswith("retention")
        )
        if text.startswith("stage ") or is_first_of_retention:
            self._marks.append((text, _cpu()))

    def seconds(self) -> dict[str, float]:
        """CPU seconds by stage; a stage that was complete before has none."""
        ends = [mark for _, mark in self._marks[1:]] + [_cpu()]
        return {
            text.partition(":")[0] if text.startswith("retention") else _stage(text): round(end - start, 1)
            for (text, start), end in zip(self._marks, ends, strict=True)
        }


def _stage(text: str) -> str:
    """`stage 3 of 5: grpo is done` is 3-grpo."""
    words = text.replace(":", "").split()
    return f"{words[1]}-{words[4]}"


def _cpu() -> float:
    """Processor seconds of this process and its workers that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _gains(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Metric to before, after, gain and its interval."""
    found: dict[str, dict[str, float]] = {}
    for name in metrics:
        stem, end, _ = name.rpartition("_gain")
        if end and name == f"{stem}_gain":
            parts = ("before", "after", "gain", "gain_low", "gain_high")
            found[stem] = {part: round(metrics[f"{stem}_{part}"], 4) for part in parts}
    return found


def jobs(seeds: Sequence[int], names: Sequence[str], shard: str) -> list[tuple[int, str]]:
    """The runs of shard `K/N` (from 1): every N-th of all seeds and recipes, so that shards cost about the same."""
    place, _, count = shard.partition("/")
    if not (place.isdigit() and count.isdigit() and 1 <= int(place) <= int(count)):
        raise SystemExit(f"--shard {shard}: write K/N with K from 1 to N")
    return [(seed, name) for seed in seeds for name in names][int(place) - 1 :: int(count)]


def gathered(out: Path, seeds: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the finished runs of all shards; prints the unfinished ones."""
    places = [(seed, name, out / f"seed-{seed}" / name / ROW) for seed in seeds for name in names]
    for seed, name, place in places:
        if not place.is_file():
            print(f"{name}, seed {seed}: not run yet", file=sys.stderr)
    return [json.loads(place.read_text()) for _, _, place in places if place.is_file()]


def main() -> None:
    """Run all recipes of a shard, each in its own process, or one of them in this."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="+", default=sorted(packaged()), help="names of recipes")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="run every N-th, from the K-th; 0 runs none")
    parser.add_argument("--one", help="run this recipe in this process")
    parser.add_argument("--save", type=Path, help="write the rows of all runs that have ended, of any shard")
    options = parser.parse_args()
    if options.one is not None:
        run(options.one, options.seeds[0], options.out)
        return
    for seed, name in [] if options.shard == "0" else jobs(options.seeds, options.only, options.shard):
        row = options.out / f"seed-{seed}" / name / ROW
        if not row.is_file():
            command = ["--one", name, "--seeds", str(seed), "--out", str(options.out)]
            subprocess.run([sys.executable, "-m", "benchmarks.recipes", *command], check=True)
        done = json.loads(row.read_text())
        print(json.dumps({key: done[key] for key in ("recipe", "seed", "stages", "cpu_seconds")}), flush=True)
    if options.save is not None:
        rows = gathered(options.out, options.seeds, options.only)
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": torch.__version__}
        facts |= {"python": sys.version.split()[0], "scale": "nano", "threads": "1"}
        options.save.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
