"""What methods that learn by imitation share: the fields of `train`'s stage `sft`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distill.spec.method import Data, Job
from ttc.errors import ConfigError

__all__ = ["EPOCHS", "sft_stage"]

EPOCHS = 3.0
_DEFAULTS: Mapping[str, Any] = {"lr": 5e-4, "rows": 32}
_HELD_OUT = 8
"""Rows that are held out and measured, about, where they are between 5 and 30 % of all."""


def sft_stage(job: Job, data: Data | None, **own: object) -> tuple[str, Mapping[str, Any]]:
    """`sft` on the rows of the job, `spec.train` laid over `own`; `epochs` there, or 3, become steps.

    Raises:
        ConfigError: there are no rows, or both epochs and steps are given.
    """
    if data is None or data.num_rows == 0:
        raise ConfigError("no row is left to learn from; `ttc distill report` shows what the filters dropped, and why")
    held_out = min(max(_HELD_OUT / data.num_rows, 0.05), 0.3)
    given = {**_DEFAULTS, "held_out_share": held_out, **own, **job.spec.train}
    epochs = given.pop("epochs", None)
    if epochs is not None and "steps" in given:
        raise ConfigError("train: give epochs or steps, not both")
    rows = int(given["rows"])
    if "steps" not in given:
        given["steps"] = max(1, math.ceil(data.num_rows * float(epochs or EPOCHS) / rows))
    return "sft", {"data": str(data.path), **given}
