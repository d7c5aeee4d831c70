"""Run oracles on a copy of the packages, each time in a fork: nothing of the toolkit is loaded before, all else is.

An interpreter of its own for every mutant would spend most of its time on starting. Bytecode is made once, but not for
the files that will change: it is told from stale bytecode by size and second of change, and a mutant may keep both.
"""

from __future__ import annotations

import compileall
import importlib.util
import math
import os
import pathlib
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
BROKEN, MEMORY = 99, 3 << 30


def copy_packages(folder: pathlib.Path) -> None:
    """Copy what the oracles need, and make its bytecode."""
    for name in ("ttc", "evals", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    compileall.compile_dir(folder, quiet=1)


def will_change(folder: pathlib.Path, files: Iterable[str]) -> None:
    """Drop the bytecode of these files, and write none from here on."""
    sys.dont_write_bytecode = True
    for file in files:
        pathlib.Path(importlib.util.cache_from_source(str(folder / file))).unlink(missing_ok=True)


def in_fork(work: Callable[[], int], seconds: float) -> int | None:
    """The exit code of `work` in a process of its own; None when it takes more than `seconds` of the processor.

    What waits for ever takes none, so it is also ended after a minute and ten times as long.
    """
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            os._exit(work())
        finally:  # whatever happens, the child must not go on as its parent
            os._exit(BROKEN)
    deadline = time.monotonic() + 60 + 10 * seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == BROKEN:
                raise RuntimeError("the tests could not be started")
            return None if code in (-signal.SIGKILL, -signal.SIGXCPU) else code
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_tests(copy: pathlib.Path, arguments: Sequence[str], plugins: Sequence[Any] = ()) -> int:
    """The exit code of pytest in the copy, silent; for a process that does nothing else."""
    import pytest

    os.chdir(copy)
    sys.path.insert(0, str(copy))
    for name in [name for name in sys.modules if name.split(".")[0] in ("ttc", "evals", "tests")]:
        del sys.modules[name]
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    early = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis was imported before pytest could rewrite it
    without = [word for name in ("cacheprovider", "xdist", "anyio") for word in ("-p", f"no:{name}")]
    options = ["-x", "-q", *without, "-W", early, "--no-header"]
    return int(pytest.main([*options, *arguments], plugins=plugins))


def import_what_every_fork_needs() -> None:
    """Load everything heavy that is not of the toolkit."""
    import asyncio  # noqa: F401
    import ssl  # noqa: F401

    import hypothesis.strategies  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
