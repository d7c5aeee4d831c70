"""A request while it runs: what it is charged, how it ends, and the fallback that may answer in its place.

An active request is one that was admitted. Leaving its `async with` block cancels what still runs and waits for the
engine to release it, so disconnected clients, deadlines and shutdowns all end in the same way.

A fallback answers if its model is down, busy, too slow (`fallback_after_s`), or has spent its tokens on thought without
an answer, and nothing of an answer has been sent yet. It runs `direct` with the requested sampling, and the reply says
so: `ttc.fallback: {from, reason}`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from serve.operator.metrics import RequestRecord, RequestSpan, SpentRecord
from serve.requests.errors import ApiError, from_error
from serve.requests.fields import ServeRequest
from serve.requests.search import SearchRequest
from serve.requests.thinking import ThinkingRequest
from serve.requests.tools import forward_of
from serve.running.admission import Ticket
from serve.running.events import (
    AnswerDelta,
    Done,
    Finish,
    RequestFailed,
    ServeEvent,
    Started,
    ThinkingDelta,
    TokenCounts,
    ledger,
)
from serve.running.plan import RequestPlan
from serve.running.run import execute
from ttc.concurrent import settle
from ttc.core import Usage

if TYPE_CHECKING:
    from serve.running.service import InferenceService

_log = logging.getLogger("serve")


@dataclass(slots=True)
class _Attempt:
    """What one plan was charged, without its fallbacks."""

    plan: RequestPlan
    usage: Usage = field(default_factory=Usage)
    charged: int = 0
    """Tokens that its key was charged."""
    price: int = 0
    """What those of them that were kept cost, in billionths of a dollar."""

    @property
    def counts(self) -> TokenCounts:
        """What it cost, if nothing of it is returned."""
        usage = self.usage
        return TokenCounts(
            prompt=self.num_tokens - usage.tokens + usage.scored,
            completion=usage.generated + usage.judged,
            reasoning=usage.thinking,
            rejected=usage.generated,
            scored=usage.scored,
            judged=usage.judged,
        )

    @property
    def num_tokens(self) -> int:
        """What its key has spent by now.

        A prompt that is counted here counts once, however often it was read. If an upstream server read it without
        counting it, since the client left, the reserved number counts once for each request to that server.
        Log-probabilities of the prompt itself cost no more than the prompt.
        """
        usage, plan = self.usage, self.plan
        tokens = usage.tokens - (usage.scored if plan.tells_prompt else 0)
        if plan.counts_prompt:
            return tokens + min(usage.prompt, plan.num_prompt)
        requests = min(usage.attempts, plan.sequences)
        return tokens + (usage.prompt or plan.num_prompt * requests // plan.sequences)


def tokens_left(ticket: Ticket, plan: RequestPlan) -> int | None:
    """What `plan` may spend of a ticket, its prompt included; None where nothing limits it."""
    money = ticket.money_left
    paid = None if money is None else plan.model.spec.tokens_for(money, plan.num_prompt)
    return min((tokens for tokens in (ticket.left, paid) if tokens is not None), default=None)


class ActiveRequest:
    """One admitted request; use it as an asynchronous context."""

    def __init__(
        self,
        service: InferenceService,
        plan: RequestPlan,
        ticket: Ticket,
        name: str,
        span: RequestSpan,
        notes: Mapping[str, Any],
    ) -> None:
        """`notes` go into the `ttc` object of the reply."""
        self._told = dict(notes)
        self._answering = False
        self._service, self.plan, self._ticket, self._name, self._span = service, plan, ticket, name, span
        self._attempts = [_Attempt(plan)]
        self._events: asyncio.Queue[ServeEvent] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopped: ApiError | None = None
        self._opened = time.monotonic()
        self._first_token_s: float | None = None
        self._last_s: dict[int, float] = {}
        self._gaps_s: list[float] = []
        self._ended: list[Finish] = []
        self._done: Done | None = None
        self.usage = Usage()
        self.outcome = "cancelled"

    async def __aenter__(self) -> ActiveRequest:
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
        """The next event, or None after `timeout_s` seconds without one. The last one is Done or RequestFailed."""
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
        """Run the plan, then its fallbacks; the last event is Done or RequestFailed, unless nobody waits any more."""
        started = Started(self._name, self.plan.request.model, int(time.time()))
        deadline = self._opened + self._service.config.limits.request_timeout_s
        busy: ApiError | None = None
        try:
            while (error := await self._attempt(started, deadline)) is not None:
                if not await self._fall_back(error):
                    self._fail(error if busy is None or error.status <= 500 else busy)  # which has room again
                    return
                busy = error if error.status == 429 else busy
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
            error = _with_form(_with_default(from_error(exc), self.plan), self.plan)
            if error.status > 500 and not isinstance(exc, ApiError):  # clients are told less of it
                _log.warning("the engine failed", extra={"reply_id": self._name, "error": str(exc)[:300]})
            if error.status == 400 and not self.plan.direct:
                error.param = error.param or "ttc"  # a strategy refuses its parameters before it draws
            if error.status == 500:
                _log.exception("internal error", extra={"reply_id": self._name})
            return error
        return None

    async def _fall_back(self, error: ApiError) -> bool:
        """Plan the request for the model's fallback, if it may answer after `error`.

        It gets what is left of the reserved tokens; if nothing is left, there is no fallback.
        """
        reason, request = reason_of(error), fallback_request(self.plan)
        if reason is None or request is None or self._answering or request.model in self._tried:
            return False
        try:
            plan = await self._plan_fallback(request)
        except ApiError as refusal:
            _log.warning("no fallback", extra={"reply_id": self._name, "error": refusal.code})
            return False
        left = tokens_left(self._ticket, plan)
        if left is not None and left <= plan.num_prompt:
            return False
        self._told["fallback"] = {"from": self.plan.model.name, "reason": reason}
        self.plan = plan.within(left).instead_of(request.sampling.max_tokens)
        self._attempts.append(_Attempt(self.plan))
        return True

    async def _plan_fallback(self, request: ServeRequest) -> RequestPlan:
        """The plan of a fallback, which draws as many tokens as it has room for where that is less than was asked."""
        try:
            return await self._service.plan(request, self.plan.key)
        except ApiError as refusal:
            if (refusal.code, refusal.param) != ("context_length_exceeded", request.sampling.max_tokens_field):
                raise
        fewer = replace(request, sampling=replace(request.sampling, max_tokens=None))
        return await self._service.plan(fewer, self.plan.key)

    def _emit(self, event: ServeEvent) -> None:
        match event:
            case Started():
                if self.plan.request.stream and self._tried != {self.plan.model.name}:
                    return  # a fallback goes on in the stream that has begun
            case ThinkingDelta() | AnswerDelta():
                self._answering = self._answering or isinstance(event, AnswerDelta)
                now = time.monotonic()
                if self._first_token_s is None:
                    self._first_token_s = now - self._opened
                if self.plan.request.stream and event.index in self._last_s:
                    self._gaps_s.append(now - self._last_s[event.index])
                self._last_s[event.index] = now
            case Finish():
                said_nothing = event.reason == "length" and not event.answer and not event.tool_calls
                if said_nothing and not self._answering and self._can_fall_back():
                    raise OutOfBudget
                self._ended.append(event)
            case Done():
                self._charge_rest(event.counts)
                whole = {"usage": ledger(self.usage)} if "fallback" in self._told else {}  # of all attempts
                counts = sum((attempt.counts for attempt in self._attempts[:-1]), event.counts)
                event = replace(event, counts=counts, ttc={**event.ttc, **self._told, **whole})
                self.outcome, self._done = "done", event
        self._events.put_nowait(event)

    def _can_fall_back(self) -> bool:
        request = fallback_request(self.plan)
        left = tokens_left(self._ticket, self.plan)
        has_room = left is None or left > self.plan.num_prompt
        return request is not None and request.model not in self._tried and has_room

    @property
    def headers(self) -> Mapping[str, str]:
        """What the key of this request had left when it was admitted."""
        return self._ticket.headers

    @property
    def spent(self) -> tuple[SpentRecord, ...]:
        """What each model was charged."""
        return tuple(
            SpentRecord(
                attempt.plan.model.name,
                attempt.plan.strategy,
                attempt.usage,
                attempt.charged,
                attempt.price + attempt.plan.model.spec.price(0, attempt.usage.overrun),
            )
            for attempt in self._attempts
        )

    @property
    def _tried(self) -> set[str]:
        """The models that were tried, the current one included."""
        return {attempt.plan.model.name for attempt in self._attempts}

    def finished(self) -> RequestRecord:
        """The record of this request for metrics."""
        report = {} if self._done is None else self._done.ttc
        alike = [report] * len(self._ended)  # of an upstream server all choices are told of together
        thoughts = [choice["thinking"] for choice in report.get("choices", alike)] if report else []
        return RequestRecord(
            model=self.plan.model.name,
            strategy=self.plan.strategy,
            outcome=self.outcome,
            spent=self.spent,
            seconds=time.monotonic() - self._opened,
            first_token_s=self._first_token_s,
            finish_reasons=tuple(finish.reason for finish in self._ended),
            num_candidates=max(len(report.get("candidates", ())), len(thoughts)),  # which are of the first choice
            num_forced_ends=sum(bool(thought["forced_end"]) for thought in thoughts),
            enforced=tuple(thought["enforced"] for thought in thoughts),
            key=self.plan.key.name,
            gaps_s=self._gaps_s,
        )

    def _fail(self, error: ApiError) -> None:
        self.outcome = error.code
        self._events.put_nowait(RequestFailed(error))

    def _charge(self, usage: Usage) -> None:
        attempt = self._attempts[-1]
        before = attempt.num_tokens
        attempt.usage += usage
        self.usage += usage
        self._book(attempt.num_tokens - before, usage.overrun, attempt.counts)

    def _charge_rest(self, counts: TokenCounts) -> None:
        """Charge what the usage of the reply has beyond that: hand-overs, and prompts of the strategy's own."""
        whole = counts.prompt + counts.completion
        self._book(max(whole - self._attempts[-1].num_tokens, 0), 0, counts)

    def _book(self, tokens: int, overrun: int, counts: TokenCounts) -> None:
        """Charge more tokens; `counts` are all that the attempt has read and written by now."""
        attempt = self._attempts[-1]
        spec = attempt.plan.model.spec
        more = max(spec.price(counts.prompt, counts.completion) - attempt.price, 0)
        attempt.charged += tokens + overrun
        attempt.price += more
        self._ticket.charge(tokens, overrun, more, spec.price(0, overrun))


