"""What workers of one run of the tests make once and share: the first makes it, the others wait for it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """The folder that `make` gave when it was called with a new folder of this run, by whichever worker came first."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place = root / f"{name}.txt"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.write_text(str(make(factory.mktemp(name))), encoding="utf-8")
    return Path(place.read_text(encoding="utf-8"))
