"""SFT, DPO, KTO or a Bradley-Terry reward model by TRL's own trainers, for models too large for this package's loops.

The rows, what is held out and how it is measured are those of the stages `sft` and `preference`; only the updates are
TRL's, with its checkpoints. A reward model is written to `reward_model`, and the policy passes through. TRL 1.16
(Apache-2.0, the extra `train`) brings FSDP, DeepSpeed and PEFT to these four. It is given token ids, not text, so what
is trained on is what was sampled (TRL's DPO and KTO would tokenise again; their data set is set after they are made,
which leaves their loss and collator untouched). Everything else of TRL's configuration can be set by name. With several
processes all of them train, each on `rows` rows of an update; the first one writes and measures. Left out:
health rules, which TRL's loop does not support; weights of rows, which its losses do not take; TRL's online trainers,
which cannot use our engines, and its experimental ones, which come and go.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from evals.task import Task
from train.base.checkpoint import newest_whole
from train.base.health import check_finite
from train.base.models import load_model, save_tokenizer, turn_tokenizer
from train.base.stage import (
    Setting,
    Stage,
    StageResult,
    check_file,
    check_model,
    kept,
    model_of,
    pass_through,
    rollouts_path,
)
from train.base.world import World
from train.examples.examples import (
    FIELDS,
    Example,
    check_prompts,
    check_rows,
    mismatched,
    parted,
    read_examples,
    right_rollouts,
    within_context,
)
from train.examples.imitation import probabilities, ranked_right
from train.examples.pairs import PAIR_FIELDS, PER_PROBLEM, PairSource, Preferred
from train.measure.measure import TaskFields, gains
from train.offline.epochs import FitFields
from train.reward_models.reward_models import CLASSIFIER, RewardEnsemble, check_kind_of_head, load_reward_model
from train.stages.reward_model import ranked_right as rewards_right
from train.stages.reward_model import whole_pairs
from ttc.concurrent import StopRequest
from ttc.config.recipes import overrides
from ttc.durable import replace_text, replaced_folder, seal
from ttc.engines.shared.compute import attention_options
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, MissingExtra, UnknownName

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")

Method: TypeAlias = Literal["sft", "dpo", "kto", "reward"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Names of TRL's classes for a method, the columns it collates, a row of text to be made with, what is measured."""

    trainer: str
    config: str
    columns: Callable[[Sequence[Any]], list[dict[str, Any]]]
    sample: Mapping[str, Any]
    measure: Callable[[Path, Sequence[Any], int, str], list[float]]


def _check_options(method: Method, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that the method's configuration does not have, or that the stage sets itself."""
    trl, _ = _import()
    names = {field.name for field in dataclasses.fields(getattr(trl, METHODS[method].config))}
    own = {"output_dir", "max_steps", "per_device_train_batch_size", "learning_rate", "seed", "save_steps", "use_cpu"}
    for name in options:
        if name in own:
            raise ConfigError(f"trl: options: {name} is set by the stage's own fields")
        if name not in names:
            raise UnknownName(f"option of TRL's {METHODS[method].config}", name, names - own)


def _import() -> tuple[Any, Any]:
    try:
        import datasets
        import trl
    except ImportError as exc:
        raise MissingExtra("trl", "train") from exc
    return trl, datasets


def _sealing(stop: StopRequest, world: World) -> Any:
    """A callback that seals every checkpoint once it is on the disk: TRL writes them in their place, file by file.

    It also ends a run whose loss or gradient is not finite: TRL itself logs the loss before it instead, and goes on.
    And it ends one that a signal asked to `stop` after the update, with a checkpoint.
    """
    from transformers import TrainerCallback

    class Sealing(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            world.wait()  # every process writes its own random state
            if world.main:
                seal(Path(args.output_dir, f"checkpoint-{state.global_step}"))

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if world.any(stop.asked):
                control.should_save = control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **given: Any) -> None:
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, (int, float))}
            check_finite(numbers, state.global_step)

    return Sealing()


def _log(history: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, float]:
    """Write TRL's log as metrics.jsonl; returns the last value of each metric."""
    rows: dict[int, dict[str, float]] = {}
    for entry in history:
        numbers = {name: float(value) for name, value in entry.items() if isinstance(value, (int, float))}
        rows.setdefault(int(entry.get("step", 0)), {}).update(numbers)
    lines = [json.dumps({**row, "step": step}) for step, row in sorted(rows.items())]
    replace_text(folder / "metrics.jsonl", "".join(line + "\n" for line in lines))
    return {name: value for _, row in sorted(rows.items()) for name, value in row.items() if name != "step"}


