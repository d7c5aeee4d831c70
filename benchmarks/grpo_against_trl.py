"""This toolkit's GRPO beside TRL's on the cipher walk: seconds per step, and seconds to 95 % held-out accuracy.

    python -m benchmarks.grpo_against_trl --seeds 1 2 3 --save benchmarks/results/grpo_against_trl.json

Both start from the same base model per seed and take the same steps: 16 prompts x 8 rollouts, at most 28 new tokens,
one optimiser step, no KL, Dr. GRPO's constant normaliser, clip 0.2 / 0.28, the same rate, fp32, the same number of
threads, generation inside the process. Held-out greedy accuracy is measured every ten steps by the same code, outside
the clock. TRL samples with transformers' generate, this toolkit with its embedded engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from evals.tasks.cipher import cipher
from train.base.models import load_model, load_tokenizer
from train.measure.measure import HeldOut, accuracy
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from ttc.answers import extract
from ttc.core import Sampling
from ttc.engines.embedded.engine import embedded
from ttc.verifiers.exact import exact

PROMPTS, GROUP, TOKENS, RATE, GOAL = 16, 8, 28, 3e-4, 0.95


def greedy(folder: Path, seed: int) -> Callable[[Any], float]:
    """Return a function from a model to its held-out greedy accuracy, by the embedded engine."""
    engine = embedded(str(folder), dtype="float32", device="cpu")
    items = cipher().items(128, 0)
    held_out = HeldOut(items, exact(), Sampling(temperature=1.0, max_tokens=TOKENS), seed)

    def measure(model: Any) -> float:
        async def go() -> float:
            await engine.load_weights(model.state_dict())  # type: ignore[attr-defined]
            right, _ = await accuracy(held_out, engine)
            return sum(right) / len(right)

        return asyncio.run(go())

    return measure


def ours(base: Path, out: Path, seed: int, steps: int) -> dict[str, Any]:
    """Run this toolkit's stage; its own log tells seconds (evaluation excluded) and accuracy."""
    once = {"grpo.minibatches": "1", "grpo.loss": "ppo:clip_low=0.2,clip_high=0.28"}
    once |= {"grpo.advantage": "group:spread=sample,eps=0.0001"}
    recipe = read_recipe("cipher-grpo", overrides={"grpo.steps": str(steps), "grpo.record": "false", **once})
    stage = recipe.steps[1].stage
    from train.base.stage import Setting

    out.mkdir()
    stage.run(Setting(out, base, seed, "cpu", torch.get_num_threads(), lambda text: None))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    curve = [(row["seconds"], row["held_out"]) for row in rows if "held_out" in row]
    return summary([row["seconds"] for row in rows], curve, rows[-1]["tokens"])


def trl(base: Path, out: Path, seed: int, steps: int) -> dict[str, Any]:
    """Run TRL's trainer with a clock that stops while accuracy is measured."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    measure = greedy(base, seed)
    items = cipher(split="train").items(None, 0)
    rows = {"prompt": [item.problem.messages[-1].content for item in items], "target": [item.target for item in items]}
    seconds: list[float] = []
    curve: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        """Seconds of training only."""

        spent, began = 0.0, 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.began = self.began or time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            self.spent += time.perf_counter() - self.began
            seconds.append(self.spent)
            if state.global_step % 10 == 0:
                curve.append((self.spent, measure(model)))
            self.began = time.perf_counter()

    def right(completions: list[str], target: list[str], **more: Any) -> list[float]:
        return [float(extract(text, "exact").final == gold) for text, gold in zip(completions, target, strict=True)]

    settings = GRPOConfig(
        output_dir=str(out), use_cpu=True, bf16=False, per_device_train_batch_size=PROMPTS * GROUP, seed=seed,
        num_generations=GROUP, max_completion_length=TOKENS, learning_rate=RATE, lr_scheduler_type="constant", beta=0.0,
        loss_type="dr_grpo", epsilon=0.2, epsilon_high=0.28, temperature=1.0, top_p=1.0, top_k=0, max_steps=steps,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, adam_beta2=0.95,
        gradient_checkpointing=False,
    )  # fmt: skip
    clock = Clock()
    trainer = GRPOTrainer(
        model=load_model(base, "cpu"), reward_funcs=right, args=settings, train_dataset=Dataset.from_dict(rows),
        processing_class=load_tokenizer(base), callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    return summary(seconds, curve, float(trainer.state.num_input_tokens_seen or 0))


def summary(seconds: list[float], curve: list[tuple[float, float]], tokens: float) -> dict[str, Any]:
    """Seconds per step (median), seconds to the goal (None when not reached), the curve."""
    steps = sorted(after - before for before, after in zip([0.0, *seconds], seconds, strict=False))
    reached = next((at for at, value in curve if value >= GOAL), None)
    return {"step_s": steps[len(steps) // 2], "to_goal_s": reached, "curve": curve, "tokens": tokens}


def main() -> None:
    """Make the bases, run both, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            recipe = read_recipe("cipher-grpo", overrides={"grpo.steps": "1", "grpo.eval_every": "1"})
            run_recipe(recipe, RunOptions(folder / "base", seed, None, "cpu", options.threads), lambda text: None)
            base = folder / "base" / "1-pretrain" / "model"
            row = {"seed": seed, "ttc": ours(base, folder / "ours", seed, options.steps)}
            row["trl"] = trl(base, folder / "trl", seed, options.steps)
        row["ratio"] = row["ttc"]["step_s"] / row["trl"]["step_s"]
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.save is not None:
        import importlib.metadata

        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
        versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")}
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit.strip(), **versions}
        facts["threads"] = str(options.threads)
        options.save.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