class OutOfBudget(ApiError):
    """The model spent its tokens on thought and has said nothing."""

    def __init__(self) -> None:
        super().__init__(503, "out_of_budget", "the model spent all tokens on thought, and its fallback cannot answer")


def reason_of(error: BaseException) -> str | None:
    """Why a fallback may answer instead of what raised `error`; None if it may not."""
    if isinstance(error, OutOfBudget):
        return "out_of_budget"
    if isinstance(error, ApiError):
        is_refused = error.code == "upstream_misconfigured"  # whose operator hears of it in the log
        return "unavailable" if is_refused else {429: "busy", 503: "unavailable", 504: "timeout"}.get(error.status)
    return None


def fallback_request(plan: RequestPlan) -> ServeRequest | None:
    """The request as the fallback of the plan's model gets it; None where there is none, or several choices.

    There is none for biases either, whose ids are of this model's vocabulary. Whether an upstream server is asked, and
    in which words, is the fallback's own plan.
    """
    name, request = plan.model.spec.fallback, plan.request
    if name is None or request.num_replies > 1 or request.sampling.logit_bias:
        return None
    return replace(
        request,
        model=name,
        thinking=ThinkingRequest(show=request.thinking.show),
        search=SearchRequest(seed=plan.seed),
        verbosity=None,
        forward={} if request.form is None else request.forward or forward_of(request.form, request.messages),
    )


def _with_form(error: ApiError, plan: RequestPlan) -> ApiError:
    """`error`, and which field it was, where the engine could not follow the form of the answer to its end."""
    form, (head, _, reason) = plan.request.form, error.message.partition("sampling.grammar: ")
    if form is None or head or not reason:
        return error
    return ApiError(400, "unsupported_schema", f"{form.field} cannot be held to: {reason}", param=form.field)


def _with_default(error: ApiError, plan: RequestPlan) -> ApiError:
    """`error`, and whose max_tokens it was, where an upstream server refuses what the client did not ask for."""
    wish, names = plan.request.sampling, ("max_tokens", "max_completion_tokens")
    is_of_limit = error.code == "upstream_refused" and any(name in error.message for name in names)
    is_too_many = is_of_limit or error.code == "context_length_exceeded"
    if wish.max_tokens is not None or not is_too_many or plan.model.engine.capabilities.token_ids:
        return error
    why = f"{wish.max_tokens_field} was left out, so {plan.sampling.max_tokens} was asked for, this server's default"
    text = f"{error.message} ({why}: send a smaller one, or let its operator lower limits.default_max_tokens)"
    return ApiError(error.status, error.code, text, param=wish.max_tokens_field)
