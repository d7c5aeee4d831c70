"""Asynchronous against synchronous training when the verifier is as slow as the rollouts.

    python -m benchmarks.async_training --save benchmarks/results/async_training.json

The recipe cipher-grpo, the same base per seed, with a verifier that waits as long as a round of rollouts takes
(measured first). Told per loop and seed: seconds for the same number of updates, held-out greedy accuracy, and how
stale rollouts were. One process on a busy core gains by the waiting it avoids, not by more arithmetic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from train.recipe import read_recipe
from train.run import Options, run_recipe
from ttc.core import Submission, Target, Verdict
from ttc.verifiers.exact import exact

HERE = Path(__file__).resolve()


class Waiting:
    """The exact verifier after a fixed delay; verdicts of one round wait together."""

    name = "waiting"
    version = "waiting-1"

    def __init__(self, seconds: float) -> None:
        self._seconds, self._inner = seconds, exact()

    def check_gold(self, target: Target, item: str = "") -> None:
        """As the exact verifier."""
        self._inner.check_gold(target, item)

    async def verify(self, target: Target, submission: Submission) -> Verdict:
        """Wait, then compare."""
        await asyncio.sleep(self._seconds)
        return await self._inner.verify(target, submission)

    async def close(self) -> None:
        """Nothing to stop."""


def waiting(*, seconds: float) -> Waiting:
    """The verifier `waiting`."""
    return Waiting(seconds)


def slow_cipher(*, seconds: float) -> Any:
    """The training task with that verifier."""
    import dataclasses

    from evals.task import Check
    from evals.tasks.cipher import cipher

    return dataclasses.replace(cipher(split="train"), verifier=Check(f"{HERE}:waiting", {"seconds": seconds}))


def run(folder: Path, seed: int, changes: dict[str, str]) -> dict[str, float]:
    """Run the recipe; returns what the last stage told."""
    recipe = read_recipe("cipher-grpo", overrides=changes)
    began = time.perf_counter()
    results = run_recipe(recipe, Options(folder, seed, None, "cpu", 1), lambda text: None)
    rows = [json.loads(line) for line in (folder / "2-grpo" / "metrics.jsonl").read_text().splitlines()]
    return {
        "seconds": results[-1].metrics["seconds"],
        "wall": time.perf_counter() - began,
        "held_out": results[-1].metrics["held_out"],
        "rollout_s": statistics.median(row["rollout_s"] for row in rows),
        "staleness": max(row.get("staleness", 0.0) for row in rows),
        "dropped": rows[-1].get("dropped", 0.0),
    }


def main() -> None:
    """Measure the delay, then both loops on each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    common = {"grpo.steps": str(options.steps), "grpo.eval_every": str(options.steps), "grpo.record": "false"}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        delay = run(Path(scratch) / "probe", 1, {**common, "grpo.steps": "10"})["rollout_s"]
        slow = {**common, "grpo.task": f"{HERE}:slow_cipher:seconds={delay}"}
        for seed in options.seeds:
            sync = run(Path(scratch) / f"sync{seed}", seed, slow)
            overlapped = {**slow, "grpo.asynchronous": "true", "grpo.buffer": "2", "grpo.max_staleness": "2"}
            both = run(Path(scratch) / f"async{seed}", seed, overlapped)
            rows.append({"seed": seed, "ratio": both["seconds"] / sync["seconds"], "sync": sync, "async": both})
            print(json.dumps(rows[-1]), flush=True)
    if options.save is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit.strip(), "delay_s": delay}
        options.save.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
