"""A run's metrics in TensorBoard's or Weights & Biases' own form, for those who live there; both are optional."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.report.data import RunData
from ttc.errors import ConfigError


def scalars(run: RunData) -> Iterator[tuple[str, int, dict[str, float]]]:
    """(stage, step, metrics) of every logged step, in order."""
    for stage in run.stages:
        for row in stage.rows:
            values = {name: float(value) for name, value in row.items() if name != "step"}
            yield stage.name, int(row["step"]), values


def to_tensorboard(run: RunData, folder: Path) -> None:
    """Write an event file per stage below `folder`; raises ConfigError when tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as exc:
        raise ConfigError("tensorboard is not installed; run: pip install tensorboard") from exc
    writers = {stage.name: SummaryWriter(str(folder / stage.name)) for stage in run.stages if stage.rows}
    for stage, step, values in scalars(run):
        for name, value in values.items():
            writers[stage].add_scalar(name, value, step)
    for writer in writers.values():
        writer.close()


def to_wandb(run: RunData, project: str) -> None:
    """Send the metrics as one run, a prefix per stage; raises ConfigError when wandb is not installed."""
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError as exc:
        raise ConfigError("wandb is not installed; run: pip install wandb") from exc
    with wandb.init(project=project, name=f"{run.recipe}-{run.seed}") as session:
        for number, (stage, step, values) in enumerate(scalars(run)):
            session.log({f"{stage}/{name}": value for name, value in values.items()} | {f"{stage}/step": step}, number)