def _imitation(rows: Sequence[Example]) -> list[dict[str, Any]]:
    ids = [([*row.prompt_ids, *row.token_ids], [*([-100] * len(row.prompt_ids)), *row.token_ids]) for row in rows]
    return [{"input_ids": whole, "labels": labels} for whole, labels in ids]


def _paired(rows: Sequence[Preferred]) -> list[dict[str, Any]]:
    return [
        {
            "prompt_ids": list(pair.chosen.prompt_ids),
            "chosen_ids": list(pair.chosen.token_ids),
            "rejected_ids": list(pair.rejected.token_ids),
        }
        for pair in rows
    ]


def _labelled(rows: Sequence[Preferred]) -> list[dict[str, Any]]:
    """Single completions, each with the completion of another prompt, for estimating the reference point."""
    single = [(side, good) for pair in rows for side, good in ((pair.chosen, True), (pair.rejected, False))]
    others = mismatched([side for side, _ in single])
    return [
        {
            "prompt_ids": list(side.prompt_ids),
            "completion_ids": list(side.token_ids),
            "KL_completion_ids": list(other.token_ids),
            "label": good,
        }
        for (side, good), other in zip(single, others, strict=True)
    ]


def _compared(rows: Sequence[Preferred]) -> list[dict[str, Any]]:
    return [
        {
            "chosen_ids": [*pair.chosen.prompt_ids, *pair.chosen.token_ids],
            "rejected_ids": [*pair.rejected.prompt_ids, *pair.rejected.token_ids],
        }
        for pair in rows
    ]


