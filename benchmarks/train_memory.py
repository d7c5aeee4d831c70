"""Predicted and measured memory of an update: the plan beside the peak memory of a process on a CPU.

    python -m benchmarks.train_memory [--save FILE]

Each row is a process of its own: a random model of one of four sizes with a vocabulary of 32,768, its reference, AdamW
and two updates of a GRPO stage on rollouts of random tokens, plain and with recomputed activations. Measured is the
largest resident memory above that of the same process before the model was loaded. Engine and libraries are left out of
the plan, since neither is loaded in between.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SIZES = {"20 M": (256, 8), "60 M": (512, 10), "90 M": (640, 12), "135 M": (768, 14)}
"""Width and layers by name; the heap's share was chosen on runs of all four, so that no plan is too small."""
IDS, ROWS, LENGTH = 32_768, 8, 512


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a plan is below what was measured, or more than a fifth above it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "CHECKPOINTING"), help="a single row, in this process")
    parser.add_argument("--save", type=Path, help="rows as JSON")
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(row(options.one[0], options.one[1] == "true")))
        return 0
    rows = []
    for size, again in itertools.product(SIZES, ("false", "true")):
        each = child(size, again)
        numbers = f"{each['planned']:.2f} | {each['measured']:.2f} | {each['off']:+.0%}"
        print(f"| {each['size']} | {each['again']} | {numbers} |", flush=True)
        rows.append(each)
    if options.save is not None:
        options.save.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(not 0 <= each["off"] <= 0.2 for each in rows))


def child(size: str, again: str) -> dict[str, Any]:
    """Measure one row in a separate process."""
    words = [sys.executable, "-m", "benchmarks.train_memory", "--one", size, again]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(size: str, again: bool) -> dict[str, Any]:
    """Plan and measure one size; GB."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from train.advantages.group import group
    from train.base.models import checkpoint_layers
    from train.base.optimiser import Optimiser, Schedule
    from train.losses.ppo import ppo
    from train.recipe.plan import counts_of, stage_memory
    from train.update.batch import TokenBatch
    from train.update.terms import RewardBatch
    from train.update.update import Objective, Updater

    width, layers = SIZES[size]
    config = Qwen2Config(
        vocab_size=IDS, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 128, tie_word_embeddings=True,
    )  # fmt: skip
    fields = {"max_tokens": LENGTH - 256, "micro_tokens": 2048, "checkpointing": again, "engine": "embedded"}
    parts = stage_memory("grpo", fields, config, counts_of(config), 1, None)
    planned = sum(value for name, value in parts.items() if name not in ("engine", "libraries"))
    before = _peak()
    torch.manual_seed(0)
    model, reference = (AutoModelForCausalLM.from_config(config, attn_implementation="sdpa") for _ in range(2))
    if again:
        checkpoint_layers(model)
    objective = Objective(ppo(), group(), kl_weight=0.01)
    updater = Updater(
        model, Optimiser(model, Schedule(1e-5, 9)), objective, reference=reference.eval(), micro_tokens=2048
    )
    ids = torch.randint(0, IDS, (ROWS, LENGTH + 1))
    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    zero = torch.zeros(ROWS, LENGTH)
    batch = TokenBatch(ids, mask, zero, zero, zero, zero, torch.full((ROWS, LENGTH), float("nan")), zero)
    outcome = RewardBatch(torch.arange(ROWS) % 2.0, torch.arange(ROWS) // 4, mask)
    for _ in range(2):
        updater.learn(batch, outcome)
    measured = _peak() - before
    return {"size": size, "again": again, "planned": planned, "measured": measured, "off": planned / measured - 1}


def _peak() -> float:
    """Largest resident memory of this process so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    sys.exit(main())
