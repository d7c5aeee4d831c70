"""Make the packaged family (`python -m train.nano`): a teacher, a reward model grown from it, and a student.

The family's training is its own, not a chain of other stages: its texts change with the progress of the run, hide
tokens that must not be learnt, and its reward model starts with the teacher's layers (`train/nano/`). With equal steps
and seed the weights are those of `make nano`. All three are in the folder `family`; the teacher goes on to the next
stage. Measured per member is the probability per token of fresh examples of what it is trained on, under random and
under trained weights; accuracy is for `ttc eval`. Cost: `ttc/nano/README.md`. It resumes from its own checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.models import Shape
from train.base.stage import Setting, Stage, StageResult
from train.measure.measure import gains
from train.nano import examples, model, prm, teacher, tokenizer
from train.nano.__main__ import STAGES, FamilyJob, StageSteps
from ttc import seeds
from ttc.config.values import at_least
from ttc.durable import replace_link
from ttc.errors import ConfigError

_MEMBERS: Mapping[str, tuple[Shape, examples.ExampleMixture]] = {
    "teacher": (model.TEACHER, examples.POLISH),
    "prm": (model.PRM, prm.MIXTURE),
    "student": (model.STUDENT, teacher.STUDENT_MIXTURE),
}


def nano(
    *, teacher_steps: int = 2800, polish_steps: int = 600, prm_steps: int = 1400, student_steps: int = 1200,
    fresh: int = 96,
) -> Stage:  # fmt: skip
    """Train the family.

    Args:
        teacher_steps: updates of the teacher.
        polish_steps: its last updates, on work that is checked again.
        prm_steps: updates of the reward model.
        student_steps: updates of the student.
        fresh: examples that each member is measured on.
    """
    preset = StageSteps(teacher_steps, polish_steps, prm_steps, student_steps)
    at_least("nano", 1, **asdict(preset), fresh=fresh)
    return _Nano(preset, fresh)


@dataclass(frozen=True, slots=True)
class _Nano:
    preset: StageSteps
    fresh: int

    def check(self, has_model: bool) -> None:
        if has_model:
            raise ConfigError("nano starts from nothing: make it the first stage and give no --model")

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`; members that are there are not made again."""
        job = FamilyJob(setting.folder / "family", setting.seed, setting.device, self.preset)
        for name, (make, product) in STAGES.items():
            if not (job.out / product).exists():
                setting.log(f"nano: {name}")
                make(job)
        link = setting.folder / "model"
        replace_link(link, job.out / "teacher")
        numbers: dict[str, float] = {}
        for name, (shape, mixture) in _MEMBERS.items():
            numbers |= self._gains(name, shape, mixture, job.out / name, setting)
        return StageResult(str(link), numbers)

    def _gains(
        self, name: str, shape: Shape, mixture: examples.ExampleMixture, folder: Path, setting: Setting
    ) -> dict[str, float]:
        """Probability per learnt token of fresh examples, before and after."""
        from transformers import AutoModelForCausalLM

        words = tokenizer.build()
        seed = seeds.derive(setting.seed, "fresh examples", name)
        progress = random.Random(seed)
        batch = [examples.example(words, mixture, seed, i, progress.random()) for i in range(self.fresh)]
        random_weights = model.build(shape, words, setting.seed).to(setting.device)
        trained = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(setting.device)
        before, after = ([_probability(one, e, setting.device) for e in batch] for one in (random_weights, trained))
        return gains(f"likelihood_{name}", before, after, setting.seed, smooth=True)


@torch.no_grad()
def _probability(network: Any, example: examples.MaskedIds, device: str) -> float:
    """The geometric mean of the probabilities of the tokens that are learnt."""
    ids, labels = torch.tensor([example.ids], device=device), torch.tensor(example.labels[1:], device=device)
    logits = network(input_ids=ids, use_cache=False).logits[0, :-1].float()
    mask = labels != examples.IGNORE
    return float((-torch.nn.functional.cross_entropy(logits[mask], labels[mask])).exp())
