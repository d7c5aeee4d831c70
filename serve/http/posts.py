"""The POST routes: FastAPI checks a body against the dialect's model, a job answers it, the dialect words the reply.

Bodies have a cap and a deadline, streams have heartbeats. While a request is worked on, a second task watches the
connection: when the client is gone, the work is cancelled, and with it every branch in the engine. The status of a
stream is sent with its first event, so a request that fails before it has said anything gets a proper status.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import BaseModel, Field, create_model

from serve.dialects.items import ResponseStore
from serve.dialects.sse import HEARTBEAT, ApiDialect
from serve.operator.config import ServeLimits
from serve.requests.body import parse_json, read
from serve.requests.errors import ApiError, json_bytes
from serve.running.active import ActiveRequest
from serve.running.events import Done, Finish, RequestFailed, Started, WholeReply
from serve.running.service import InferenceService
from ttc.config.recipes import dump

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.routing import APIRoute

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY, REQUEST_ID, NOTES, STANDING = "ttc.key", "ttc.request_id", "ttc.notes", "ttc.standing"
"""Where the key, the id, notes for the log and headers with what the key has left stand in the ASGI scope."""
BATCH_BYTES = 1 << 16
"""Most that is sent at once, so that a slow client holds the stream back and not the server's memory."""
LONG_BODY = 1 << 16
"""A longer body, in bytes, is parsed in a thread: one of 1 MiB in small parts takes 0.3 s."""
DROPPED_BYTES = 1 << 24
DROPPED_S = 2.0
"""How much of a body that is too large is still read, and how long: a client that is still writing when the
connection ends would not see the refusal."""
EARLY_S = 1.0
"""How long a stream waits for its first event before it commits to status 200."""


class ClientGone(Exception):
    """The client closed the connection, or no longer reads from it."""


