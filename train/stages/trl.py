"""SFT, DPO, KTO or a Bradley-Terry reward model through TRL's own trainers, for models beyond this package's loops.

The rows, what is held out and how it is measured are those of the stages `sft` and `preference`; only the updates are
TRL's (`train.offline.trl_trainers`), with its checkpoints. A reward model is written to `reward_model`, and the policy
passes through. Needs the extra `train`. Left out: health rules, which TRL's loop does not ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evals.task import Task
from train.base.models import load_model, load_tokenizer
from train.base.optimiser import Schedule
from train.base.stage import (
    Setting,
    Stage,
    StageResult,
    check_file,
    check_model,
    check_share,
    model_of,
    pass_through,
    rollouts_path,
)
from train.examples.examples import Example, parted, read_examples, right_rollouts
from train.examples.imitation import probabilities, ranked_right
from train.examples.pairs import PairSource, Preferred
from train.measure.measure import gains, task_gains
from train.offline.epochs import FitPlan
from train.offline.trl_trainers import Method, TrlJob, check_options, run_trl
from train.registries import make_task
from ttc.config.recipes import overrides
from ttc.engines.shared.text import Text


def trl(
    *,
    method: Method,
    data: str | None = None,
    rollouts: str | None = None,
    steps: int,
    lr: float,
    rows: int = 32,
    per_problem: int | None = 4,
    held_out_share: float = 0.1,
    held_out: str | None = None,
    held_out_limit: int = 128,
    save_every: int = 100,
    options: tuple[str, ...] = (),
) -> Stage:
    """Train with TRL.

    Args:
        method: sft, dpo, kto or reward.
        data: a JSON-lines file: completions for sft, pairs for the others.
        rollouts: a stage of this run that recorded rollouts, such as 2-sample, or a rollouts.jsonl.
        steps: updates.
        lr: learning rate.
        rows: rows per update and device.
        per_problem: most rows of one problem's rollouts; None is all.
        held_out_share: share of prompts that are held out and measured.
        held_out: also measure the accuracy on this task, NAME or NAME:KEY=VALUE,...
        held_out_limit: most problems of that task.
        save_every: steps between checkpoints.
        options: further fields of TRL's configuration, each KEY=VALUE with the value as JSON or text.
    """
    source = PairSource("trl", None if data is None else Path(data).expanduser(), rollouts, per_problem)
    source.check()
    Schedule(lr, steps)
    check_share("trl", held_out_share)
    return _Trl(
        method=method,
        source=source,
        pace=FitPlan(steps, rows, steps, save_every),
        lr=lr,
        held_out_share=held_out_share,
        task=None if held_out is None else make_task(held_out),
        limit=held_out_limit,
        options={key: _value(text) for key, text in overrides(options).items()},
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class _Trl:
    method: Method
    source: PairSource
    pace: FitPlan
    lr: float
    held_out_share: float
    task: Task | None
    limit: int
    options: Mapping[str, Any]

    def check(self, has_model: bool) -> None:
        """See `Stage.check`; TRL must be there, and its configuration must have the options."""
        check_model("trl", has_model)
        check_file("trl", self.source.data)
        check_options(self.method, self.options)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """See `Asking.tasks`."""
        return {} if self.task is None else {"held_out": (self.task, self.limit)}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`."""
        source = model_of("trl", setting)
        tokenizer = load_tokenizer(source)
        rows: Sequence[Any] = self._rows(setting, source, int(tokenizer.eos_token_id))
        train, held_out = parted("trl", rows, self.held_out_share, setting)
        pace, folder = self.pace, setting.folder / ("reward_model" if self.method == "reward" else "model")
        job = TrlJob(
            source, setting.folder, folder, pace.steps, pace.rows, self.lr, setting.seed, setting.device,
            pace.save_every, self.options, setting.log,
        )  # fmt: skip
        last = run_trl(self.method, train, job)
        pad_id = int(tokenizer.pad_token_id)
        measure = _MEASURES[self.method]
        before, after = (measure(path, held_out, pad_id, setting.device) for path in (source, folder))
        keys = [row.key for row in held_out]
        numbers = {
            **last,
            **gains("ranked" if self.method != "sft" else "likelihood", before, after, setting.seed, keys),
        }
        if self.method == "reward":
            return StageResult(pass_through(setting), numbers)
        if self.task is not None:
            numbers |= task_gains(self.task, self.limit, source, folder, setting)
        return StageResult(str(folder), numbers)

    def _rows(self, setting: Setting, model: Path, end: int) -> Sequence[Example] | Sequence[Preferred]:
        source = self.source
        if self.method != "sft":
            return source.load(setting, model, end)
        if source.data is not None:
            return read_examples(source.data, Text(model), end)
        return right_rollouts(rollouts_path(source.rollouts or "", setting), most=source.per_problem)


def _likelihoods(model: Path, rows: Sequence[Example], pad_id: int, device: str) -> list[float]:
    return probabilities(load_model(model, device), rows, pad_id)


def _ranks(model: Path, rows: Sequence[Preferred], pad_id: int, device: str) -> list[float]:
    network = load_model(model, device)
    chosen, rejected = [row.chosen for row in rows], [row.rejected for row in rows]
    return ranked_right(network, chosen, rejected, pad_id)


@torch.no_grad()
def _rewarded(model: Path, rows: Sequence[Preferred], pad_id: int, device: str) -> list[float]:
    """1 per pair whose chosen completion has the higher reward; one half before there is a reward model."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if not any("SequenceClassification" in name for name in AutoConfig.from_pretrained(model).architectures or ()):
        return [0.5] * len(rows)
    network = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).to(device).eval()

    def reward(example: Example) -> float:
        ids = torch.tensor([[*example.prompt_ids, *example.token_ids]], device=device)
        return float(network(input_ids=ids).logits[0, 0])

    return [float(reward(row.chosen) > reward(row.rejected)) for row in rows]


_MEASURES: Mapping[str, Callable[[Path, Sequence[Any], int, str], list[float]]] = {
    "sft": _likelihoods,
    "dpo": _ranks,
    "kto": _ranks,
    "reward": _rewarded,
}
