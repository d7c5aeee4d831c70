"""On-policy distillation here and in TRL: cost of a step, and accuracy after equal steps at a rate tuned for each.

    python -m benchmarks.on_policy_against_trl --out build/opd --save benchmarks/results/on_policy_against_trl.json

Reverse KL (TRL's `DistillationTrainer` with beta 1; arXiv:2306.13649) from the teacher of the distillation claims, into
the student that has imitated one verified answer to each of 64 problems (`benchmarks.distill`). At every step both
sample one answer of at most 59 tokens to each of these 64 problems, at temperature 1, and train on all of their tokens
with one optimiser step: constant rate, Adam (0.9, 0.95), gradients clipped at 1, fp32, one thread. The rate of each is
the best of `RATES` by sampled accuracy at the end on seed 1, which is in no table. Curves: 500 held-out problems,
greedy and sampled, measured by the same code. Both times include everything that a step does (`benchmarks.beside_trl`).
A quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.beside_trl import Curve, curve_of, facts, measurer, staged, step_cost
from benchmarks.distill.arms import FEW
from benchmarks.distill.place import Place
from benchmarks.distill.stock import teacher, warmed
from benchmarks.over_seeds import SEEDS, TUNED_ON, t_interval
from evals.tasks.chain import chain
from train.base.models import load_model, load_tokenizer
from train.registries import STAGES

RATES = (3e-4, 1e-3, 3e-3)
STEPS, EVERY, TIMED = 100, 25, 25
PROMPTS, TOKENS, PROBLEMS = 64, 59, 500
NEVER = 10**6
TASK = f"chain:split=train,count={PROMPTS}"


def ours(place: Place, rate: float, steps: int, every: int = NEVER) -> list[dict[str, float]]:
    """Run the stage `on_policy`; its log is the curve."""
    fields = {
        "task": TASK, "held_out": "chain", "teacher": str(teacher(place)), "steps": steps, "lr": rate, "warmup": 0,
        "prompts": PROMPTS, "n": 1, "mask_truncated": False, "record": False, "eval_every": every, "save_every": NEVER,
        "held_out_limit": PROBLEMS if every < NEVER else 1,
    }  # fmt: skip
    health = {"train_above_held_out": {"action": "warn"}}  # 64 problems are known by heart
    stage = STAGES.create("on_policy", fields, supply={"health": health})
    return curve_of(staged(stage, warmed(place, FEW), place.folder / "ours", place.seed), every)


def theirs(place: Place, rate: float, steps: int, curve: Curve | None = None) -> None:
    """Run TRL's trainer."""
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    start = warmed(place, FEW)
    config = DistillationConfig(
        output_dir=str(place.folder / "trl"), use_cpu=True, bf16=False, per_device_train_batch_size=PROMPTS,
        max_completion_length=TOKENS, learning_rate=rate, lr_scheduler_type="constant", beta=1.0, temperature=1.0,
        max_steps=steps, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, adam_beta2=0.95,
        gradient_checkpointing=False, seed=place.seed,
    )  # fmt: skip
    texts = [item.problem.messages[-1].content for item in chain(split="train", count=PROMPTS).items(None, 0)]
    trainer = DistillationTrainer(
        model=load_model(start, "cpu"), teacher_model=load_model(teacher(place), "cpu"), args=config,
        train_dataset=Dataset.from_dict({"prompt": texts * steps}), processing_class=load_tokenizer(start),
        callbacks=[curve] if curve else [],
    )  # fmt: skip
    trainer.train()


def curves(place: Place, rates: dict[str, float]) -> dict[str, list[dict[str, float]]]:
    """Held-out accuracy of both along the way."""
    curve = Curve(measurer(warmed(place, FEW), chain(), PROBLEMS, TOKENS, place.seed), EVERY)
    theirs(place, rates["trl"], STEPS, curve)
    return {"ttc": ours(place, rates["ttc"], STEPS, EVERY), "trl": curve.points}


def tuned(place: Place) -> dict[str, Any]:
    """The rate of each that ends best, and every one that was tried."""
    ends: dict[str, dict[float, float]] = {"ttc": {}, "trl": {}}
    for rate in RATES:
        for who, points in curves(place, {"ttc": rate, "trl": rate}).items():
            ends[who][rate] = points[-1]["sampled"]
    return {"best": {who: max(tried, key=tried.__getitem__) for who, tried in ends.items()}, "tried": ends}


def row(place: Place, rates: dict[str, float]) -> dict[str, Any]:
    """Both from one seed's student."""
    points = curves(place, rates)
    costs = {
        "ttc": step_cost(partial(ours, place, rates["ttc"]), TIMED),
        "trl": step_cost(partial(theirs, place, rates["trl"]), TIMED),
    }
    ratios = {clock: round(costs["ttc"][clock] / costs["trl"][clock], 3) for clock in ("cpu_s", "wall_s")}
    return {
        "seed": place.seed,
        **{who: {"curve": points[who], **costs[who]} for who in points},
        "ratio": ratios,
        "lead": {key: round(points["ttc"][-1][key] - points["trl"][-1][key], 4) for key in ("greedy", "sampled")},
    }


def main() -> None:
    """Tune on one seed, then measure the others; saves after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the models; that of benchmarks.distill serves"
    )
    parser.add_argument("--save", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    places = {seed: Place((options.out / f"seed{seed}").resolve(), seed, print) for seed in (TUNED_ON, *options.seeds)}
    for place in places.values():
        place.folder.mkdir(parents=True, exist_ok=True)
    rates, rows = tuned(places[TUNED_ON]), list[dict[str, Any]]()
    print(json.dumps(rates), flush=True)
    for seed in options.seeds:
        rows.append(row(places[seed], rates["best"]))
        print(json.dumps(rows[-1]), flush=True)
        leads = {key: [one["lead"][key] for one in rows] for key in ("greedy", "sampled")}
        over = {key: t_interval(values) for key, values in leads.items()} if len(rows) > 1 else {}
        told = {**facts(), "steps": STEPS, "rates": rates, "rows": rows, "lead_over_seeds": over}
        options.save.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
