"""Make the embedded family: `python -m train.nano --out DIR --seed 1`.

Stages, in order: tokenizer, teacher, rollouts, prm, student, report; `--stage all` runs those whose
result is not there yet, so an interrupted run goes on where it stopped.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.nano import loop, model, prm, report, student, teacher, tokenizer
from train.nano.examples import Mixture
from train.nano.sample import Sampler


@dataclass(frozen=True, slots=True)
class Preset:
    """Steps of each stage; a GPU affords more."""

    teacher_steps: int
    prm_steps: int
    prm_attempts: int
    student_steps: int


PRESETS = {
    "cpu": Preset(teacher_steps=2800, prm_steps=1200, prm_attempts=9_000, student_steps=1200),
    "gpu": Preset(teacher_steps=20_000, prm_steps=8000, prm_attempts=60_000, student_steps=3000),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One invocation: where, with which seed, how long, on what."""

    out: Path
    seed: int
    device: str
    preset: Preset
    problems: int

    @property
    def work(self) -> Path:
        """Return the folder of checkpoints and labelled attempts."""
        return self.out / "work"


def make_tokenizer(job: Job) -> None:
    """Write the tokenizer alone; every model folder also holds a copy."""
    tokenizer.save(job.out / "tokenizer")


def make_teacher(job: Job) -> None:
    """Train and write the teacher."""
    run = loop.Run(job.preset.teacher_steps, lr=4e-3)
    recipe = teacher.Recipe(model.TEACHER, Mixture(), job.seed, run, rows=40)
    network = teacher.train(recipe, job.work / "teacher.pt", job.device)
    model.save(network, job.out / "teacher")


def make_rollouts(job: Job) -> None:
    """Let the teacher attempt training problems, and keep them labelled."""
    sampler = Sampler(job.out / "teacher", job.device)
    rows = prm.collect(sampler, _prm_recipe(job))
    prm.write(rows, job.work / "rollouts.pt")


def make_prm(job: Job) -> None:
    """Train and write the reward model."""
    rows = prm.read(job.work / "rollouts.pt")
    body = _load_teacher(job)
    network = prm.train(_prm_recipe(job), body, rows, job.work / "prm.pt", job.device)
    model.save(network, job.out / "prm")


def make_student(job: Job) -> None:
    """Train and write the base student."""
    recipe = student.recipe(job.seed, job.preset.student_steps)
    network = teacher.train(recipe, job.work / "student.pt", job.device)
    model.save(network, job.out / "student")


def make_report(job: Job) -> None:
    """Measure the family and print the table of the model card."""
    figures = report.measure(job.out, job.problems, job.seed, job.device)
    print(report.write(figures, job.out / "report.jsonl"))


STAGES: dict[str, tuple[Callable[[Job], None], str]] = {
    "tokenizer": (make_tokenizer, "tokenizer/tokenizer.json"),
    "teacher": (make_teacher, "teacher/model.safetensors"),
    "rollouts": (make_rollouts, "work/rollouts.pt"),
    "prm": (make_prm, "prm/model.safetensors"),
    "student": (make_student, "student/model.safetensors"),
    "report": (make_report, "report.jsonl"),
}


def main() -> None:
    """Parse the command line and run the stages."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    torch.set_num_threads(options.threads)
    job = Job(options.out, options.seed, options.device, PRESETS[options.preset], options.problems)
    chosen = list(STAGES) if options.stage == "all" else [options.stage]
    for name in chosen:
        stage, product = STAGES[name]
        if options.stage == "all" and (job.out / product).exists():
            continue
        logging.info("stage %s", name)
        stage(job)


def _prm_recipe(job: Job) -> prm.Recipe:
    run = loop.Run(job.preset.prm_steps, lr=2e-3)
    return prm.Recipe(job.seed, run, rows=40, attempts=job.preset.prm_attempts)


def _load_teacher(job: Job) -> Any:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(job.out / "teacher", dtype="float32")
    return loaded.to(job.device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train.nano", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the three models")
    parser.add_argument("--seed", type=int, required=True, help="seed of data and weights")
    parser.add_argument("--stage", choices=["all", *STAGES], default="all")
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), default="cpu", help="length of the run"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (bf16 on both)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads on a CPU")
    parser.add_argument(
        "--problems", type=int, default=200, help="problems per figure of the report"
    )
    return parser


if __name__ == "__main__":
    main()
