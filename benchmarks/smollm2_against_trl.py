"""A step of training SmolLM2-135M here and in TRL: GRPO, supervised, on-policy distillation, on rows of GSM8K.

    TTC_DATA=DIR python -m benchmarks.smollm2_against_trl --model build/smollm2 --save FILE [--only grpo sft on_policy]
        [--bf16]

Both train all weights on one thread, from the same folder, on the same rows and at the same rate, in fp32, or with
`--bf16` in TRL's default (fp32 weights, passes in bf16; rollouts here by bf16 weights), for processors that have it:

    grpo       2 prompts x 4 rollouts of at most 128 tokens, one optimiser step; the reward is whether the text has an
               even number of characters, so that groups differ whatever the model knows; rollouts by two engines
    sft        8 questions with their solutions; padded here and there, and packed here
    on_policy  4 prompts, one rollout each of at most 128 tokens, reverse KL to a teacher of the same weights

Both times include everything that a step does (`benchmarks.beside_trl`: a run of several steps minus a run of one). TRL
recomputes activations by default; that is off, as it is here. Mean tokens of a rollout are reported for both, since
they sample with different seeds. `--profile` makes no timings, and appends a CPU profile of two steps of this toolkit
to a file. Left out: accuracy (`grpo_against_trl`, `on_policy_against_trl`).
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import io
import json
import os
import pstats
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.beside_trl import facts, staged, step_cost
from train.base.models import load_model, load_tokenizer
from train.base.rollout import Rollout
from train.registries import STAGES, make_task
from train.rollouts.rewards import Shaping

HERE = Path(__file__).resolve()
TOKENS, RATE, SEED, NEVER = 128, 1e-6, 1, 10**6
TASK = "gsm8k:split=train"
ENGINES = {"exact": "embedded:dtype={dtype},batch_invariant=true", "embedded": "embedded:dtype={dtype}"}
"""Engines of the rollouts: batch-invariant (in fp32 a stage's default), and faster."""
ROWS = 512
"""Questions that both draw from."""


def even(text: str) -> float:
    """The reward: 1 for a text of an even number of characters."""
    return float(len(text) % 2 == 0)


def paid_for_even() -> Shaping:
    """The reward as a part that a recipe names."""

    def shaping(group: Sequence[Rollout], step: int) -> list[float]:
        return [even(rollout.text) for rollout in group]

    return shaping


def questions(folder: Path) -> list[dict[str, str]]:
    """Rows of GSM8K with their solutions, as a JSON-lines file of prompts and completions beside them."""
    with gzip.open(Path(os.environ["TTC_DATA"]) / "gsm8k_train.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, ROWS)]
    pairs = [{"prompt": row["problem"], "completion": row["solution"]} for row in rows]
    (folder / "rows.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return pairs


def run_stage(kind: str, fields: Mapping[str, Any], model: Path, out: Path, *, half: bool) -> float | None:
    """Run a stage of this toolkit; returns the mean tokens of a rollout, if there are any."""
    common = {"lr": RATE, "eval_every": NEVER, "save_every": NEVER, "autocast": half}
    stage = STAGES.create(kind, {**common, **fields}, supply={})
    lengths = [row["tokens_mean"] for row in staged(stage, model, out, SEED) if "tokens_mean" in row]
    return fmean(lengths) if lengths else None


def trl_settings(kind: Any, out: Path, steps: int, batch: int, *, half: bool, **more: Any) -> Any:
    """What the three trainers share."""
    return kind(
        output_dir=str(out), use_cpu=True, bf16=half, gradient_checkpointing=False, seed=SEED, max_steps=steps,
        per_device_train_batch_size=batch, learning_rate=RATE, lr_scheduler_type="constant", report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, adam_beta2=0.95, **more,
    )  # fmt: skip


def chat(pairs: Sequence[Mapping[str, str]], *, completion: bool = False) -> Any:
    """Rows as messages, for TRL."""
    from datasets import Dataset

    rows = [{"prompt": [{"role": "user", "content": pair["prompt"]}]} for pair in pairs]
    if completion:
        answers = [[{"role": "assistant", "content": pair["completion"]}] for pair in pairs]
        rows = [{**row, "completion": answer} for row, answer in zip(rows, answers, strict=True)]
    return Dataset.from_list(rows)


def our_grpo(model: Path, folder: Path, steps: int, half: bool, *, engine: str) -> float | None:
    """GRPO in this toolkit."""
    fields = {
        **sampled(2, 4, steps, engine, half), "sampler": "uniform", "loss": "ppo:clip_low=0.2,clip_high=0.28",
        "shaping": (f"{HERE}:paid_for_even:weight=1",), "verifier_weight": 0.0,
        "advantage": "group:spread=sample,eps=0.0001", "normaliser": "constant",
    }  # fmt: skip
    return run_stage("grpo", fields, model, folder / "ours", half=half)


def sampled(prompts: int, n: int, steps: int, engine: str, half: bool) -> dict[str, Any]:
    """Fields of the stages that sample."""
    return {
        "engine": engine.format(dtype="bfloat16" if half else "float32"),
        "task": TASK, "held_out": "gsm8k", "held_out_limit": 1, "train_limit": ROWS, "steps": steps,
        "prompts": prompts, "n": n, "max_tokens": TOKENS, "thinking": "off", "record": False,
    }  # fmt: skip


def their_grpo(model: Path, folder: Path, steps: int, half: bool) -> float | None:
    """GRPO in TRL, with the questions that this toolkit uses."""
    from trl import GRPOConfig, GRPOTrainer

    lengths: list[int] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **more: Any) -> list[float]:
        lengths.extend(map(len, completion_ids))
        return [even(completion[0]["content"]) for completion in completions]

    settings = trl_settings(
        GRPOConfig, folder / "trl", steps, 8, half=half, num_generations=4, max_completion_length=TOKENS, beta=0.0,
        loss_type="dr_grpo", epsilon=0.2, epsilon_high=0.28, temperature=1.0, top_p=1.0, top_k=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=load_model(model, "cpu"), reward_funcs=reward, args=settings, train_dataset=chat(asked()),
        processing_class=load_tokenizer(model),
    )  # fmt: skip
    trainer.train()
    return fmean(lengths)


def asked() -> list[dict[str, str]]:
    """The questions as the task renders them."""
    return [{"prompt": item.problem.messages[-1].content} for item in make_task(TASK).items(ROWS, 0)]


def our_sft(model: Path, folder: Path, steps: int, half: bool, *, packed: int = 0) -> None:
    """Supervised fine-tuning in this toolkit."""
    fields = {
        "data": str(folder / "rows.jsonl"), "held_out_limit": 1, "steps": steps, "rows": 8, "packed": packed,
        "decay": False,
    }  # fmt: skip
    run_stage("sft", fields, model, folder / "ours", half=half)


def their_sft(model: Path, folder: Path, steps: int, half: bool) -> None:
    """Supervised fine-tuning in TRL."""
    from trl import SFTConfig, SFTTrainer

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    settings = trl_settings(SFTConfig, folder / "trl", steps, 8, half=half, completion_only_loss=True)
    trainer = SFTTrainer(
        model=load_model(model, "cpu"), args=settings, train_dataset=chat(rows, completion=True),
        processing_class=load_tokenizer(model),
    )  # fmt: skip
    trainer.train()


def our_distillation(model: Path, folder: Path, steps: int, half: bool, *, engine: str) -> float | None:
    """On-policy distillation in this toolkit."""
    fields = {**sampled(4, 1, steps, engine, half), "teacher": str(model), "mask_truncated": False}
    return run_stage("on_policy", fields, model, folder / "ours", half=half)


def their_distillation(model: Path, folder: Path, steps: int, half: bool) -> float | None:
    """On-policy distillation in TRL."""
    from trl import DistillationConfig, DistillationTrainer

    settings = trl_settings(
        DistillationConfig, folder / "trl", steps, 4, half=half, max_completion_length=TOKENS, beta=1.0, temperature=1.0
    )
    trainer = DistillationTrainer(
        model=load_model(model, "cpu"), teacher_model=load_model(model, "cpu"), args=settings,
        train_dataset=chat(asked()), processing_class=load_tokenizer(model),
    )  # fmt: skip
    trainer.train()
    return None


Train = Callable[[Path, Path, int, bool], float | None]
"""A model, a folder, steps, and whether in bf16."""
PAIRS: Mapping[str, tuple[Mapping[str, Train], Train]] = {
    "grpo": ({name: partial(our_grpo, engine=engine) for name, engine in ENGINES.items()}, their_grpo),
    "sft": ({"padded": our_sft, "packed": partial(our_sft, packed=2048)}, their_sft),
    "on_policy": (
        {name: partial(our_distillation, engine=engine) for name, engine in ENGINES.items()},
        their_distillation,
    ),
}
"""Ways of this toolkit, and TRL's, by method."""


def timed(train: Train, model: Path, folder: Path, steps: int, half: bool) -> dict[str, Any]:
    """The cost of a step, and mean tokens of a rollout in the longer run."""
    tokens: list[float | None] = []
    cost: dict[str, Any] = step_cost(lambda count: tokens.append(train(model, folder, count, half)), steps)
    return cost if tokens[-1] is None else {**cost, "tokens": round(tokens[-1], 1)}


def profile(train: Train, model: Path, folder: Path, steps: int, half: bool) -> str:
    """The forty functions in which a run spends most processor time of their own, in whatever thread."""
    profiles = [cProfile.Profile(time.thread_time)]
    run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        profiles.append(cProfile.Profile(time.thread_time))
        profiles[-1].runcall(run, thread)

    with mock.patch.object(threading.Thread, "run", profiled):
        profiles[0].runcall(train, model, folder, steps, half)
    table = io.StringIO()
    pstats.Stats(*profiles, stream=table).strip_dirs().sort_stats("tottime").print_stats(40)
    return table.getvalue()


def main() -> None:
    """Time the pairs and save after each, each with its facts; what the file has of others stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--profile", type=Path, help="text file")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    half, rows = options.bf16, dict[str, Any]()
    if options.save is not None and options.save.is_file():
        rows = json.loads(options.save.read_text())["rows"]  # of methods that are not asked for now
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        questions(folder)
        for method in options.only:
            ways, theirs = PAIRS[method]
            if half:  # bits that hang on no other row are had in fp32
                ways = {name: train for name, train in ways.items() if name != "exact"}
            if options.profile is not None:
                with options.profile.open("a") as out:
                    for name, train in ways.items():
                        out.write(f"{method}, {name}\n{profile(train, options.model, folder, 2, half)}\n")
                continue
            row = {name: timed(train, options.model, folder, options.steps, half) for name, train in ways.items()}
            row["trl"] = timed(theirs, options.model, folder, options.steps, half)
            row["ratio"] = {name: round(row[name]["cpu_s"] / row["trl"]["cpu_s"], 3) for name in ways}
            rows[method] = {**row, "facts": facts()}
            print(json.dumps({method: row}), flush=True)
            if options.save is not None:
                told = {"model": options.model.name, "steps": options.steps, "bf16": half, "rows": rows}
                options.save.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
