"""Fair shares of an engine: who may start the next draw.

Each request holds as many slots as it has draws running. With k slots it may take another only while k < alpha times
the free ones (Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet switches"), so one
wide search fills most of an idle engine and never all of it: a request that holds nothing finds a slot. Freed slots go
to the request that holds fewest, the earlier one on a tie.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ttc.errors import ConfigError

__all__ = ["FairGate", "Share"]

ALPHA = 4.0


@dataclass(slots=True, eq=False)
class Share:
    """One request's slots, and its draws that wait for one."""

    arrival: int
    held: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairGate:
    """At most `capacity` draws at once; for one event loop."""

    def __init__(self, capacity: int, alpha: float = ALPHA) -> None:
        if capacity < 1:
            raise ConfigError(f"an engine must take at least one draw at once, got {capacity}")
        self.capacity, self._alpha = capacity, alpha
        self.held = 0
        self._arrivals = itertools.count()
        self._waiting: dict[int, Share] = {}

    @property
    def num_waiting(self) -> int:
        """Draws that wait for a slot."""
        return sum(len(share.waiting) for share in self._waiting.values())

    def share(self) -> Share:
        """The share of a new request."""
        return Share(next(self._arrivals))

    @contextlib.asynccontextmanager
    async def slot(self, share: Share) -> AsyncIterator[None]:
        """Hold one slot for `share` while a draw runs."""
        await self._take(share)
        try:
            yield
        finally:
            share.held -= 1
            self.held -= 1
            self._hand_out()

    async def _take(self, share: Share) -> None:
        if not share.waiting and self._may(share):
            self._grant(share)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append(turn)
        self._waiting[share.arrival] = share
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted and cancelled at once: pass it on
                share.held -= 1
                self.held -= 1
            elif turn in share.waiting:
                share.waiting.remove(turn)
                if not share.waiting:
                    self._waiting.pop(share.arrival, None)
            self._hand_out()
            raise

    def _may(self, share: Share) -> bool:
        free = self.capacity - self.held
        return free > 0 and share.held < max(self._alpha * free, 1)

    def _grant(self, share: Share) -> None:
        share.held += 1
        self.held += 1

    def _hand_out(self) -> None:
        while self._waiting:
            able = [share for share in self._waiting.values() if self._may(share)]
            if not able:
                return
            share = min(able, key=lambda item: (item.held, item.arrival))
            turn = share.waiting.popleft()
            if not share.waiting:
                del self._waiting[share.arrival]
            if not turn.done():
                self._grant(share)
                turn.set_result(None)
