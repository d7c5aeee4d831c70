"""The one door to TRL: its stable trainers for SFT, DPO, KTO and reward models, on our rows.

TRL 1.16 (Apache-2.0) brings FSDP, DeepSpeed and PEFT to these four, for models too large for our loops. It is given
token ids, not text, so what is trained on is what was sampled (TRL's DPO and KTO would tokenise again; their data set
is set after they are made, which leaves their loss and collator untouched). Everything else of TRL's configuration can
be set by name. Left out: TRL's online trainers, which cannot take our engines, and its experimental ones, which come
and go.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from train.base.models import load_tokenizer
from train.base.seal import newest_whole, seal
from train.examples.examples import Example
from train.examples.pairs import Preferred
from ttc.durable import replace_text, replaced_folder
from ttc.errors import ConfigError, MissingExtra, UnknownName

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")

Method: TypeAlias = Literal["sft", "dpo", "kto", "reward"]


@dataclass(frozen=True, slots=True)
class TrlJob:
    """What a trainer is asked for: where it starts, works and writes its model, how long, and fields of TRL's."""

    source: Path
    folder: Path
    target: Path
    steps: int
    rows: int
    lr: float
    seed: int
    device: str
    save_every: int
    options: Mapping[str, Any]
    log: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Names of TRL's classes for a method, the columns it collates, and a row of text to be made with."""

    trainer: str
    config: str
    columns: Callable[[Sequence[Any], int], list[dict[str, Any]]]
    sample: Mapping[str, Any]


def run_trl(method: Method, rows: Sequence[Example] | Sequence[Preferred], job: TrlJob) -> dict[str, float]:
    """Train on `rows` (examples for sft, pairs for the others) and save into `job.target`; the last metrics.

    The newest whole checkpoint in the folder is gone on from.

    Raises:
        MissingExtra: TRL is not installed.
        ConfigError: an option that TRL's configuration does not have.
    """
    trl, datasets = _import()
    kind = METHODS[method]
    config = _config(trl, kind, job)
    tokenizer = load_tokenizer(job.source)
    trainer = getattr(trl, kind.trainer)(
        model=str(job.source),
        args=config,
        train_dataset=datasets.Dataset.from_list([dict(kind.sample)] * 2),
        processing_class=tokenizer,
    )
    trainer.train_dataset = datasets.Dataset.from_list(kind.columns(rows, job.rows))
    trainer.add_callback(_sealing())
    last = newest_whole(job.folder / "trl", _CHECKPOINT, job.log)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    with replaced_folder(job.target) as fresh:
        trainer.save_model(str(fresh))
        tokenizer.save_pretrained(fresh)
    return _log(trainer.state.log_history, job.folder)


def check_options(method: Method, options: Mapping[str, Any]) -> None:
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


def _config(trl: Any, kind: _Kind, job: TrlJob) -> Any:
    settings = {
        "output_dir": str(job.folder / "trl"),
        "max_steps": job.steps,
        "per_device_train_batch_size": job.rows,
        "learning_rate": job.lr,
        "seed": job.seed % (1 << 31),
        "save_steps": job.save_every,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": job.device == "cpu",
        "bf16": job.device != "cpu",
        "gradient_checkpointing": False,
        "lr_scheduler_type": "constant",
        "max_length": None,
        "dataloader_pin_memory": job.device != "cpu",
    }
    return getattr(trl, kind.config)(**{**settings, **job.options})


def _sealing() -> Any:
    """A callback that seals every checkpoint once it is on the disk: TRL writes them in their place, file by file."""
    from transformers import TrainerCallback

    class Sealing(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            seal(Path(args.output_dir, f"checkpoint-{state.global_step}"))

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


def _imitation(rows: Sequence[Example], batch: int) -> list[dict[str, Any]]:
    def row(example: Example) -> dict[str, Any]:
        labels = [*([-100] * len(example.prompt_ids)), *example.token_ids]
        return {"input_ids": [*example.prompt_ids, *example.token_ids], "labels": labels}

    return [row(example) for example in rows]


def _paired(rows: Sequence[Preferred], batch: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt_ids": list(pair.chosen.prompt_ids),
            "chosen_ids": list(pair.chosen.token_ids),
            "rejected_ids": list(pair.rejected.token_ids),
        }
        for pair in rows
    ]


def _labelled(rows: Sequence[Preferred], batch: int) -> list[dict[str, Any]]:
    """Single completions; the mismatched ones rotate within batches, as TRL does it."""
    single = [(side, good) for pair in rows for side, good in ((pair.chosen, True), (pair.rejected, False))]
    columns = []
    for start in range(0, len(single), batch):
        part = single[start : start + batch]
        for number, (side, good) in enumerate(part):
            other = part[number - 1][0]
            columns.append({
                "prompt_ids": list(side.prompt_ids),
                "completion_ids": list(side.token_ids),
                "KL_completion_ids": list(other.token_ids),
                "label": good,
            })  # fmt: skip
    return columns


def _compared(rows: Sequence[Preferred], batch: int) -> list[dict[str, Any]]:
    return [
        {
            "chosen_ids": [*pair.chosen.prompt_ids, *pair.chosen.token_ids],
            "rejected_ids": [*pair.rejected.prompt_ids, *pair.rejected.token_ids],
        }
        for pair in rows
    ]


METHODS: Mapping[str, _Kind] = {
    "sft": _Kind("SFTTrainer", "SFTConfig", _imitation, {"input_ids": [0, 0], "labels": [-100, 0]}),
    "dpo": _Kind("DPOTrainer", "DPOConfig", _paired, {"prompt": "a", "chosen": "b", "rejected": "c"}),
    "kto": _Kind("KTOTrainer", "KTOConfig", _labelled, {"prompt": "a", "completion": "b", "label": True}),
    "reward": _Kind("RewardTrainer", "RewardConfig", _compared, {"chosen_ids": [0, 0], "rejected_ids": [0]}),
}
