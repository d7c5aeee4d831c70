"""Every recipe on a model of one's own at the scale `cpu`: start, kill, resume, and evaluate the resulting model.

    python -m benchmarks.train_scales --model DIR --data DIR --out runs/scales [--recipes r1 tulu3] [--save FILE]
    python -m benchmarks.train_scales --tokenizer DIR --out runs/scales     a random model, and data made up for it
    python -m benchmarks.train_scales --model DIR --out runs/scales --recipes on-policy --teacher DIR

For each recipe `ttc train run RECIPE --model DIR --scale cpu` is started and killed (SIGKILL) once its first
checkpoint, or its first finished stage, is on the disk; run again to its end; and `ttc eval` answers two problems with
the resulting model. `on-policy` is not a recipe but `ttc distill run --method on_policy`, treated alike. A row has the
stages, the point of the kill, the number of updates that changed weights, CPU seconds of all processes, and the exit
codes of run and evaluation. Run again, it continues with the recipes without a row. Two updates teach nothing: this
only shows that everything runs. The random model is briefly trained to write a 3 or a 4 in a box, so that rewards
differ and stages that learn from right answers have some.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import qwen_like
from train.recipe.recipe import packaged

OWN = ("nano",)
"""Recipes that make their own models."""
MARKS = ("*/checkpoints/step-*", "*/*/checkpoints/step-*", "train/*/*/checkpoints/step-*", "1-*/done.json")
ON_POLICY = "on-policy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table; 1 where a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="model folder")
    parser.add_argument("--tokenizer", type=Path, help="instead: make a small random model with the tokenizer in DIR")
    parser.add_argument("--data", help="folder of data sets; made-up ones by default, whose answers are 3 and 4")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--recipes", nargs="*", default=[name for name in packaged() if name not in OWN])
    parser.add_argument("--teacher", help="model folder, for on-policy: of the student's tokenizer")
    parser.add_argument(
        "--set", action="append", default=[], dest="settings", help="change a field, as of ttc train run"
    )
    parser.add_argument("--save", type=Path, help="rows as JSON lines")
    options = parser.parse_args(arguments)
    if options.data is None:
        options.data = str(qwen_like.data(options.out / "data"))
    if options.tokenizer is not None:
        options.model = str(options.out / "model")
        if not (options.out / "model" / "generation_config.json").is_file():
            qwen_like.answering(options.out / "model", words_of=options.tokenizer)
    file = options.save or options.out / "rows.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for recipe in options.recipes:
        if recipe not in {row["recipe"] for row in rows}:
            rows.append(one(recipe, options))
            with file.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    print("\n".join(table(rows)))
    return int(any(not row["ok"] for row in rows))


def one(recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row."""
    out, began = options.out / recipe, resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "TTC_DATA": options.data}
    settings = [word for text in options.settings for word in ("--set", text)]
    words = [*(on_policy(options) if recipe == ON_POLICY else trained(recipe, options)), "--out", str(out), *settings]
    killed = killed_at(words, out, environment)
    run = ttc(words, environment)
    task = ["--task", "gsm8k", "--limit", "2", "--strategy", "direct", "--max-tokens", "16", "--baseline", "none"]
    answers = ttc(["eval", "--model", str(out / "model"), *task, "--out", str(out / "eval")], environment)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    stages = json.loads((out / "run.json").read_text())["stages"] if (out / "run.json").is_file() else []
    return {
        "recipe": recipe,
        "stages": " ".join(stage["kind"] for stage in stages) or "on_policy",
        "killed": killed,
        "updates": updates(out),
        "cpu_s": round(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime),
        "run": run.returncode,
        "eval": answers.returncode,
        "ok": run.returncode == 0 and answers.returncode == 0,
        "error": "" if run.returncode == 0 else run.stderr.strip()[-400:],
        "eval_error": "" if answers.returncode == 0 else answers.stderr.strip()[-400:],
    }


def trained(recipe: str, options: argparse.Namespace) -> list[str]:
    """The command of a recipe."""
    return ["train", "run", recipe, "--model", options.model, "--data", options.data, "--scale", "cpu", "--seed", "1"]


def on_policy(options: argparse.Namespace) -> list[str]:
    """The command of a job in which the teacher supervises what the student writes; so many updates as a recipe has."""
    few = {"train.steps": 4, "train.prompts": 4, "train.n": 2, "train.save_every": 2, "train.eval_every": 4,
           "sampling.max_tokens": 48, "eval.limit": 2, "eval.teachers": False}  # fmt: skip
    settings = [word for key, value in few.items() for word in ("--set", f"{key}={value}")]
    models = ["--method", "on_policy", "--teacher", options.teacher, "--student", options.model]
    return ["distill", "run", *models, "--task", "gsm8k:split=train", "--held-out", "gsm8k", "--seed", "1", *settings]


def ttc(words: Sequence[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `ttc` to its end."""
    return subprocess.run([sys.executable, "-m", "ttc", *words], capture_output=True, text=True, env=environment)


def killed_at(words: Sequence[str], out: Path, environment: dict[str, str]) -> str:
    """Start, wait for a first checkpoint or finished stage, kill; what was there, or that it had ended before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ttc", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    place = ""
    while process.poll() is None and not place:
        time.sleep(0.05)
        place = next((str(path.relative_to(out)) for mark in MARKS for path in out.glob(mark)), "")
    process.send_signal(signal.SIGKILL)
    return place if process.wait() == -signal.SIGKILL else f"ended before ({process.returncode})"


def updates(out: Path) -> int:
    """Updates that moved weights, over all stages."""
    files = sorted(file for depth in ("*", "*/*", "train/*/*") for file in out.glob(f"{depth}/metrics.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sum(1 for row in rows if row.get("grad_norm", 0) > 0)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    lines = ["| recipe | stages | killed at | updates | CPU s | run | eval |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [str(row[name]) for name in ("recipe", "stages", "killed", "updates", "cpu_s", "run", "eval")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
