"""Make the packaged family: `python -m train.nano --out DIR --seed 1`.

Stages, in order: tokenizer, teacher, prm, student; `--stage all` runs those without a result, so an interrupted run
resumes where it stopped. What the family can do is measured by `python -m benchmarks.strategies`.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.checkpoint import Checkpoints
from train.base.models import Shape
from train.nano import model, prm, teacher, tokenizer
from train.nano.examples import POLISH, ExampleMixture
from train.nano.teacher import RunLength, TrainingRun
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StageSteps:
    """Steps of each stage; a GPU affords more."""

    teacher_steps: int
    polish_steps: int
    prm_steps: int
    student_steps: int


PRESETS = {
    "cpu": StageSteps(teacher_steps=2800, polish_steps=600, prm_steps=1400, student_steps=1200),
    "gpu": StageSteps(teacher_steps=20_000, polish_steps=4000, prm_steps=8000, student_steps=3000),
}


@dataclass(frozen=True, slots=True)
class FamilyJob:
    """One invocation: output folder, seed, steps, device."""

    out: Path
    seed: int
    device: str
    preset: StageSteps

    @property
    def work(self) -> Path:
        """Return the folder of checkpoints."""
        return self.out / "work"


def make_tokenizer(job: FamilyJob) -> None:
    """Write the tokenizer alone; every model folder also holds a copy."""
    tokenizer.save(job.out / "tokenizer")


def make_teacher(job: FamilyJob) -> None:
    """Train and write the teacher."""
    network = _new(job, model.TEACHER)
    base = TrainingRun(ExampleMixture(), job.seed, RunLength(job.preset.teacher_steps, lr=4e-3), rows=40)
    teacher.train(network, base, job.work / "teacher", job.device)
    polish = TrainingRun(POLISH, job.seed + 1000, RunLength(job.preset.polish_steps, lr=1.5e-3), rows=40)
    teacher.train(network, polish, job.work / "polish", job.device)
    model.save(network, job.out / "teacher")


def make_prm(job: FamilyJob) -> None:
    """Train and write the reward model, on top of the teacher's weights."""
    network = _new(job, model.PRM)
    polished = _new(job, model.TEACHER)
    if Checkpoints(job.work / "polish", logging.info).load(polished) is None:
        raise ConfigError(f"{job.work} has no checkpoint of the teacher's end; make the teacher first")
    prm.deepen(network, polished.state_dict(), model.TEACHER)
    recipe = TrainingRun(prm.MIXTURE, job.seed + 2000, RunLength(job.preset.prm_steps, lr=3e-3), rows=40)
    teacher.train(network, recipe, job.work / "prm", job.device)
    network.config.ttc_prm = prm.READING
    model.save(network, job.out / "prm")


def make_student(job: FamilyJob) -> None:
    """Train and write the base student."""
    length = RunLength(job.preset.student_steps, lr=4e-3)
    recipe = TrainingRun(teacher.STUDENT_MIXTURE, job.seed, length, rows=64)
    network = _new(job, model.STUDENT)
    teacher.train(network, recipe, job.work / "student", job.device)
    model.save(network, job.out / "student")


STAGES: dict[str, tuple[Callable[[FamilyJob], None], str]] = {
    "tokenizer": (make_tokenizer, "tokenizer/tokenizer.json"),
    "teacher": (make_teacher, "teacher/model.safetensors"),
    "prm": (make_prm, "prm/model.safetensors"),
    "student": (make_student, "student/model.safetensors"),
}


def main() -> None:
    """Parse the command line and run the stages."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    torch.set_num_threads(options.threads)
    job = FamilyJob(options.out, options.seed, options.device, PRESETS[options.preset])
    names = list(STAGES) if options.stage == "all" else [options.stage]
    for name in names:
        stage, product = STAGES[name]
        if options.stage == "all" and (job.out / product).exists():
            continue
        logging.info("stage %s", name)
        stage(job)


def _new(job: FamilyJob, shape: Shape) -> Any:
    return model.build(shape, tokenizer.build(), job.seed).to(job.device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train.nano", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the three models")
    parser.add_argument("--seed", type=int, required=True, help="seed of data and weights")
    parser.add_argument("--stage", choices=["all", *STAGES], default="all")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu", help="length of the run")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (bf16 on both)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads on a CPU")
    return parser


if __name__ == "__main__":
    main()
