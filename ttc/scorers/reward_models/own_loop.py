"""An event loop in a thread of its own, for connections that outlive the caller's loop.

A scorer has no `close` and may serve one event loop after another, while a connection dies with the loop that opened
it. So the connections live here; they are closed when their owner is forgotten, or when the program ends.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["OwnLoop"]

T = TypeVar("T")


class OwnLoop:
    """Runs coroutines in its thread; `closing` is awaited there at the end. Belongs to `owner`."""

    def __init__(self, owner: object, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`closing` must not refer to `owner`, which would then never be forgotten."""
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="ttc-http", daemon=True)
        thread.start()
        weakref.finalize(owner, _stop, self._loop, thread, closing)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` from another loop; cancelling the await cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _stop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, closing: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    asyncio.run_coroutine_threadsafe(closing(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
