"""One POST route: read the body, check it by the dialect's schema, run it, answer in the dialect."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from serve.dialects.sse import HEARTBEAT
from serve.http.guard import KEY, NOTES
from serve.http.transport import (
    ClientGone,
    Receive,
    Scope,
    Send,
    read_body,
    send_json,
    stream_job,
    unless_gone,
    whole_reply,
)
from serve.requests.errors import ApiError
from serve.requests.request import ServeRequest
from serve.requests.schema import Schema, parse_json, read
from serve.running.events import Outcome, ServeEvent
from serve.running.service import Job, Service
from ttc.config.recipes import dump

__all__ = ["Dialect", "Encoder", "Endpoint"]


TRACE = (b"traceparent", b"tracestate")


class Encoder(Protocol):
    """Turns the events of one stream into bytes."""

    def encode(self, event: ServeEvent) -> bytes:
        """The bytes of one event; may be empty."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a dialect module provides; `error` is the body of a refusal, `result` describes a reply.

    Where a dialect differs from OpenAI's: `statuses` are the ones it has another number for, `refusal` describes its
    errors, `heartbeat` fills silence.
    """

    path: str
    schema: Callable[[Schema], Schema]
    parse: Callable[[Mapping[str, Any]], ServeRequest]
    reply: Callable[[Mapping[str, Any], Outcome], Any]
    stream: Callable[[Mapping[str, Any]], Encoder]
    error: Callable[[ApiError], Any]
    result: Schema
    statuses: Mapping[int, int] = field(default_factory=dict)
    refusal: Schema | None = None
    heartbeat: bytes = HEARTBEAT


class Endpoint:
    """An ASGI application for one dialect."""

    def __init__(self, dialect: Dialect, service: Service) -> None:
        self.dialect, self._service = dialect, service
        self.schema = dialect.schema(service.offers.schema())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            limits = self._service.config.limits
            raw = await read_body(scope, receive, limits.max_body_bytes, limits.stall_s)
            body = read(parse_json(raw), {"type": "object", **self.schema})
            await unless_gone(receive, self._answer(scope, send, body))
        except ClientGone:
            return
        except ApiError as error:
            scope[NOTES]["error"] = error.code
            if "outcome" not in scope[NOTES]:
                self._service.metrics.refused(error.code, error.status)
            status = self.dialect.statuses.get(error.status, error.status)
            await send_json(send, status, self.dialect.error(error), error.headers())

    async def _answer(self, scope: Scope, send: Send, body: Mapping[str, Any]) -> None:
        request = self.dialect.parse(body)
        encoder = self.dialect.stream(body)
        trace = {k.decode(): v.decode("latin-1") for k, v in scope["headers"] if k in TRACE}
        job = await self._service.open(request, scope[KEY], secrets.token_hex(12), trace)
        try:
            async with job:
                await self._send(job, send, body, encoder)
        finally:
            _note(scope, job)
            if self._service.config.log_prompts:
                scope[NOTES]["messages"] = [dump(message) for message in request.messages]

    async def _send(self, job: Job, send: Send, body: Mapping[str, Any], encoder: Encoder) -> None:
        if not job.plan.request.stream:
            await send_json(send, 200, self.dialect.reply(body, await whole_reply(job)))
            return
        limits = self._service.config.limits
        await stream_job(job, send, encoder.encode, limits.heartbeat_s, limits.stall_s, self.dialect.heartbeat)


def _note(scope: Scope, job: Job) -> None:
    """What the access log says of a request; no text of it, unless the operator asked for that."""
    plan = job.plan
    scope[NOTES].update(
        model=plan.model.name,
        strategy=plan.strategy,
        key=plan.key.name,
        outcome=job.outcome,
        sequences=plan.sequences,
        generated=job.usage.generated,
        thinking=job.usage.thinking,
        total_tokens=job.usage.tokens,
    )