async def read_body(scope: Scope, receive: Receive, limit: int, within_s: float) -> bytes:
    """Read the whole body.

    Raises:
        ApiError: 413 when it is longer than `limit` bytes, by its header or in truth; 408 when it takes too long; 415
            when it is compressed.
        ClientGone: the client went away meanwhile.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _read_body(scope, receive, limit)
    except TimeoutError as exc:
        raise ApiError(408, "body_too_slow", f"the body did not come within {within_s:g} s") from exc


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    most = f"this server's limit of {limit} bytes (its operator can raise limits.max_body_bytes)"
    refusal = ApiError(413, "body_too_large", f"the body is larger than {most}")
    headers = dict(scope["headers"])
    coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.lower() != "identity":
        await _dropped(receive)
        why = f"the body is compressed (Content-Encoding: {coding[:80]}), and that is not read here"
        raise ApiError(415, "compressed_body", f"{why}: send it as it is")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
        if int(length[:20]) <= DROPPED_BYTES and b"expect" not in headers:
            await _dropped(receive)
        raise refusal
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            await _dropped(receive)
            raise refusal
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _dropped(receive: Receive) -> None:
    """Read the rest of a body and keep nothing, within bounds."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROPPED_S):
            while size <= DROPPED_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work`; when the client goes away first, cancel it and return False."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        complete = task.done()
        watch.cancel()
        task.cancel()
        await asyncio.gather(watch, task, return_exceptions=True)
    if complete:
        task.result()
    return complete


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    """Send a whole JSON reply."""
    raw = json_bytes(body)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    head += [(name.encode(), value.encode("latin-1", "replace")) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": raw})


async def whole_reply(job: ActiveRequest) -> WholeReply:
    """Wait for the whole outcome; raises ApiError when the request failed."""
    started, choices = Started("", "", 0), []
    while True:
        event = await job.next()
        match event:
            case Started():
                started = event
            case Finish():
                choices.append(event)
            case RequestFailed():
                raise event.error
            case Done():
                return WholeReply(started, tuple(sorted(choices, key=lambda choice: choice.index)), event)


async def stream_job(
    job: ActiveRequest,
    send: Send,
    encode: Callable[[Any], bytes],
    heartbeat_s: float,
    stall_s: float,
    heartbeat: bytes = HEARTBEAT,
) -> None:
    """Send the events of `job` as they come, several at once if they have piled up, and `heartbeat` while none come.

    Raises:
        ApiError: the request failed before anything was sent.
    """
    first = await job.next()
    event = first if isinstance(first, RequestFailed) else await job.next(min(EARLY_S, heartbeat_s))
    if isinstance(event, RequestFailed):
        raise event.error
    head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    head.append((b"x-accel-buffering", b"no"))
    await send({"type": "http.response.start", "status": 200, "headers": head})
    chunks, ended = [encode(first)], False
    while not ended:
        size = 0
        while event is not None:
            chunks.append(encode(event))
            size += len(chunks[-1])
            ended = isinstance(event, Done | RequestFailed)
            event = None if ended or size > BATCH_BYTES else job.ready()
        await _send_body(send, b"".join(chunks), not ended, stall_s)
        chunks = []
        if not ended:
            event = await job.next(heartbeat_s)
            chunks = [heartbeat] if event is None else []


async def _send_body(send: Send, chunks: bytes, more: bool, stall_s: float) -> None:
    """Send; a client that does not read for too long counts as gone."""
    try:
        async with asyncio.timeout(stall_s):
            await send({"type": "http.response.body", "body": chunks, "more_body": more})
    except TimeoutError as exc:
        raise ClientGone from exc


TRACE = (b"traceparent", b"tracestate")


_REFUSALS: Mapping[int, str] = {
    400: "The request is malformed, contradicts itself, or asks for what this server or model cannot do.",
    401: "A key is needed.",
    404: "No such model.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    429: "Busy, or the key has used what it may; see Retry-After.",
    503: "The engine is down, or the server is shutting down.",
    504: "No answer within the server's time limit.",
}


def add_posts(app: FastAPI, service: InferenceService, dialects: Sequence[ApiDialect]) -> None:
    """One POST route for each dialect."""
    from fastapi import Response, Security
    from fastapi.security import HTTPBearer

    class JobResponse(_JobReply, Response):
        """What FastAPI hands on as it is."""

    class CountResponse(_CountReply, Response):
        """The same for a count."""

    def endpoint(dialect: ApiDialect, model: type[BaseModel]) -> Callable[..., Any]:
        make: Callable[..., Response] = CountResponse if dialect.counts else JobResponse

        def post(body: Any) -> Response:
            return make(service, store, dialect, body)

        post.__annotations__ = {"body": model}
        return post

    store = ResponseStore(service.config.limits.stored_bytes)
    names, default, search, route = (
        service.catalogue.names(),
        service.catalogue.default,
        service.offers.model(),
        _body_route(service.config.limits, service.config.http.ignore),
    )
    for dialect in dialects:
        app.router.add_api_route(
            dialect.path,
            endpoint(dialect, _for_server(dialect.request, names, default, search)),
            methods=["POST"],
            route_class_override=route,
            dependencies=[Security(HTTPBearer(auto_error=False))],
            summary=dialect.path,
            response_model=dialect.result,
            responses=_responses(dialect),
        )


def _body_route(limits: ServeLimits, ignore: Sequence[str]) -> type[APIRoute]:
    """A route whose body has a cap and a deadline, and is JSON whatever its header says.

    The body is checked here and not by FastAPI, which resolves the route's dependencies for every request (a sixth of
    the cost of a chat that is passed on). Those dependencies only serve the OpenAPI document: the guard checks the key.
    """
    from fastapi import Request, Response
    from fastapi.routing import APIRoute

    class BodyRoute(APIRoute):
        def get_route_handler(self) -> Callable[..., Any]:
            model: Any = self.dependant.body_params[0].field_info.annotation

            async def handle(request: Request) -> Response:
                try:
                    raw = await read_body(request.scope, request.receive, limits.max_body_bytes, limits.stall_s)
                except ClientGone:
                    return Response(status_code=499)

                def reply() -> Response:
                    body = read(model, unheard(parse_json(raw), ignore, request.scope[NOTES]))
                    response: Response = self.endpoint(body)
                    cast(_JobReply, response).begin(request.scope[KEY].name)
                    return response

                return await asyncio.to_thread(reply) if len(raw) > LONG_BODY else reply()

            return handle

    return BodyRoute


def unheard(body: Any, ignore: Sequence[str], notes: MutableMapping[str, Any]) -> Any:
    """`body` without the fields that the operator has told this server to ignore; their names go into the notes."""
    if not ignore or not isinstance(body, dict) or not (names := [name for name in ignore if name in body]):
        return body
    notes["ignored"] = names
    return {name: value for name, value in body.items() if name not in names}


class _JobReply:
    """The reply to one request, whole or as a stream; when the client goes away, its job is cancelled."""

    background: Any = None

    def __init__(self, service: InferenceService, store: ResponseStore, dialect: ApiDialect, body: Any) -> None:
        self._service, self._store, self._dialect, self._body = service, store, dialect, body

    def begin(self, owner: str) -> None:
        """Translate the body for the key of this name."""
        self._dialect.begin(self._body, self._store, owner)
        self._request, self._encoder = self._dialect.parse(self._body), self._dialect.encoder(self._body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await unless_gone(receive, self._answer(scope, send))

    async def _answer(self, scope: Scope, send: Send) -> None:
        trace = {k.decode(): v.decode("latin-1") for k, v in scope["headers"] if k in TRACE}
        name = secrets.token_hex(12)
        job = await self._service.open(self._request, scope[KEY], name, trace)
        scope[NOTES]["reply_id"] = name
        scope[STANDING].update(job.headers)
        try:
            async with job:
                await self._send(job, send)
        finally:
            _note(scope, job)
            if self._service.config.log_prompts:
                request = self._request
                turns = [dump(message) for message in request.messages]
                scope[NOTES].update({"prompts": request.prompts} if request.raw else {"messages": turns})

    async def _send(self, job: ActiveRequest, send: Send) -> None:
        if job.plan.request.stream:
            limits, encode, heartbeat = self._service.config.limits, self._encoder.encode, self._dialect.heartbeat
            await stream_job(job, send, encode, limits.heartbeat_s, limits.stall_s, heartbeat)
        else:
            await send_json(send, 200, self._dialect.reply(self._body, await whole_reply(job)))


class _CountReply(_JobReply):
    """The reply to a token count, which skips admission: it only renders the prompt."""

    async def _answer(self, scope: Scope, send: Send) -> None:
        num_tokens = await self._service.count(self._request)
        await send_json(send, 200, self._dialect.reply(self._body, num_tokens))


def _responses(dialect: ApiDialect) -> dict[int | str, dict[str, Any]]:
    """What the description says of replies: a stream instead of the whole, and the dialect's refusals."""
    refusals = {status: {"model": dialect.refusal, "description": text} for status, text in _REFUSALS.items()}
    stream: dict[str, Any] = {} if dialect.counts else {"content": {"text/event-stream": {}}}
    return {
        200: stream,
        **{dialect.status(status): reply for status, reply in refusals.items()},
        "4XX": {"model": dialect.refusal, "description": "Any other refusal."},
    }


_LISTED = {"x-reason": "GET /v1/models lists the names"}


def _for_server(
    model: type[BaseModel], names: Sequence[str], default: str | None, search: type[BaseModel]
) -> type[BaseModel]:
    """The dialect's model with this server's strategies, and its models in the description.

    The names are not part of the check: another one is a 404, not a malformed request. `default` is the model of a
    request that names none; None: it is refused.
    """
    annotation = model.model_fields["model"]
    value: Any = ... if default is None else default
    described: Any = Field(value, max_length=512, json_schema_extra={"enum": list(names), **_LISTED})
    fields: Any = {"model": (annotation.annotation, described), "ttc": (search | None, None)}
    return create_model(model.__name__, __base__=model, **fields)


def _note(scope: Scope, job: ActiveRequest) -> None:
    """What the access log says about a request; none of its text, unless the operator asked for that."""
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
        **({"spent": {one.model: one.usage.tokens for one in job.spent}} if len(job.spent) > 1 else {}),
    )
