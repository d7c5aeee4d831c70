"""From ASGI to a job and back: bodies with a cap, replies, streams with heartbeats, and clients that go away.

While a request is worked on, a second task watches the connection: when the client is gone, the work is cancelled, and
with it every branch in the engine. The status of a stream is sent with its first event, so a request that fails before
it has said anything gets a proper status.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeAlias

from serve.dialects.sse import HEARTBEAT
from serve.requests.errors import ApiError
from serve.running.events import Done, Finish, RequestFailed, Started, WholeReply
from serve.running.service import ActiveRequest

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BATCH_BYTES = 1 << 16
"""Most that is sent at once, so that a slow client holds the stream back and not the server's memory."""
EARLY_S = 1.0
"""How long a stream waits for its first event before it commits to status 200."""


class ClientGone(Exception):
    """The client closed the connection, or reads nothing any more."""


async def read_body(scope: Scope, receive: Receive, limit: int, within_s: float) -> bytes:
    """Read the whole body.

    Raises:
        ApiError: 413 when it is longer than `limit` bytes, by its header or in truth; 408 when it takes too long.
        ClientGone: the client went away meanwhile.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _read_body(scope, receive, limit)
    except TimeoutError as exc:
        raise ApiError(408, "body_too_slow", f"the body did not come within {within_s:g} s") from exc


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    refusal = ApiError(413, "body_too_large", f"the body is larger than this server's limit of {limit} bytes")
    length = dict(scope["headers"]).get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
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
            raise refusal
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


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


def json_bytes(body: Any) -> bytes:
    """The JSON text of a reply."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


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
    """Send the events of `job` as they come; what came meanwhile goes out together; silence is filled by `heartbeat`.

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
    """Send, but wait for a client that does not read only so long; then it counts as gone."""
    try:
        async with asyncio.timeout(stall_s):
            await send({"type": "http.response.body", "body": chunks, "more_body": more})
    except TimeoutError as exc:
        raise ClientGone from exc
