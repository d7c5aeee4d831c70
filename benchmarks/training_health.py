"""Do the health rules detect real collapses, without alarms on healthy runs?

    python -m benchmarks.training_health --healthy 10 --save benchmarks/results/training_health.json

Four faults, each in a real run on the cipher walk, and healthy runs on seeds that no threshold was chosen on:

    shortcut   the base has memorised training answers and walks badly: reward rises while thinking stops
    rate       a learning rate thirty times too high
    leaky      a verifier that checks only the form of the answer; other holes: `benchmarks.reward_hacks`
    length     a reward that pays for tokens

Reported per run: the first step at which the rule meant for it fired, what else fired, and held-out accuracy at the
end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.collapse_parts import HERE
from benchmarks.holes import HERE as WALKS
from benchmarks.machine import commit
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ruin a run: changes of the recipe, and the rules that must catch it."""

    name: str
    changes: Mapping[str, str]
    meant: tuple[str, ...] = ()
    steps: int = 80


CASES = (
    Case(
        "shortcut",
        {"pretrain.corpus": "cipher:right_share=1.0,noise=0.25", "pretrain.steps": "800"},
        ("thinking_dies", "length_collapse", "train_above_held_out"),
    ),
    Case("rate", {"grpo.lr": "1e-2"}, ("reward_falls", "all_fail", "entropy_rise", "truncation")),
    Case("leaky", {"grpo.task": f"{WALKS}:walk:hole=form,symbols=64,max_steps=12"}, ("train_above_held_out",)),
    Case(
        "length",
        {"grpo.shaping": f"{HERE}:paid_by_length:weight=1", "grpo.max_tokens": "40"},
        ("length_drift", "truncation"),
    ),
)


def run(case: Case, seed: int, folder: Path) -> dict[str, Any]:
    """Run one case; returns when each rule fired first, and how the run ended."""
    recipe = read_recipe("cipher-grpo", overrides={**case.changes, "grpo.steps": str(case.steps)})
    told: list[str] = []
    results = run_recipe(recipe, RunOptions(folder, seed, None, "cpu", 1), told.append)
    rows = [json.loads(line) for line in (folder / "2-grpo" / "metrics.jsonl").read_text().splitlines()]
    fired: dict[str, int] = {}
    for text in told:
        if text.startswith("health rule "):
            name, step = text.split(":")[0].removeprefix("health rule "), int(text.split(" at step ")[1].split()[0])
            fired.setdefault(name, step)
    return {
        "case": case.name,
        "seed": seed,
        "steps": len(rows),
        "fired": fired,
        "caught_at": min((fired[rule] for rule in case.meant if rule in fired), default=None),
        "stopped": results[-1].stopped,
        "accuracy": [rows[0]["accuracy"], rows[-1]["accuracy"]],
        "length": [rows[0]["length"], rows[-1]["length"]],
        "held_out": next((row["held_out"] for row in reversed(rows) if "held_out" in row), None),
        "alarm": next((text for text in told if text.startswith("health rule ")), ""),
    }


def main() -> None:
    """Run all cases and the healthy seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs, on seeds 100, 101, ...")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds of the collapses")
    parser.add_argument("--only", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    jobs = [(case, seed) for case in CASES if case.name in options.only for seed in options.seeds]
    jobs += [(Case("healthy", {}), 100 + i) for i in range(options.healthy)]
    for case, seed in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(run(case, seed, Path(scratch) / "run"))
        shown = {key: rows[-1][key] for key in ("case", "seed", "steps", "fired", "caught_at", "held_out")}
        print(json.dumps(shown), flush=True)
    if options.save is not None:
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        facts["torch"], facts["python"] = torch.__version__, sys.version.split()[0]
        options.save.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
