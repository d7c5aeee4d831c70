"""What a connection may do before its key is checked: uvicorn's HTTP protocol with limits.

The head of a request has `header_s` seconds and `max_header_bytes` bytes, counted before they are parsed, since parsing
one long line takes time that grows with the square of its length. A body that is no longer read is accepted up to the
same limits. So is the overhead of a body: the sizes of its chunks, and trailers, which are dropped, since nobody would
check them as headers. A client that reads nothing of its replies for `stall_s` is disconnected, and so is one that
sends many requests before the first reply. Connections beyond `max_connections` are refused at once, and so is a head
that could be read in two ways: without a Host or with two, with two keys, older than HTTP/1.0. These refusals are JSON,
logged and counted like all others, and end the connection. Cost: an addition for each packet, one timer for a request.

Left out: limits by address, since all clients of a proxy share one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from serve.operator.config import HttpSettings
from serve.requests.errors import ApiError, json_bytes

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
else:
    HttpToolsProtocol = object  # `bounded` puts uvicorn's behind it

_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
"""Java's client and `curl --http2` ask for HTTP/2 in every request. A server may stay with HTTP/1.1, but the parser
drops the body of a request that asks, so it is not shown the header."""
MAX_HEADERS = 128
MAX_WAITING = 32
"""Requests of a connection that wait for the reply to an earlier one, which few clients send: each takes memory."""
BESIDE = 9
"""Bytes allowed for each byte of a body, itself included: a chunk of one byte has five bytes of overhead."""
SINGLE = (b"host", b"authorization", b"x-api-key", b"content-length", b"content-type")
"""Headers that may stand only once."""
_log = logging.getLogger("serve.access")


class BoundedProtocol(HttpToolsProtocol):
    """One connection; `bounded` makes the class that has uvicorn's parts and the settings."""

    settings = HttpSettings()
    stall_s = 60.0
    count: Callable[[str, int], None] = staticmethod(lambda code, status: None)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what uvicorn gives."""
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None
        self._size = self._unread = self._beside = 0
        self._in_head, self._refused = True, False
        self._unanswered: list[Any] = []
        """The requests of this connection without a whole reply: the parser knows the last one only."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head, where there is room for one more connection."""
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(ApiError(503, "too_many_connections", "too many connections: try later", retry_after_s=1))
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers too, and tell every request whose reply nobody reads any more."""
        self._stop_waiting()
        self._keep()
        super().connection_lost(exc)
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def pause_writing(self) -> None:
        """Start the time within which a client must read: what it was sent takes memory here."""
        super().pause_writing()
        self._drop_later()

    def resume_writing(self) -> None:
        """Stop that time: the client reads again."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._keep()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client has not read everything."""
        super().timeout_keep_alive_handler()
        self._drop_later()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head, then parse."""
        if self._refused:
            return
        if self._in_head:
            self._size += len(data)
            if self._timer is None:
                self._wait()
            if self._size > self.settings.max_header_bytes + len(data):  # what came before was a head alone
                self._refuse(self._too_large())
                return
            end = data.find(b"\r\n\r\n")
            upgrade = _UPGRADE.search(data, 0, len(data) if end < 0 else end)
            if upgrade is not None:
                data = data[: upgrade.start()] + b"\r\nx-asked" + data[upgrade.end() :]
        else:
            self._beside += len(data)
        super().data_received(data)
        if not (self._in_head or self._refused):
            self._bound_rest()

    def _bound_rest(self) -> None:
        """End a body with too much overhead, and, after a time, one that continues after its reply was sent."""
        if self._beside > self.settings.max_header_bytes:
            self._end()
        elif self.cycle.response_complete and self._timer is None:
            self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line; ignore trailers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Accept headers of a permitted size and unambiguous meaning."""
        if self._refused:
            return
        self._stop_waiting()
        self._in_head, self._unread, self._beside = False, 0, 0
        fault = self._fault()
        if fault is not None:
            self._refuse(fault)
        elif len(self.pipeline) < MAX_WAITING:
            app = self.app
            if self.parser.get_http_version() == "1.0":
                self.app = _without_chunks(app)
            super().on_headers_complete()
            self.app = app
            self._unanswered = [one for one in (*self._unanswered, self.cycle) if not one.response_complete]
        else:
            self._end()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; if nobody reads it any more, only up to a size and for a time."""
        if self._refused:
            return
        self._beside -= BESIDE * len(body)
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self.settings.max_header_bytes:
                self._end()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next bytes are a head again."""
        self._in_head, self._size = True, 0
        if self._refused:
            return
        self._stop_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Send the refusal as JSON."""
        self._refuse(ApiError(400, "invalid_http", "this is not HTTP/1.1: " + msg))

    def _fault(self) -> ApiError | None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.settings.max_header_bytes or len(self.headers) > MAX_HEADERS:
            return self._too_large()
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return ApiError(505, "http_version", f"HTTP/{version} is not served here: send HTTP/1.1")
        names = [name for name, _ in self.headers]
        twice = next((name.decode() for name in SINGLE if names.count(name) > 1), None)
        if twice is not None:
            return ApiError(400, "ambiguous_header", f"the header {twice} is there twice: send it once")
        if version == "1.1" and b"host" not in names:
            return ApiError(400, "missing_host", "the header Host is missing: HTTP/1.1 needs it")
        return None

    def _too_large(self) -> ApiError:
        most = f"{self.settings.max_header_bytes} bytes and {MAX_HEADERS} lines"
        return ApiError(431, "headers_too_large", f"the headers are larger than this server's limit of {most}")

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.settings.header_s, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self._in_head:
            self._end()
        elif self._size or self.cycle is None:
            within = f"{self.settings.header_s:g} s"
            error = ApiError(408, "headers_too_slow", f"the head of the request did not come within {within}")
            self._refuse(error, is_request=self._size > 0)  # browsers open connections that they may never use

    def _refuse(self, error: ApiError, *, is_request: bool = True) -> None:
        """Answer, unless a reply is under way, and end the connection; what was no request is not noted."""
        self._refused = True
        busy = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not busy and not self.transport.is_closing():
            name = secrets.token_hex(12)
            if is_request:
                self.count(error.code, error.status)
                note = {"request_id": name, "status": error.status, "error": error.code}
                _log.info("refused at the door", extra=note)
            body = json_bytes(error.to_json())
            status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n".encode()
            head = [b"content-type: application/json\r\n", b"content-length: %d\r\n" % len(body)]
            head.append(b"x-request-id: %s\r\nrequest-id: %s\r\n" % (name.encode(), name.encode()))
            head += [f"{name}: {value}\r\n".encode("latin-1") for name, value in error.headers().items()]
            self.transport.write(b"".join([status, *head, b"connection: close\r\n\r\n", body]))
        self._end()

    def _end(self) -> None:
        self._refused = True
        self._stop_waiting()
        self.transport.close()
        self._drop_later()

    def _drop_later(self) -> None:
        """End the connection after `stall_s`; a close would wait forever for a client that does not read."""
        if self._last is None:
            self._last = self.loop.call_later(self.stall_s, self.transport.abort)

    def _keep(self) -> None:
        if self._last is not None:
            self._last.cancel()
            self._last = None


def _without_chunks(app: Any) -> Any:
    """`app` for a client of HTTP/1.0, which knows no chunks: a reply without a length ends with the connection."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        cycle, is_open = send.__self__, False

        async def send_plain(message: Any) -> None:
            nonlocal is_open
            if message["type"] == "http.response.start":
                is_open = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = False if is_open else None
            elif is_open:
                cycle.expected_content_length = len(message.get("body", b""))  # which uvicorn would have known before
            await send(message)

        await app(scope, receive, send_plain)

    return answer


def bounded(settings: HttpSettings, stall_s: float, count: Callable[[str, int], None]) -> type[BoundedProtocol]:
    """The protocol under these settings, as uvicorn takes it: a class.

    A client may take nothing for `stall_s`; `count` is told the code and the status of every refusal.
    """
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Parsed

    own = {"settings": settings, "stall_s": stall_s, "count": staticmethod(count)}
    return type("Bounded", (BoundedProtocol, Parsed), own)
