"""What can be refused of a model that runs in this process before torch is imported: device, threads, folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias

from ttc.config.values import check_threads
from ttc.engines.shared.folder import check_name
from ttc.engines.shared.shape import read_config
from ttc.errors import ConfigError

__all__ = ["Dtype", "check_model", "check_place"]

Dtype: TypeAlias = Literal["auto", "bfloat16", "float32", "bf16", "fp32"]
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


def check_place(owner: str, device: str, threads: int) -> None:
    """Refuse a device that does not exist anywhere, and threads; raises ConfigError."""
    check_threads(owner, threads)
    if not _DEVICE.fullmatch(device):
        raise ConfigError(f"{owner}: device must be auto, cpu or cuda, got {device!r}")


def check_model(model: str | None) -> None:
    """Refuse a model that is neither a model folder nor a hub id; asks no hub. Raises ConfigError."""
    if model is None:
        return
    folder = Path(model).expanduser()
    if folder.is_dir():
        read_config(folder)
    else:
        check_name(model)