def trl(
    *,
    method: Method,
    data: str | None = None,
    rollouts: str | None = None,
    steps: int,
    lr: float,
    rows: int = 32,
    per_problem: int | None = PER_PROBLEM,
    held_out_share: float = 0.1,
    save_every: int = 100,
    measured: TaskFields,
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
        held_out_share: share of prompts that are held out and measured; 0 trains on all rows and measures none.
        save_every: steps between checkpoints.
        measured: see `TaskFields`.
        options: further fields of TRL's configuration, each KEY=VALUE with the value as JSON or text.
    """
    source = PairSource.of("trl", data, rollouts, per_problem)
    for text in options:
        if "=" not in text:
            raise ConfigError(f"trl: options: write KEY=VALUE with a field of TRL's configuration, got {text!r}")
    course = FitFields(steps=steps, lr=lr, rows=rows, held_out_share=held_out_share, save_every=save_every)
    fields = {key: _value(text) for key, text in overrides(options).items()}
    return _Trl(method, source, course, measured, fields)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class _Trl:
    method: Method
    source: PairSource
    course: FitFields
    measured: TaskFields
    options: Mapping[str, Any]

    distributed: ClassVar[bool] = True

    def check(self, has_model: bool) -> None:
        """See `Stage.check`; TRL must be there, and its configuration must have the options."""
        check_model("trl", has_model)
        self.measured.check()
        check_file("trl", self.source.data)
        self._check_rows(late=False)
        _check_options(self.method, self.options)

    def check_family(self, model: Path) -> None:
        """Raise ConfigError for a model without the head that its method needs."""
        if self.method == "reward":
            check_kind_of_head(CLASSIFIER, model)

    def _check_rows(self, late: bool) -> None:
        names = (FIELDS if self.method == "sft" else PAIR_FIELDS) - {"weight"}
        check_rows("trl", self.source.data, names, self.measured.items(), late=late)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return self.measured.tasks()

    def run(self, setting: Setting) -> StageResult:
        source = model_of("trl", setting)
        self._check_rows(late=True)
        tokenizer = turn_tokenizer(source)
        rows: Sequence[Any] = self._rows(setting, source, int(tokenizer.eos_token_id))
        sides = [side for row in rows for side in _sides(row)]
        if self.source.rollouts is not None:
            check_prompts("trl", self.source.rollouts, sides, Text(source), self.measured.items())
        within_context("trl", sides, source)
        train, held_out = parted("trl", rows, self.course.held_out_share, setting)
        folder = setting.folder / ("reward_model" if self.method == "reward" else "model")
        last = self.train(train, source, folder, setting)
        if not setting.world.main:
            return StageResult(str(folder), last)
        pad_id = int(tokenizer.pad_token_id)
        kind = METHODS[self.method]
        name = "ranked" if self.method != "sft" else "likelihood"
        keys, numbers = [row.key for row in held_out], last
        if held_out:
            before, after = (kind.measure(path, held_out, pad_id, setting.device) for path in (source, folder))
            numbers |= gains(name, before, after, setting.seed, keys, smooth=name == "likelihood")
        if self.method == "reward":
            return StageResult(pass_through(setting), numbers)
        return StageResult(str(folder), numbers | self.measured.gains(source, folder, setting))

    def train(self, rows: Sequence[Any], source: Path, target: Path, setting: Setting) -> dict[str, float]:
        """Train on `rows`, from the newest whole checkpoint if there is one, and save into `target`; last metrics."""
        trl, datasets = _import()
        kind, tokenizer = METHODS[self.method], turn_tokenizer(source)
        trainer = getattr(trl, kind.trainer)(
            model=str(source),
            args=getattr(trl, kind.config)(**self._settings(setting, source)),
            train_dataset=datasets.Dataset.from_list([dict(kind.sample)] * 2),
            processing_class=tokenizer,
        )
        trainer.train_dataset = datasets.Dataset.from_list(kind.columns(rows))
        world = setting.world
        trainer.add_callback(_sealing(setting.stop, world))
        last = newest_whole(setting.folder / "trl", _CHECKPOINT, setting.log)
        with setting.stop.heeded():
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
            if world.any(setting.stop.asked):
                raise setting.stop.interrupted(kept(trainer.state.global_step, setting))
        if not world.main:
            trainer.save_model(str(target))  # writes nothing, but has its part of weights that are split
            return {}
        with replaced_folder(target) as fresh:
            trainer.save_model(str(fresh))
            save_tokenizer(tokenizer, fresh)
        return _log(trainer.state.log_history, setting.folder)

    def _settings(self, setting: Setting, source: Path) -> dict[str, Any]:
        """TRL's configuration; fields that the recipe sets come last."""
        course, on_cpu = self.course, setting.device == "cpu"
        return {
            "output_dir": str(setting.folder / "trl"),
            "max_steps": course.steps,
            "per_device_train_batch_size": course.rows,
            "learning_rate": course.lr,
            "seed": setting.seed % (1 << 31),
            "save_steps": course.save_every,
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": on_cpu,
            "bf16": not on_cpu,
            "gradient_checkpointing": False,
            "lr_scheduler_type": "constant",
            "max_length": None,
            "dataloader_pin_memory": not on_cpu,
            "model_init_kwargs": attention_options(source) or None,
            **self.options,
        }

    def _rows(self, setting: Setting, model: Path, end: int) -> Sequence[Example] | Sequence[Preferred]:
        source = self.source
        if self.method != "sft":
            pairs = source.load(setting, model, end)
            return whole_pairs(pairs, model) if self.method == "reward" else pairs
        if source.data is not None:
            return read_examples(source.data, Text(model), end)
        return right_rollouts(rollouts_path(source.rollouts or "", setting), most=source.per_problem)


def _sides(row: Example | Preferred) -> tuple[Example, ...]:
    """The completions of a row."""
    return (row.chosen, row.rejected) if isinstance(row, Preferred) else (row,)


def _likelihoods(model: Path, rows: Sequence[Example], pad_id: int, device: str) -> list[float]:
    return probabilities(load_model(model, device), rows, pad_id)


def _ranks(model: Path, rows: Sequence[Preferred], pad_id: int, device: str) -> list[float]:
    network = load_model(model, device)
    chosen, rejected = [row.chosen for row in rows], [row.rejected for row in rows]
    return ranked_right(network, chosen, rejected, pad_id)


def _rewarded(model: Path, rows: Sequence[Preferred], pad_id: int, device: str) -> list[float]:
    """1 per pair whose chosen completion has the higher reward; one half before there is a reward model."""
    from transformers import AutoConfig

    if not any("SequenceClassification" in name for name in AutoConfig.from_pretrained(model).architectures or ()):
        return [0.5] * len(rows)
    return rewards_right(RewardEnsemble([load_reward_model(model, device)], pad_id), rows)


METHODS: Mapping[str, _Kind] = {
    "sft": _Kind("SFTTrainer", "SFTConfig", _imitation, {"input_ids": [0, 0], "labels": [-100, 0]}, _likelihoods),
    "dpo": _Kind("DPOTrainer", "DPOConfig", _paired, {"prompt": "a", "chosen": "b", "rejected": "c"}, _ranks),
    "kto": _Kind("KTOTrainer", "KTOConfig", _labelled, {"prompt": "a", "completion": "b", "label": True}, _ranks),
    "reward": _Kind("RewardTrainer", "RewardConfig", _compared, {"chosen_ids": [0, 0], "rejected_ids": [0]}, _rewarded),
}
