"""Coroutines at once: results in order, the first failure bare, siblings cancelled and awaited; ends awaited.

Also the event loop for a thread that does nothing else: uvloop's where it is installed, which costs about half as much.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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
    """Let Ctrl-C end work that holds the event loop, such as loading a model, and not wait for its end.

    asyncio only cancels at the next step of the loop. Outside the main thread, which alone is interrupted, and where
    whoever owns the process has a handler that is no loop's, nothing changes.
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


async def gather_until(coroutines: Iterable[Coroutine[Any, Any, T]], seconds: float) -> list[T | None]:
    """Run coroutines at once for `seconds`; results in order, None for those that were cut. Failures as in `gather`."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    deadline = asyncio.get_running_loop().time() + max(seconds, 0.0)
    pending, failed = set(tasks), list[asyncio.Future[T]]()
    try:
        while pending and not failed:
            left = max(deadline - asyncio.get_running_loop().time(), 0.0)
            finished, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
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


async def settle(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until aborted work has ended, however it ends, whatever else is cancelled meanwhile.

    For callers that are being cancelled themselves: they will not look at why it ended, so errors count as seen.
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
