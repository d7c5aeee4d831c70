"""Saves a checkpoint in children that die at their first, second, .. file operation, and says what is whole after each.

`python dying_saver.py FOLDER` prints a line [step that is resumed, step after saving again] per child, the last one
unhurt. Every child finds steps 5 and 10, with 10 damaged, and saves 10 anew.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch

from train.base.checkpoint import Checkpoints

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def quiet(text: str) -> None:
    """Say nothing."""


def save(folder: Path, *steps: int) -> None:
    """Save a model whose weights are the number of the step."""
    for step in steps:
        model = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(model.weight, step)
        Checkpoints(folder, quiet).save(step, model, {"m": model.bias.detach()}, {"told": step})


def resumed(folder: Path) -> int:
    """The step that is resumed; its weights must be those of the step."""
    model = torch.nn.Linear(2, 2)
    loaded = Checkpoints(folder, quiet).load(model)
    assert loaded is not None
    step = int(loaded[1]["step"])
    assert model.weight[0, 0].item() == step == loaded[1]["told"]
    return step


def die_at(number: int, folder: Path) -> None:
    """Kill this process at its operation `number` on something in `folder`."""
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in OPERATIONS and str(folder) in str(arguments[0]):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def child(number: int, folder: Path) -> int:
    """Save in a child that dies at operation `number`; returns how it ended."""
    process = os.fork()
    if process == 0:
        die_at(number, folder)
        save(folder, 10)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    status, number = -signal.SIGKILL, 0
    while status == -signal.SIGKILL:
        number += 1
        place = Path(sys.argv[1]) / str(number)
        save(place, 5, 10)
        (place / "step-000010" / "optimiser.pt").write_bytes(b"damaged")
        status = child(number, place)
        first = resumed(place)
        save(place, 10)
        sys.stdout.write(json.dumps([first, resumed(place)]) + "\n")
        shutil.rmtree(place)
    sys.exit(status)
