"""A thread with an event loop of its own in which verdicts are made, and which can be given up when one hangs.

A verdict past its wall limit is taken back. If it was waiting, its task is cancelled; if its own code holds the loop,
the loop is left behind and everything else that was in it moves, with new limits, to a new one. So only the request
that hangs is a timeout. Which code holds the loop is known, because each step of each request is marked.

Cost: about 0.1 ms per request for the way to the other thread. Left out: code that holds the whole interpreter (one
long call into C, such as a pathological `re` match) stops every thread; such work belongs into a killable worker.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ttc.errors import VerifierError

__all__ = ["LoopThread"]

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


@dataclass(slots=True)
class _Request(Generic[T]):
    number: int
    work: Work[T]
    future: Future[T]
    deadline: float
    task: asyncio.Task[None] | None = None


class LoopThread(Generic[T]):
    """Runs work in its loop, each within `wall_s` seconds; a hung one gives `on_timeout()`.

    Its futures may be awaited from any loop and any thread. Make it in any thread; `close` ends it.
    """

    def __init__(self, wall_s: float, on_timeout: Callable[[], T]) -> None:
        self._wall_s, self._on_timeout = wall_s, on_timeout
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: dict[int, _Request[T]] = {}
        self._loop: _Loop | None = None
        self._closed = threading.Event()

    def submit(self, work: Work[T]) -> Future[T]:
        """Start `work`; the future is done within the wall limit and a little."""
        request = _Request(next(self._numbers), work, Future[T](), time.monotonic() + self._wall_s)
        request.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed.is_set():
                raise VerifierError("the service is closed")
            if self._loop is None:
                self._loop = _Loop()
                threading.Thread(target=self._watch, name="ttc-verdict-watch", daemon=True).start()
            self._running[request.number] = request
            self._start(request, self._loop)
        return request.future

    def close(self, last: Coroutine[Any, Any, None], timeout_s: float) -> bool:
        """Fail what still runs, run `last` in the loop and end it; False when that did not end in time."""
        with self._lock:
            self._closed.set()
            loop, self._loop = self._loop or _Loop(), None
            left = list(self._running.values())
            self._running.clear()
        for request in left:
            request.future.set_exception(VerifierError("the service was closed before the verdict was there"))
        ended = asyncio.run_coroutine_threadsafe(last, loop.loop)
        try:
            ended.result(timeout_s)
        except TimeoutError:
            return False
        finally:
            loop.stop()
        return True

    def _start(self, request: _Request[T], loop: _Loop) -> None:
        loop.loop.call_soon_threadsafe(self._create, request, loop)

    def _create(self, request: _Request[T], loop: _Loop) -> None:
        request.task = loop.loop.create_task(_Marked(self._serve(request, loop), request.number, loop))

    async def _serve(self, request: _Request[T], loop: _Loop) -> None:
        try:
            result = await request.work()
        except asyncio.CancelledError:
            if self._take(request, loop):
                request.future.set_exception(VerifierError("a verifier cancelled its own work"))
            raise
        except BaseException as exc:  # also a SystemExit of the work, which must not end the loop
            if self._take(request, loop):
                request.future.set_exception(exc)
        else:
            if self._take(request, loop):
                request.future.set_result(result)

    def _take(self, request: _Request[T], loop: _Loop) -> bool:
        """Whether this loop may answer the request: it has not been answered, and belongs to this loop."""
        with self._lock:
            return loop is self._loop and self._running.pop(request.number, None) is not None

    def _watch(self) -> None:
        while not self._closed.wait(min(0.25, self._wall_s / 4)):
            with self._lock:
                late = self._take_late()
            for request in late:
                request.future.set_result(self._on_timeout())

    def _take_late(self) -> list[_Request[T]]:
        """Take out the requests that are past their limit; called with the lock held."""
        now = time.monotonic()
        loop = self._loop
        if loop is None:
            return []
        number, since = loop.step
        if number and now - since > self._wall_s:
            self._replace(loop)
            return [self._running.pop(number)] if number in self._running else []
        if number and now - since > self._wall_s / 4:
            return []  # the others are late because this one holds the loop
        late = [request for request in self._running.values() if request.deadline < now]
        for request in late:
            del self._running[request.number]
            if request.task is not None:
                loop.loop.call_soon_threadsafe(request.task.cancel)
        return late

    def _replace(self, stuck: _Loop) -> None:
        stuck.stop()
        self._loop = fresh = _Loop()
        number, _ = stuck.step
        for request in self._running.values():
            if request.number != number:
                request.deadline = time.monotonic() + self._wall_s
                self._start(request, fresh)


class _Loop:
    """A loop, its thread, and the request whose step it is in with the time that step began; 0 between steps."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.step: tuple[int, float] = (0, 0.0)
        self._thread = threading.Thread(target=self._run, name="ttc-verdicts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end; one that hangs ends when its work does."""
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


class _Marked(Coroutine[Any, Any, None]):
    """A coroutine that notes in `loop.step` when one of its steps begins and ends."""

    def __init__(self, inner: Coroutine[Any, Any, None], number: int, loop: _Loop) -> None:
        self._inner, self._number, self._loop = inner, number, loop

    def send(self, value: Any) -> Any:
        self._loop.step = (self._number, time.monotonic())
        try:
            return self._inner.send(value)
        finally:
            self._loop.step = (0, 0.0)

    def throw(self, *args: Any) -> Any:
        self._loop.step = (self._number, time.monotonic())
        try:
            return self._inner.throw(*args)
        finally:
            self._loop.step = (0, 0.0)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()
