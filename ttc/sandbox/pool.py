"""Zygotes for several threads: run scripts and tests under one tier, from a thread or a coroutine."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from ttc.errors import ConfigError, VerifierError
from ttc.sandbox.limits import Tier
from ttc.sandbox.worker import Worker

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RECYCLE = 5000
"""Cells after which a zygote is replaced."""


class Work(Protocol[T_co]):
    """What can be run: a `Script` or `Suite`."""

    def run(self, worker: Worker) -> T_co:
        """Run it in cells of `worker`."""
        ...


class Sandbox:
    """`workers` zygotes of `tier`, each used by one thread; they start on first use and `close` ends them."""

    def __init__(self, tier: Tier, *, workers: int = 2) -> None:
        if workers < 1:
            raise ConfigError(f"a sandbox needs workers >= 1, got {workers}")
        self.tier = tier
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="ttc-sandbox")
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def submit(self, work: Work[T]) -> Future[T]:
        """Queue work; its time begins when a worker takes it up. A dead zygote is replaced once, then VerifierError."""
        if self._closed:
            raise VerifierError("the sandbox is closed")
        return self._threads.submit(self._serve, work)

    async def run(self, work: Work[T]) -> T:
        """Run work from a coroutine; cancelling gives up the place in the queue."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Finish what runs, drop what is queued, end every zygote."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, work: Work[T]) -> T:
        worker = self._take()
        try:
            return work.run(worker)
        except VerifierError:
            if not worker.is_broken:
                raise
        finally:
            self._give(worker)
        fresh = Worker(self.tier)
        try:
            return work.run(fresh)
        finally:
            self._give(fresh)

    def _take(self) -> Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Worker(self.tier)

    def _give(self, worker: Worker) -> None:
        if worker.is_broken or worker.num_served >= RECYCLE:
            worker.close()
            return
        with self._lock:
            self._idle.append(worker)


def _close_all(idle: list[Worker]) -> None:
    while idle:
        idle.pop().close()
