"""Python, in the sandbox of `ttc.sandbox`: no files, no network, no other processes, bounded time and memory.

The argument is a program, in fenced blocks or bare; the result is what it prints. A program that prints nothing, as a
cell of a notebook may, is told so. Every call is a fresh process without the state of the one before it. Cost: one fork
of a warm interpreter, about 5 ms. Left out: packages other than the standard library.
"""

from __future__ import annotations

import re

from ttc.agents.tool import ToolFailure, Use
from ttc.config.values import above, at_most
from ttc.core import Problem
from ttc.sandbox.limits import ResourceLimits
from ttc.sandbox.pool import Sandbox
from ttc.sandbox.probe import probe
from ttc.sandbox.running import Script, ScriptResult

_FENCE = re.compile(r"```(?:python|py)?\n(.*?)(?:```|\Z)", re.DOTALL)
_PLACE = re.compile(r'File "program\.py", (line \d+)')
MAX_TIMEOUT_S = 86400.0
_SILENT = "(no output: print what you want to know)"


def python(*, timeout_s: float = 5.0, memory_mb: int = 256, workers: int = 2, unsafe: bool = False) -> Python:
    """Return the tool.

    Args:
        timeout_s: seconds of one program, without those in which it waits for its turn.
        memory_mb: its memory, in MiB.
        workers: programs that run at once.
        unsafe: run programs without protection when this machine has no sandbox.

    Raises:
        ConfigError: nothing contains programs here, or a limit is out of range.
    """
    above("tool python", 0, timeout_s=timeout_s)
    at_most("tool python", MAX_TIMEOUT_S, timeout_s=timeout_s)
    limits = ResourceLimits(wall_s=timeout_s, cpu_s=timeout_s, memory_mb=memory_mb, output_kb=64)
    return Python(Sandbox(probe(unsafe=unsafe), workers=workers), limits)


class Python:
    """Runs programs."""

    name = "python"
    has_own_limit = True
    about = "runs a Python program (standard library only, no files, no network) and returns what it prints"

    def __init__(self, sandbox: Sandbox, limits: ResourceLimits) -> None:
        self._sandbox, self._limits = sandbox, limits

    def start(self, problem: Problem) -> Use:
        """See `Tool.start`; it has no state."""
        return self._run

    async def _run(self, argument: str) -> str:
        blocks = _FENCE.findall(argument)
        ran = await self._sandbox.run(Script("\n".join(blocks) if blocks else argument, self._limits))
        if ran.cause:
            raise ToolFailure("\n".join([self._reason(ran), *ran.output.splitlines()[-3:]]))
        return ran.output.rstrip("\n") or _SILENT

    def _reason(self, ran: ScriptResult) -> str:
        """Why a program failed: its exception and where it was raised, or the limit that it reached."""
        lines = [line.strip(" |") for line in ran.errors.splitlines() if any(map(str.isalnum, line))]
        if lines and ran.cause.startswith("exit code"):
            places = _PLACE.findall(ran.errors)
            return f"{lines[-1]} ({places[-1]})" if places else lines[-1]
        limits = {
            "wall time": f"no end after {self._limits.wall_s:g} s",
            "output": f"more than {self._limits.output_kb} KiB of output",
        }
        return limits.get(ran.cause, ran.cause)
