"""Start a command again in several processes on this machine: what `--processes` does.

The processes find each other through torch's own launcher; `torchrun -m ttc train run ..` does the same, across
machines too, and so does `accelerate launch` where it starts several processes (on CPUs it does so only through MPI).
Left out: passing on the exit code of a run that a health rule ended, which the launcher turns into a plain failure.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

__all__ = ["relaunch", "without"]


def relaunch(processes: int, arguments: Sequence[str]) -> int:
    """Run `ttc` with `arguments` in that many processes, and wait; returns the launcher's exit code."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run([*launcher, "-m", "ttc", *arguments], check=False).returncode


def without(option: str, arguments: Sequence[str]) -> list[str]:
    """`arguments` without an option and its value, written in either way."""
    found: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument == option:
            skip = argument == option and not skip
            continue
        if not argument.startswith(f"{option}="):
            found.append(argument)
    return found
