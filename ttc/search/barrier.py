"""A barrier whose number of members changes: the lock-step schedule of other tools, as an ablation.

There a batch of problems advances level by level: all steps are generated, then all are scored. Members of one run
share one barrier; a problem that ends leaves it, so nobody waits for it. It costs no tokens, only time: the trees are
the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

__all__ = ["Barrier"]


class Barrier:
    """Everybody who joined waits until all of them wait. For one event loop."""

    def __init__(self) -> None:
        self._members = 0
        self._waiting: list[asyncio.Future[None]] = []

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Be a member for a while."""
        self._members += 1
        try:
            yield
        finally:
            self._members -= 1
            self._open_when_complete()

    async def wait(self) -> None:
        """Wait for all other members."""
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        self._open_when_complete()
        try:
            await arrived
        finally:
            if arrived in self._waiting:  # cancelled: its place is taken by nobody
                self._waiting.remove(arrived)

    def _open_when_complete(self) -> None:
        if len(self._waiting) >= self._members:
            waiting, self._waiting = self._waiting, []
            for arrived in waiting:
                if not arrived.done():
                    arrived.set_result(None)
