"""A scripted engine that takes its time, for tests of what happens meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ttc.core import Path, Prompt
from ttc.engines.scripted import ScriptedEngine


class SlowEngine(ScriptedEngine):
    """Every draw takes `delay_s`; `num_live` draws run."""

    def __init__(self, delay_s: float, *, max_concurrency: int = 64, text: str = "The answer is 7.") -> None:
        def script(prompt: Prompt, path: Path, key: int) -> str:
            return text

        super().__init__(script, max_concurrency=max_concurrency)
        self._delay_s = delay_s

    async def _wait(self, path: Path) -> None:
        await asyncio.sleep(self._delay_s)

    @property
    def num_live(self) -> int:
        """Draws that run."""
        return self._live


class GatedEngine(SlowEngine):
    """Draws end when they are let through, in the order in which they began."""

    def __init__(self, *, max_concurrency: int) -> None:
        super().__init__(0, max_concurrency=max_concurrency)
        self._gate = asyncio.Semaphore(0)

    async def _wait(self, path: Path) -> None:
        await self._gate.acquire()

    def let_through(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Let `count` more draws end; called in any thread."""
        for _ in range(count):
            loop.call_soon_threadsafe(self._gate.release)


def until(test: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Whether `test` holds within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if test():
            return True
        time.sleep(0.01)
    return test()
