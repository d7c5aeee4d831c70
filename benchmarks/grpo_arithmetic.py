"""GRPO on the packaged arithmetic model: gain in greedy held-out accuracy in a wording that it never saw.

    python -m benchmarks.grpo_arithmetic --save benchmarks/results/grpo_arithmetic.json

The recipe arithmetic-grpo on each seed (of rollouts and prompts; the base is one model). Reported per seed: greedy and
sampled accuracy on the same 1,000 held-out problems before and after, their paired difference with its 95 % interval,
and the accuracy in the wording the model was trained on (level 4, which no model was trained on).
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import commit
from train.base.stage import Setting
from train.measure.measure import task_gains
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_task

RETAINED = "arithmetic:level=4"
RETAINED_LIMIT = 300


def cpu_seconds() -> float:
    """Processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(folder: Path, seed: int, changes: dict[str, str]) -> dict[str, Any]:
    """One seed of the recipe."""
    before, began = cpu_seconds(), time.perf_counter()
    base, trained = run_recipe(
        read_recipe("arithmetic-grpo", overrides=changes), RunOptions(folder, seed, None, "cpu", 1), lambda text: None
    )
    training = {"cpu_s": cpu_seconds() - before, "wall_s": time.perf_counter() - began}
    setting = Setting(folder, None, seed, "cpu", 1, lambda text: None)
    kept = task_gains(make_task(RETAINED), RETAINED_LIMIT, Path(base.model), Path(trained.model), setting)
    told = {name: value for name, value in trained.metrics.items() if name.startswith("held_out")}
    return {
        "seed": seed,
        **training,
        "steps": trained.metrics["step"],
        "tokens": trained.metrics["tokens"],
        "stopped": trained.stopped,
        "new_wording": told,
        "old_wording_level_4": kept,
    }


def main() -> None:
    """Run the seeds and save what they showed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.FIELD=VALUE", dest="settings")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    changes = dict(text.split("=", 1) for text in options.settings)
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(run(Path(scratch) / "run", seed, changes))
        print(json.dumps(rows[-1]), flush=True)
        if options.save is not None:
            facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
            setting = {"recipe": "arithmetic-grpo", "base": "ttc/nano/teacher", "changes": changes, "n": 1000}
            options.save.write_text(json.dumps({**facts, **setting, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
