"""Run coroutines at once, and end them cleanly.

Results come in order; the first failure is raised unchanged, and its siblings are cancelled and awaited. Also here: the
event loop for a thread that does nothing else (uvloop's where it is installed, which costs about half as much),
signals as requests to work that can end between two steps (`StopRequest`), and lines that say how far long work is
(`Reminder`, `SteadyLog`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop, or Python's own where that is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def stopped_at_once() -> Iterator[None]:
    """Let Ctrl-C at once end work that blocks the event loop, such as loading a model.

    asyncio only cancels at the next step of the loop. Nothing changes outside the main thread, which alone is
    interrupted, or where the process's owner has installed a handler of its own.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_loops = getattr(getattr(handler, "func", None), "__name__", "") == "_on_sigint"
    if not is_loops or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; `number` is the signal's, or 0 where it is not known; the text states what is kept."""

    def __init__(self, number: int, kept: str = "") -> None:
        """Record the signal's `number`."""
        super().__init__(kept)
        self.number = number


class StopRequest:
    """SIGINT and SIGTERM as requests to work that can end between two steps: the first waits, the second ends at once.

    Signals keep their usual effect unless the request is `armed`, as by a command, which owns its process. A launcher
    may forward a signal that its workers also got: the same signal within `apart_s` seconds is not a second one.
    """

    def __init__(self, *, armed: bool = False, apart_s: float = 0.0) -> None:
        """No signal has come yet."""
        self.number = 0
        self._armed, self._apart_s, self._asked_at = armed, apart_s, 0.0
        self._first: Callable[[int], object] = lambda number: None
        self._second: Callable[[], object] = lambda: None

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.number != 0

    def interrupted(self, kept: str) -> Interrupted:
        """The exception for the requested end; `kept` states what of the work is kept."""
        return Interrupted(self.number or signal.SIGTERM, kept)

    @contextmanager
    def heeded(
        self, kept: str = "", first: Callable[[int], object] | None = None, second: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """Treat signals as requests inside; raises Interrupted at the end if one came and nothing was raised for it.

        After the first signal the next one ends the process, even later, during clean-up. Ignored signals stay ignored.

        Args:
            kept: what is kept at the end.
            first: called with the number of the first signal, in its handler; by default a line is written.
            second: what the second signal does before the process ends.
        """
        if not self._armed or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._first, self._second = first or _announce, second or self._second
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            if not self.asked:
                for number, handler in before.items():
                    signal.signal(number, handler)
        if self.asked:
            raise self.interrupted(kept)

    async def cut(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if a request came before its end and it was cancelled."""
        task, loop, first = asyncio.ensure_future(work), asyncio.get_running_loop(), self._first

        def wake(number: int) -> None:
            first(number)
            loop.call_soon_threadsafe(task.cancel)

        self._first = wake
        if self.asked:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not self.asked:
                raise
            return None
        finally:
            self._first = first

    def _handle(self, number: int, frame: object) -> None:
        if not self.asked:
            self.number, self._asked_at = number, time.monotonic()
            self._first(number)
        elif number != self.number or time.monotonic() - self._asked_at >= self._apart_s:
            self._second()
            os.write(2, b"ttc: ended at once\n")
            os._exit(128 + number)


def _announce(number: int) -> None:
    name = signal.Signals(number).name
    os.write(2, f"ttc: {name}: what is done is being kept; once more ends at once\n".encode())


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return results in order; the first failure cancels the rest and is raised bare.

    Unlike `asyncio.gather` it never leaves a sibling running; unlike `asyncio.TaskGroup` it raises no exception group,
    and a caller that handles the failure is not left marked as cancelled (a TaskGroup of Python 3.11 and 3.12 leaves
    its own request on the task, after which an interrupt is no KeyboardInterrupt any more).
    """
    todo = list(coroutines)
    if len(todo) < 2:
        return [await coroutine for coroutine in todo]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in todo]
    failed: list[asyncio.Future[T]] = []
    try:
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task in finished and not task.cancelled() and task.exception() is not None]
    finally:
        for task in tasks:
            task.cancel()
        await settle(tasks)
    return [task.result() for task in failed or tasks]


async def gather_until(
    coroutines: Iterable[Coroutine[Any, Any, T]], seconds: float, sooner: float | None = None
) -> list[T | None]:
    """Run coroutines at once for `seconds`; results in order, None for those that were cut. Failures as in `gather`.

    From `sooner` seconds on, they are cut as soon as two have ended.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    began, when = asyncio.get_running_loop().time(), "FIRST_EXCEPTION" if sooner is None else "FIRST_COMPLETED"
    pending, failed = set(tasks), list[asyncio.Future[T]]()
    try:
        while pending and not failed:
            limit = seconds if sooner is None or len(tasks) - len(pending) < 2 else min(sooner, seconds)
            left = max(began + limit - asyncio.get_running_loop().time(), 0.0)
            finished, pending = await asyncio.wait(pending, timeout=left, return_when=when)
            failed = [
                task for task in tasks if task in finished and not task.cancelled() and task.exception() is not None
            ]
            if not finished or not left:
                break
    finally:
        for task in tasks:
            task.cancel()
        await settle(tasks)
    if failed:
        failed[0].result()
    return [None if task.cancelled() else task.result() for task in tasks]


QUIET_S = 10.0
"""Long work says something after so many seconds."""


class Reminder:
    """When a loop is due to say how far it is: `every_s` seconds after it was due before, or after its start."""

    def __init__(self, every_s: float = QUIET_S) -> None:
        self._every_s, self._last = every_s, time.monotonic()

    def due(self) -> bool:
        """Whether a line is due now; the next one is due `every_s` seconds later."""
        is_due = time.monotonic() - self._last >= self._every_s
        self._last = time.monotonic() if is_due else self._last
        return is_due


class SteadyLog:
    """A command's lines on the way; if `quiet_s` seconds pass without one, a line says that the work goes on.

    In a longer silence such lines become rarer, up to one a minute. To be used in a `with`; cost: a thread that sleeps.
    """

    def __init__(self, write: Callable[[str], object], quiet_s: float = QUIET_S) -> None:
        self._write, self._quiet_s = write, quiet_s
        self._last, self._due_s = time.monotonic(), quiet_s
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._clock.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._clock.join()

    def __call__(self, text: str) -> None:
        """Write a line."""
        with self._lock:
            self._write(text)
            self._last, self._due_s = time.monotonic(), self._quiet_s

    def _tick(self) -> None:
        while not self._ended.wait(min(self._quiet_s / 2, 1.0)):
            with self._lock:
                silence = time.monotonic() - self._last
                if silence >= self._due_s:
                    self._write(f"still working, {silence:.0f} s since the last line")
                    self._due_s = min(3 * self._due_s, self._due_s + 60)


class HeadStart:
    """Lets the first of several pieces of work run alone for a while, where all at once would slow each other down."""

    def __init__(self) -> None:
        self._is_taken, self._over = False, asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Run the first work at once, and others when it has ended, or after `seconds`."""
        if self._is_taken:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), seconds)
            return await work()
        self._is_taken = True
        try:
            return await work()
        finally:
            self._over.set()


async def settle(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until aborted work has ended, even if the waiting task is cancelled.

    For callers that are being cancelled themselves: they ignore why the work ended, so its errors are dropped.
    """
    todo = list(futures)
    while not all(future.done() for future in todo):
        try:
            await asyncio.wait(todo)
        except asyncio.CancelledError:
            continue
    for future in todo:
        if not future.cancelled():
            future.exception()
