"""Python, in the sandbox of `ttc.sandbox`: no files, no network, no other processes, bounded time and memory.

The argument is a program, in a fenced block or bare; the result is what it prints. Every call is a fresh process
without the state of the one before it. Cost: one fork of a warm interpreter, about 5 ms. Left out: packages other than
the standard library.
"""

from __future__ import annotations

import re

from ttc.agents.tool import ToolFailure, Use
from ttc.core import Problem
from ttc.sandbox.limits import ResourceLimits
from ttc.sandbox.pool import Sandbox
from ttc.sandbox.probe import probe
from ttc.sandbox.running import Script

_FENCE = re.compile(r"```(?:python|py)?\n(.*?)(?:```|\Z)", re.DOTALL)


def python(*, timeout_s: float = 5.0, memory_mb: int = 256, workers: int = 2, unsafe: bool = False) -> Python:
    """Return the tool.

    Args:
        timeout_s: seconds of one program.
        memory_mb: its memory, in MiB.
        workers: programs that run at once.
        unsafe: run programs without protection when this machine has no sandbox.

    Raises:
        ConfigError: nothing contains programs here, or a limit is out of range.
    """
    limits = ResourceLimits(wall_s=timeout_s, cpu_s=timeout_s, memory_mb=memory_mb, output_kb=64)
    return Python(Sandbox(probe(unsafe=unsafe), workers=workers), limits)


class Python:
    """Runs programs."""

    name = "python"
    about = "runs a Python program (standard library only, no files, no network) and returns what it prints"

    def __init__(self, sandbox: Sandbox, limits: ResourceLimits) -> None:
        self._sandbox, self._limits = sandbox, limits

    def start(self, problem: Problem) -> Use:
        """See `Tool.start`; it has no state."""
        return self._run

    async def _run(self, argument: str) -> str:
        fenced = _FENCE.search(argument)
        ran = await self._sandbox.run(Script(fenced[1] if fenced else argument, self._limits))
        if ran.cause:
            message = ran.errors.strip().splitlines()
            raise ToolFailure("\n".join([ran.cause if not message else message[-1], *ran.output.splitlines()[-3:]]))
        return ran.output.rstrip("\n")
