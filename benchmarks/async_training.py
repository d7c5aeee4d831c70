"""Asynchronous against synchronous training when the verifier is as slow as the rollouts.

    python -m benchmarks.async_training --save benchmarks/results/async_training.json

The recipe cipher-grpo, the same base per seed, with a verifier that waits as long as a round of rollouts takes
(measured first). Three ways are compared: synchronous; asynchronous in one process, which saves the waiting time;
asynchronous with rollouts in a process of their own, which needs a second idle core. Reported per way and seed: seconds
for the same number of updates, held-out greedy accuracy, how stale rollouts were, and processor seconds of all
processes. Wall times are meaningful only on a machine with two idle cores; the load at the start is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import commit
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, claim, run_recipe
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.verifiers.exact import exact

HERE = Path(__file__).resolve()
PRETRAINED = "1-pretrain"
OVERLAPPED = {"grpo.asynchronous": "true", "grpo.max_staleness": "2"}
WAYS: dict[str, dict[str, str]] = {
    "sync": {},
    "async": OVERLAPPED,
    "async_processes": {**OVERLAPPED, "grpo.engine": "embedded:dtype=float32,batch_invariant=true,processes=1"},
}


class Waiting(Verifier):
    """The exact verifier after a fixed delay; verdicts of one round wait together."""

    name = "waiting"
    version = "waiting-1"

    def __init__(self, seconds: float) -> None:
        self._seconds, self._inner = seconds, exact()

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Check like the exact verifier."""
        self._inner.check_gold(target, item)

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Wait, then compare."""
        await asyncio.sleep(self._seconds)
        return await self._inner.verify(target, submission)


def waiting(*, seconds: float) -> Waiting:
    """The verifier `waiting`."""
    return Waiting(seconds)


def slow_cipher(*, seconds: float) -> Any:
    """The training task with that verifier."""
    import dataclasses

    from evals.task import VerifierSpec
    from evals.tasks.cipher import cipher

    return dataclasses.replace(cipher(split="train"), verifier=VerifierSpec(f"{HERE}:waiting", {"seconds": seconds}))


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def run(folder: Path, seed: int, changes: dict[str, str], base: Path | None) -> dict[str, float]:
    """Run the recipe, from the base model of the run in `base` if there is one; returns metrics of the last stage."""
    recipe = read_recipe("cipher-grpo", overrides=changes)
    options = RunOptions(folder, seed, None, "cpu", 1)
    if base is not None:
        claim(recipe, options)
        shutil.copytree(base / PRETRAINED, folder / PRETRAINED)
    began, used = time.perf_counter(), cpu_seconds()
    results = run_recipe(recipe, options, lambda text: None)
    rows = [json.loads(line) for line in (folder / "2-grpo" / "metrics.jsonl").read_text().splitlines()]
    return {
        "seconds": results[-1].metrics["seconds"],
        "wall": time.perf_counter() - began,
        "cpu_s": cpu_seconds() - used,
        "held_out": results[-1].metrics["held_out"],
        "rollout_s": statistics.median(row["rollout_s"] for row in rows),
        "staleness": max(row.get("staleness", 0.0) for row in rows),
        "dropped": rows[-1].get("dropped", 0.0),
    }


def main() -> None:
    """Measure the delay, then every way on each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    common = {"grpo.steps": str(options.steps), "grpo.eval_every": str(options.steps), "grpo.record": "false"}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch) / "probe"
        delay = run(probe, options.seeds[0], {**common, "grpo.steps": "10"}, None)["rollout_s"]
        slow = {**common, "grpo.task": f"{HERE}:slow_cipher:seconds={delay}"}
        for seed in options.seeds:
            base, found = probe if seed == options.seeds[0] else None, {}
            for name, way in WAYS.items():
                folder = Path(scratch) / f"{name}{seed}"
                found[name] = run(folder, seed, {**slow, **way}, base)
                base = base or folder
            ratios = {name: each["seconds"] / found["sync"]["seconds"] for name, each in found.items()}
            rows.append({"seed": seed, "ratios": ratios, **found})
            print(json.dumps(rows[-1]), flush=True)
    if options.save is not None:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        setting = {"steps": options.steps, "delay_s": delay}
        facts = {"date": date, "commit": commit(), **setting, "cores": os.cpu_count(), "load_at_start": load}
        options.save.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
