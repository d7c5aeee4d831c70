"""The service: plans, admits and runs requests; knows what runs and when to stop.

A `Job` is one admitted request. Leaving its block cancels what still runs and waits until the engine has let go, so a
client that disconnects, a deadline and a shutdown all end in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from serve.operator.config import ServeConfig
from serve.operator.metrics import Finished, Labels, Metrics
from serve.operator.tracing import RequestSpan
from serve.requests.errors import ApiError, from_error, unavailable
from serve.requests.keys import Key
from serve.requests.request import ServeRequest
from serve.requests.search import Offers
from serve.running.admission import Admission, Ticket
from serve.running.catalogue import Catalogue
from serve.running.events import AnswerDelta, Done, Failed, Finish, ServeEvent, Started, ThinkingDelta, ledger
from serve.running.fair import FairGate
from serve.running.plan import Plan, make_plan
from serve.running.routing import OutOfBudget, fallback_request, reason_of, route
from serve.running.run import execute
from ttc.concurrent import settle
from ttc.core import Usage
from ttc.errors import ConfigError, UnknownName

__all__ = ["Job", "Service"]

_log = logging.getLogger("serve")


class Service:
    """Everything behind the routes."""

    def __init__(self, config: ServeConfig, catalogue: Catalogue) -> None:
        """Serve the loaded models of `catalogue`; raises ConfigError for a preset that could never run."""
        self.config, self.catalogue = config, catalogue
        scorers = {name for model in catalogue for name in model.scorers}
        self.offers = Offers(config.strategies, scorers, config.limits.max_width)
        _check_presets(config, catalogue, self.offers)
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
        routed, told = route(request, self.catalogue, self.config)
        plan = await self.plan(routed, key)
        if self.draining:
            raise unavailable("draining", "the server is shutting down", retry_after_s=self.config.limits.drain_s)
        ticket = self.admission.admit(key, plan.sequences, search=not plan.direct)
        job = Job(self, plan, ticket, name, RequestSpan(plan.model.name, plan.strategy, headers or {}), told)
        self._jobs.add(job)
        return job

    async def plan(self, request: ServeRequest, key: Key) -> Plan:
        """Check a request for a model that is named; raises ApiError."""
        return await make_plan(request, key, self.catalogue, self.offers, self.config)

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

    def __init__(
        self, service: Service, plan: Plan, ticket: Ticket, name: str, span: RequestSpan, told: Mapping[str, Any]
    ) -> None:
        """`told` goes into the `ttc` object of the reply."""
        self._told = dict(told)
        self._answering = False
        self._service, self.plan, self._ticket, self._name, self._span = service, plan, ticket, name, span
        self._tried = {plan.model.name}
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
        """Run the plan, then its fallbacks; the last event is Done or Failed, unless nobody waits any more."""
        started = Started(self._name, self.plan.request.model, int(time.time()))
        deadline = self._opened + self._service.config.limits.request_timeout_s
        try:
            while (error := await self._attempt(started, deadline)) is not None:
                if not await self._fall_back(error):
                    self._fail(error)
                    return
                started = replace(started, model=self.plan.request.model)
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            self._fail(self._stopped)

    async def _attempt(self, started: Started, deadline: float) -> ApiError | None:
        """Run the plan once; returns what went wrong."""
        interval_s, spec = self._service.config.limits.progress_interval_s, self.plan.model.spec
        left_s = deadline - time.monotonic()
        if spec.fallback is not None and spec.fallback_after_s is not None:
            left_s = min(left_s, spec.fallback_after_s)
        try:
            async with asyncio.timeout(left_s) as limit:
                await execute(self.plan, started, self._emit, self._charge, interval_s)
        except Exception as exc:
            if isinstance(exc, TimeoutError) and limit.expired():
                return ApiError(504, "deadline_exceeded", f"no answer within {left_s:.3g} s")
            error = from_error(exc)
            if error.status == 400 and not self.plan.direct:
                error.param = error.param or "ttc"  # a strategy refuses its parameters before it draws
            if error.status == 500:
                _log.exception("internal error", extra={"request_id": self._name})
            return error
        return None

    async def _fall_back(self, error: ApiError) -> bool:
        """Plan the request for the model's fallback, where `error` is one it may answer for."""
        reason, request = reason_of(error), fallback_request(self.plan)
        if reason is None or request is None or self._answering or request.model in self._tried:
            return False
        try:
            plan = await self._service.plan(request, self.plan.key)
        except ApiError as refusal:
            _log.warning("no fallback", extra={"request_id": self._name, "error": refusal.code})
            return False
        self._told["fallback"] = {"from": self.plan.model.name, "reason": reason}
        self._tried.add(request.model)
        self.plan = plan
        return True

    def _emit(self, event: ServeEvent) -> None:
        match event:
            case Started():
                if self._tried != {self.plan.model.name}:
                    return  # a fallback goes on in the stream that has begun
            case ThinkingDelta() | AnswerDelta():
                self._answering = self._answering or isinstance(event, AnswerDelta)
                if self._first_token_s is None:
                    self._first_token_s = time.monotonic() - self._opened
            case Finish():
                said_nothing = event.reason == "length" and not event.answer and not event.tool_calls
                if said_nothing and not self._answering and self._can_fall_back():
                    raise OutOfBudget
                self._ended.append(event)
            case Done():
                event = replace(event, ttc={**event.ttc, **self._told, **self._total(event)})
                self.outcome, self._done = "done", event
        self._events.put_nowait(event)

    def _can_fall_back(self) -> bool:
        request = fallback_request(self.plan)
        return request is not None and request.model not in self._tried

    def _total(self, event: Done) -> dict[str, Any]:
        """The ledger of all attempts, where there was more than one."""
        return {"usage": ledger(self.usage)} if "fallback" in self._told else {}

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


def _check_presets(config: ServeConfig, catalogue: Catalogue, offers: Offers) -> None:
    """Refuse at the start what would refuse every request to a preset."""
    for preset in config.presets:
        model, _ = catalogue.find(preset.model)
        if preset.strategy not in offers:
            raise UnknownName(f"strategy of presets.{preset.name}", preset.strategy, offers.names)
        offer = offers[preset.strategy]
        if offer.needs_scorer and not model.scorers:
            raise ConfigError(f"presets.{preset.name}: {preset.strategy} needs a scorer, and {model.name} has none")
        if preset.scorer is not None and preset.scorer not in model.scorers:
            raise UnknownName(f"scorer of presets.{preset.name}", preset.scorer, model.scorers)
        try:
            offer.bind(preset.params, None)
        except ApiError as exc:
            raise ConfigError(f"presets.{preset.name}: {exc.message.replace('ttc.', '')}") from exc
