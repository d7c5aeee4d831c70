"""This toolkit's GRPO beside TRL's on the cipher walk: cost of a step, and accuracy after the same steps.

    python -m benchmarks.grpo_against_trl --save benchmarks/results/grpo_against_trl.json

Both start from the same base model per seed and take the same steps: 16 prompts x 8 rollouts, prompts in order without
a frontier, at most 28 new tokens, one optimiser step, no KL, Dr. GRPO's constant normaliser over all rollouts, clip 0.2
/ 0.28, advantages over the sample spread, the same rate, fp32, the same number of threads, generation inside the
process. TRL samples with transformers' generate, this toolkit with its embedded engine. Both times include everything
that a step does (`benchmarks.beside_trl`); rollout records are off, as TRL keeps none. Curves: 128 held-out problems,
greedy and sampled, every ten steps, measured by the same code. Ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.beside_trl import Curve, cipher_base, curve_of, facts, measurer, staged, step_cost
from benchmarks.over_seeds import SEEDS
from evals.tasks.cipher import cipher
from train.base.models import load_model, load_tokenizer
from train.recipe.recipe import read_recipe
from ttc.answers import extract

PROMPTS, GROUP, TOKENS, RATE, PROBLEMS, EVERY = 16, 8, 28, 3e-4, 128, 10
NEVER = 10**6


def ours(base: Path, out: Path, seed: int, steps: int, every: int = NEVER) -> list[dict[str, float]]:
    """Run this toolkit's stage; its log is the curve."""
    fields = {
        "steps": steps, "record": "false", "sampler": "uniform", "minibatches": 1, "eval_every": every, "lr": RATE,
        "save_every": NEVER, "loss": "ppo:clip_low=0.2,clip_high=0.28", "advantage": "group:spread=sample,eps=0.0001",
        "held_out_limit": PROBLEMS if every < NEVER else 1,
    }  # fmt: skip
    recipe = read_recipe("cipher-grpo", overrides={f"grpo.{name}": str(value) for name, value in fields.items()})
    return curve_of(staged(recipe.steps[1].stage, base, out, seed), every)


def theirs(base: Path, out: Path, seed: int, steps: int, curve: Curve | None = None) -> None:
    """Run TRL's trainer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    items = cipher(split="train").items(None, 0)
    rows = {"prompt": [item.problem.messages[-1].content for item in items], "target": [item.target for item in items]}

    def right(completions: list[str], target: list[str], **more: Any) -> list[float]:
        return [float(extract(text, "exact").final == gold) for text, gold in zip(completions, target, strict=True)]

    settings = GRPOConfig(
        output_dir=str(out), use_cpu=True, bf16=False, per_device_train_batch_size=PROMPTS * GROUP, seed=seed,
        num_generations=GROUP, max_completion_length=TOKENS, learning_rate=RATE, lr_scheduler_type="constant", beta=0.0,
        loss_type="dr_grpo", epsilon=0.2, epsilon_high=0.28, temperature=1.0, top_p=1.0, top_k=0, max_steps=steps,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, adam_beta2=0.95,
        gradient_checkpointing=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=load_model(base, "cpu"), reward_funcs=right, args=settings, train_dataset=Dataset.from_dict(rows),
        processing_class=load_tokenizer(base), callbacks=[curve] if curve else [],
    )  # fmt: skip
    trainer.train()


def row(seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Both on one seed's base."""
    base = cipher_base(folder, seed)
    curve = Curve(measurer(base, cipher(), PROBLEMS, TOKENS, seed), EVERY)
    theirs(base, folder / "trl", seed, steps, curve)
    own: dict[str, Any] = {"curve": ours(base, folder / "ours", seed, steps, EVERY)}
    own |= step_cost(partial(ours, base, folder / "ours", seed), steps)
    other: dict[str, Any] = {"curve": curve.points, **step_cost(partial(theirs, base, folder / "trl", seed), steps)}
    ratios = {clock: round(own[clock] / other[clock], 3) for clock in ("cpu_s", "wall_s")}
    return {"seed": seed, "ttc": own, "trl": other, "ratio": ratios}


def main() -> None:
    """Make the bases, run both, print and save after each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(row(seed, options.steps, Path(scratch)))
        print(json.dumps(rows[-1]), flush=True)
        if options.save is not None:
            options.save.write_text(json.dumps({**facts(), "steps": options.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
