"""The service: plans, admits and runs requests; knows what runs and when to stop.

A `Job` is one admitted request. Leaving its block cancels what still runs and waits until the engine has let go, so a
client that disconnects, a deadline and a shutdown all end in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType

from serve.admission import Admission, Ticket
from serve.catalogue import Catalogue
from serve.config import ServeConfig
from serve.errors import ApiError, from_error, unavailable
from serve.events import Done, Failed, ServeEvent, Started
from serve.keys import Key
from serve.plan import Plan, make_plan
from serve.request import ServeRequest
from serve.run import execute
from serve.search import Offers
from ttc.concurrent import settle
from ttc.core import Usage

__all__ = ["Job", "Service"]

_log = logging.getLogger("serve")


class Service:
    """Everything behind the routes."""

    def __init__(self, config: ServeConfig, catalogue: Catalogue) -> None:
        """Serve the loaded models of `catalogue`."""
        self.config, self.catalogue = config, catalogue
        scorers = {name for model in catalogue for name in model.scorers}
        self.offers = Offers(config.strategies, scorers, config.limits.max_width)
        self.admission = Admission(config.limits.max_sequences)
        self.draining = False
        self._jobs: set[Job] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._jobs

    async def open(self, request: ServeRequest, key: Key, name: str) -> Job:
        """Check and admit a request called `name`.

        Raises:
            ApiError: 400 or 404 for the request, then 503 while draining, then 429.
        """
        plan = await make_plan(request, key, self.catalogue, self.offers, self.config)
        if self.draining:
            raise unavailable("draining", "the server is shutting down", retry_after_s=self.config.limits.drain_s)
        ticket = self.admission.admit(key, plan.sequences, search=not plan.direct)
        job = Job(self, plan, ticket, name)
        self._jobs.add(job)
        return job

    def forget(self, job: Job) -> None:
        """Note that a job has ended."""
        self._jobs.discard(job)

    async def drain(self) -> None:
        """Take nothing new, let what runs finish until the deadline, then abort it."""
        self.draining = True
        deadline = time.monotonic() + self.config.limits.drain_s
        while self._jobs and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for job in list(self._jobs):
            job.stop(unavailable("shutting_down", "the server is shutting down"))
        while self._jobs and time.monotonic() < deadline + 5:
            await asyncio.sleep(0.02)


class Job:
    """One admitted request; use it as an asynchronous context."""

    def __init__(self, service: Service, plan: Plan, ticket: Ticket, name: str) -> None:
        self._service, self.plan, self._ticket, self._name = service, plan, ticket, name
        self._events: asyncio.Queue[ServeEvent] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopped: ApiError | None = None
        self.usage = Usage()
        self.outcome = "cancelled"

    async def __aenter__(self) -> Job:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                await settle([self._task])
        finally:
            self._ticket.leave()
            self._service.forget(self)

    async def next(self, timeout_s: float | None = None) -> ServeEvent | None:
        """The next event, or None when there was none for `timeout_s` seconds. The last one is Done or Failed."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._events.get()
        except TimeoutError:
            return None

    def ready(self) -> ServeEvent | None:
        """An event that is there already, or None."""
        return None if self._events.empty() else self._events.get_nowait()

    def stop(self, error: ApiError) -> None:
        """End the request with `error`."""
        self._stopped = error
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        """Run the plan; whatever happens, the last event is Done or Failed, unless nobody waits any more."""
        limits = self._service.config.limits
        started = Started(self._name, self.plan.request.model, int(time.time()))
        try:
            async with asyncio.timeout(limits.request_timeout_s):
                await execute(self.plan, started, self._emit, self._charge, limits.progress_interval_s)
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            self._fail(self._stopped)
        except TimeoutError as exc:
            if isinstance(exc, Exception) and type(exc) is not TimeoutError:
                self._fail(from_error(exc))
            else:
                seconds = limits.request_timeout_s
                self._fail(ApiError(504, "deadline_exceeded", f"no answer within {seconds:g} s"))
        except Exception as exc:
            error = from_error(exc)
            if error.status == 500:
                _log.exception("internal error", extra={"request_id": self._name})
            self._fail(error)

    def _emit(self, event: ServeEvent) -> None:
        if isinstance(event, Done):
            self.outcome = "done"
        self._events.put_nowait(event)

    def _fail(self, error: ApiError) -> None:
        self.outcome = error.code
        self._events.put_nowait(Failed(error))

    def _charge(self, usage: Usage) -> None:
        self.usage += usage
        self._ticket.charge(usage)
