"""One worker thread that receives everything waiting: work that arrives during one batch forms the next.

Shared by all scorers that compute in this process. Results and errors return to the event loop they came from; a
wake-up costs as much as several results, so results that are ready together return together (`finish_all`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ttc.core import Usage, UsageSink
from ttc.errors import ScorerError, TTCError

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")


class _Call(Generic[R]):
    """Items that were submitted together: one future for all their results. Belongs to its event loop."""

    def __init__(self, num_items: int, on_usage: UsageSink, loop: asyncio.AbstractEventLoop) -> None:
        self.on_usage, self.loop = on_usage, loop
        self.done: asyncio.Future[list[R]] = loop.create_future()
        self._results: dict[int, R] = {}
        self._num_items = num_items

    def finish(self, at: int, result: R) -> None:
        """Set the result of one item; the first one counts."""
        self._results.setdefault(at, result)
        if len(self._results) == self._num_items and not self.done.done():
            self.done.set_result([self._results[index] for index in range(self._num_items)])

    def fail(self, error: BaseException) -> None:
        """Fail the whole call, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(slots=True)
class WorkItem(Generic[Q, R]):
    """One item of work, and where its result goes; its methods may be called from the worker thread."""

    item: Q
    at: int
    call: _Call[R]

    def report(self, usage: Usage) -> None:
        """Charge the computed tokens."""
        self.call.loop.call_soon_threadsafe(self.call.on_usage, usage)

    def finish(self, result: R) -> None:
        """Set the result; the first result or error counts."""
        self.call.loop.call_soon_threadsafe(self.call.finish, self.at, result)

    def fail(self, error: BaseException) -> None:
        """Set an error instead."""
        self.call.loop.call_soon_threadsafe(self.call.fail, error)


def finish_all(ended: Sequence[tuple[WorkItem[Q, R], Usage, R]]) -> None:
    """Charge and finish several jobs of one batch, waking their event loop once."""

    def finish() -> None:
        for job, usage, result in ended:
            job.call.on_usage(usage)
            job.call.finish(job.at, result)

    for job, _, _ in ended[:1]:  # all items of a batch belong to one loop
        job.call.loop.call_soon_threadsafe(finish)


class Batcher(Generic[Q, R]):
    """Runs `work(jobs)` in its own thread; `work` must finish or fail every job, an exception fails all of them."""

    def __init__(self, name: str, work: Callable[[list[WorkItem[Q, R]]], None]) -> None:
        """`name` is used in errors and for the thread."""
        self._name, self._work = name, work
        self._pending: list[WorkItem[Q, R]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def submit(self, items: Sequence[Q], on_usage: UsageSink) -> list[R]:
        """Compute `items` together with any other waiting ones; results in order."""
        loop = asyncio.get_running_loop()
        if not items:
            return []
        call: _Call[R] = _Call(len(items), on_usage, loop)
        if loop is not self._loop:  # an earlier loop may have been closed during a batch
            self._loop, self._running, self._pending = loop, False, []
        self._pending += [WorkItem(item, at, call) for at, item in enumerate(items)]
        if not self._running:
            self._running = True
            loop.call_soon(self._launch, loop)
        return await call.done

    def now(self, work: Callable[[], T]) -> T:
        """Call `work()` in the thread and wait for it: for objects that must be created where they are used."""
        return self._pool.submit(work).result()

    def later(self, work: Callable[..., Any], *args: Any) -> None:
        """Call `work(*args)` in the thread, after the batch in progress."""
        self._pool.submit(work, *args)

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass all waiting work to the thread; called again when a batch has ended."""
        if loop is not self._loop:
            return
        batch, self._pending = self._pending, []
        if not batch:
            self._running = False
            return
        loop.run_in_executor(self._pool, self._run, batch).add_done_callback(lambda _: self._launch(loop))

    def _run(self, batch: list[WorkItem[Q, R]]) -> None:
        try:
            self._work(batch)
        except Exception as exc:
            error = exc if isinstance(exc, TTCError) else ScorerError(f"{self._name} failed: {exc}")
            error.__cause__ = exc if error is not exc else None
            for job in batch:
                job.fail(error)
