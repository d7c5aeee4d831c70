"""Does a process reward model learn steps from continuations alone, and do uncertain prefixes deserve more of them?

    python -m benchmarks.step_models --seeds 1 2 --out build/step_models --save benchmarks/results/step_models.json

The language is chains of four operations modulo 10 (`evals.chain`), each result wrong with probability 0.1. A base
model is pretrained, its own solutions are labelled by equally many continuations, spread evenly or to the least certain
prefixes first, and a reward model is trained on either. Measured against exact labels of other solutions to held-out
questions: the share of steps judged right before and after, ranking, and first-error F1. The same base is trained as a
generative verifier on its judged answers. Processor seconds, one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from evals.chain import NAMES, Chains, apply
from train.stage import Result, Setting, Stage
from train.stages.pretrain import pretrain
from train.stages.prm import prm
from train.stages.sample import sample
from train.stages.verifier_lm import verifier_lm

LENGTH, SOLUTIONS, NOISE = 4, 400, 0.1
TASK = f"chain:length={LENGTH},split=train,count=300"
KEPT = ("steps_right", "judged_right", "first_error_f1", "ranking")


def exact_labels(path: Path, seed: int) -> None:
    """Solutions to held-out questions whose results slip as often as in the corpus, with what is true of each step."""
    rng, chains = random.Random(seed), Chains(LENGTH, "+-*")
    lines = []
    for number, chain in enumerate(chains.distinct("eval", seed, SOLUTIONS)):
        value, right, steps, labels = chain.first, True, list[str](), list[float]()
        for name, (operation, digit) in zip(NAMES, chain.steps, strict=False):
            truth = apply(value, operation, digit)
            value = truth if rng.random() >= NOISE else (truth + rng.randrange(1, 10)) % 10
            right = right and value == truth
            steps.append(f"{'' if steps else '<think>'}{name}{operation}{digit}={value}")
            labels.append(float(right))
        lines.append({"id": number, "problem": chain.question, "steps": steps, "labels": labels})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run_seed(seed: int, out: Path) -> list[dict[str, object]]:
    """All stages of one seed; a row for each model that was trained."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    exact_labels(out / "exact.jsonl", seed)
    language = f"chain:length={LENGTH},noise={NOISE},noticed=0"
    model = Path(_run(pretrain(corpus=language, steps=2000), out / "1-base", None, seed).model)
    rows: list[dict[str, object]] = []
    for name, rounds in (("even", 1), ("uncertain first", 4)):
        clock = _cpu()
        stage = prm(
            task=TASK, step_delimiter=".", n=4, continuations=4, rounds=rounds, measured=str(out / "exact.jsonl"),
            steps=250, lr=1e-3, rows=48, eval_every=250, warmup=20,
        )  # fmt: skip
        found = _run(stage, out / f"prm-{rounds}", model, seed)
        rows.append({"model": f"process reward model, {name}", "seed": seed, **_kept(found.metrics), **_since(clock)})
        print(json.dumps(rows[-1]), flush=True)
    clock = _cpu()
    _run(sample(task=TASK, n=8), out / "2-sample", model, seed)
    stage = verifier_lm(
        rollouts="2-sample", ask="!", good="+", bad="-", steps=250, lr=1e-3, rows=48, eval_every=250, warmup=20,
        held_out_share=0.2,
    )  # fmt: skip
    found = _run(stage, out / "3-verifier_lm", model, seed)
    rows.append({"model": "generative verifier", "seed": seed, **_kept(found.metrics), **_since(clock)})
    print(json.dumps(rows[-1]), flush=True)
    return rows


def _run(stage: Stage, folder: Path, model: Path | None, seed: int) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    return stage.run(Setting(folder, model, seed, "cpu", 1, lambda text: print(text, flush=True)))


def _kept(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in metrics.items() if name.startswith(KEPT)}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _since(clock: float) -> dict[str, float]:
    return {"cpu_seconds": round(_cpu() - clock, 1)}


def main() -> None:
    """Run all seeds and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    about = {"commit": commit.strip(), "date": datetime.now(UTC).date().isoformat(), "length": LENGTH, "n": SOLUTIONS}
    rows: list[dict[str, object]] = []
    for number, seed in enumerate(args.seeds, start=1):
        rows += run_seed(seed, args.out / str(seed))
        args.save.write_text(json.dumps({**about, "seeds": args.seeds[:number], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
