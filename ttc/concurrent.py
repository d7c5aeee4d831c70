"""Coroutines at once: results in order, the first failure bare, siblings cancelled and awaited; ends awaited.

Also the event loop for a thread that does nothing else: uvloop's where it is installed, which costs about half as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop, or Python's own where that is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return results in order; the first failure cancels the rest and is raised bare.

    Unlike `asyncio.gather` it never leaves a sibling running; unlike `asyncio.TaskGroup` it raises no exception group.
    """
    todo = list(coroutines)
    if len(todo) == 1:
        return [await todo[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in todo]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


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
