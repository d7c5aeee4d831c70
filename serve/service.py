"""The service: plans, admits and runs requests; knows what runs and when to stop.

A `Job` is one admitted request. Leaving its block cancels what still runs and waits until the engine has let go, so a
client that disconnects, a deadline and a shutdown all end in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from serve.admission import Admission, Ticket
from serve.catalogue import Catalogue
from serve.config import ServeConfig
from serve.errors import ApiError, from_error, unavailable
from serve.events import AnswerDelta, Done, Failed, Finish, ServeEvent, Started, ThinkingDelta
from serve.fair import FairGate
from serve.keys import Key
from serve.metrics import Finished, Labels, Metrics
from serve.plan import Plan, make_plan
from serve.request import ServeRequest
from serve.run import execute
from serve.search import Offers
from serve.tracing import RequestSpan
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
        self.metrics = Metrics(self._gauges())

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._jobs

    async def open(self, request: ServeRequest, key: Key, name: str, headers: Mapping[str, str] | None = None) -> Job:
        """Check and admit a request called `name`; `headers` may hold the trace it belongs to.

        Raises:
            ApiError: 400 or 404 for the request, then 503 while draining, then 429.
        """
        plan = await make_plan(request, key, self.catalogue, self.offers, self.config)
        if self.draining:
            raise unavailable("draining", "the server is shutting down", retry_after_s=self.config.limits.drain_s)
        ticket = self.admission.admit(key, plan.sequences, search=not plan.direct)
        job = Job(self, plan, ticket, name, RequestSpan(plan.model.name, plan.strategy, headers or {}))
        self._jobs.add(job)
        return job

    def forget(self, job: Job) -> None:
        """Note that a job has ended."""
        self._jobs.discard(job)
        self.metrics.finished(job.finished())

    def _gauges(self) -> dict[str, tuple[str, Callable[[], dict[Labels, float]]]]:
        def per_model(read: Callable[[FairGate], int]) -> Callable[[], dict[Labels, float]]:
            return lambda: {(("model", model.name),): read(model.gate) for model in self.catalogue}

        return {
            "ttc_num_requests_running": ("Requests admitted.", lambda: {(): self.admission.requests}),
            "ttc_num_sequences_running": ("Draws in the engine.", per_model(lambda gate: gate.held)),
            "ttc_num_sequences_waiting": ("Draws that wait for a slot.", per_model(lambda gate: gate.num_waiting)),
            "ttc_draining": ("Whether the server is shutting down.", lambda: {(): self.draining}),
        }

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

    def __init__(self, service: Service, plan: Plan, ticket: Ticket, name: str, span: RequestSpan) -> None:
        self._service, self.plan, self._ticket, self._name, self._span = service, plan, ticket, name, span
        self._events: asyncio.Queue[ServeEvent] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopped: ApiError | None = None
        self._opened = time.monotonic()
        self._first_token_s: float | None = None
        self._ended: list[Finish] = []
        self._done: Done | None = None
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
            self._span.end(self.finished())

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
        match event:
            case ThinkingDelta() | AnswerDelta() if self._first_token_s is None:
                self._first_token_s = time.monotonic() - self._opened
            case Finish():
                self._ended.append(event)
            case Done():
                self.outcome, self._done = "done", event
        self._events.put_nowait(event)

    def finished(self) -> Finished:
        """What is recorded of this request."""
        told = {} if self._done is None else self._done.ttc
        thoughts = [choice["thinking"] for choice in told.get("choices", [told])] if told else []
        return Finished(
            model=self.plan.model.name,
            strategy=self.plan.strategy,
            outcome=self.outcome,
            usage=self.usage,
            seconds=time.monotonic() - self._opened,
            first_token_s=self._first_token_s,
            finish_reasons=tuple(finish.reason for finish in self._ended),
            num_candidates=len(told.get("candidates", ())),
            num_forced_ends=sum(bool(thought["forced_end"]) for thought in thoughts),
            enforced=thoughts[0]["enforced"] if thoughts else "none",
        )

    def _fail(self, error: ApiError) -> None:
        self.outcome = error.code
        self._events.put_nowait(Failed(error))

    def _charge(self, usage: Usage) -> None:
        self.usage += usage
        self._ticket.charge(usage)
