"""The one training loop of the family: loss, step, log, checkpoint, resume.

Data come from `loss_at(step)`, a pure function of the step, so an interrupted run goes on as if it had
not been. Cost: none of its own. Left out: several devices, gradient accumulation.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.checkpoint import Checkpoints
from train.nano.optim import Optimiser

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Length and pace of a run; a checkpoint every `save_every` steps."""

    steps: int
    lr: float
    save_every: int = 500
    log_every: int = 100


def fit(network: Any, loss_at: Callable[[int], torch.Tensor], run: Run, folder: Path) -> None:
    """Train `network` in place; resumes from the newest whole checkpoint in `folder`."""
    optimiser = Optimiser(network, run.lr, run.steps)
    checkpoints = Checkpoints(folder, _log.info)
    start = _resume(checkpoints, network, optimiser)
    began = time.monotonic()
    network.train()
    for step in range(start, run.steps):
        loss = loss_at(step)
        loss.backward()
        optimiser.step(step)
        if step % run.log_every == 0:
            _log.info("step %d loss %.4f %.0f s", step, loss.item(), time.monotonic() - began)
        if (step + 1) % run.save_every == 0 or step + 1 == run.steps:
            checkpoints.save(step + 1, network, {"parts": optimiser.state()}, {})
    network.eval()


def autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return the bf16 context used on every device: about 1.5 times fp32 on one CPU thread."""
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def _resume(checkpoints: Checkpoints, network: Any, optimiser: Optimiser) -> int:
    saved = checkpoints.load(network)
    if saved is None:
        return 0
    parts, state = saved
    optimiser.load(parts["parts"])
    _log.info("resumed at step %d", state["step"])
    return int(state["step"])
