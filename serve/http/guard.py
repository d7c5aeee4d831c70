"""The outermost layer: request ids, keys, and a last resort for defects. Plain ASGI.

Whether a key is needed is decided on the raw path, before routing: every path needs one except those of the short open
list, exactly as written there, so no other spelling of a path avoids the check. After that, extra slashes are ignored,
as a base URL that ends in one adds them: a redirect would lose the body.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from serve.http.posts import KEY, NOTES, REQUEST_ID, STANDING, ASGIApp, Receive, Scope, Send, send_json
from serve.operator.config import HttpSettings
from serve.operator.keys import ANYONE, Key, KeyRing, find_key
from serve.requests.errors import ApiError

OPEN = frozenset({b"/health", b"/ready"})
_SLASHES = re.compile(r"/+")
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_log = logging.getLogger("serve.access")


class AccessGuard:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        open_paths: frozenset[bytes] = frozenset(),
        refusals: Mapping[str, Callable[[ApiError], Any]] | None = None,
        http: HttpSettings | None = None,
        leaving: Callable[[], bool] = lambda: False,
        count: Callable[[str, int], None] = lambda code, status: None,
    ) -> None:
        """Without `keys` anyone may ask; `open_paths` need none either. `refusals` are bodies of errors by path.

        While it is `leaving`, the server closes each connection after the reply, so the next request goes elsewhere.
        `count` is told the code and the status of every refusal.
        """
        self._app, self._keys, self._open = app, keys, OPEN | open_paths
        self._http, self._leaving, self._count = http or HttpSettings(), leaving, count
        self._refusals = dict(refusals or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and pass on a request; the application's start and end go straight through, WebSockets are refused."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.monotonic()
        raw_path = scope.get("raw_path", scope["path"].encode())
        scope["path"] = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        scope[REQUEST_ID], scope[NOTES], scope[STANDING] = _request_id(scope), {}, {}
        body_of: Callable[[ApiError], Any] = self._refusals.get(scope["path"], ApiError.to_json)
        reply = _Reply(scope, send, self._leaving)
        try:
            key = scope[KEY] = self._key(scope, raw_path)
            scope[NOTES].update({} if key is ANYONE else {"key": key.name})
            await self._app(scope, receive, reply.send)
        except ApiError as refusal:
            self._count(refusal.code, refusal.status)
            scope[NOTES]["error"] = refusal.code
            if not reply.status:
                await send_json(reply.send, refusal.status, body_of(refusal), refusal.headers())
        except Exception:
            _log.exception("internal error", extra={"request_id": scope[REQUEST_ID]})
            if not reply.status:
                error = ApiError(500, "internal_error", "an error of the server itself; its log says more")
                await send_json(reply.send, 500, body_of(error))
        finally:
            _log_request(scope, reply.status, started)

    def _key(self, scope: Scope, path: bytes) -> Key:
        """The key of a request for a path as written; raises ApiError, 401, if one is needed and none is right."""
        if not self._keys:
            check_neighbour(scope, self._http)
            return ANYONE
        if path in self._open:
            return ANYONE
        headers = dict(scope["headers"])
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        presented = token.strip() if kind.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()
        if not presented:
            raise ApiError(401, "missing_api_key", "a key is needed: send the header Authorization: Bearer KEY")
        key = find_key(presented.decode("utf-8", "surrogateescape"), self._keys.keys)
        if key is None:
            raise ApiError(401, "invalid_api_key", "the key is not known here")
        return key


class _Reply:
    """The reply to one request, with the headers that every reply has."""

    def __init__(self, scope: Scope, send: Send, leaving: Callable[[], bool]) -> None:
        self._scope, self._send, self._leaving = scope, send, leaving
        self.status = 0
        """0 until the reply has begun."""

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message of the application, the headers of the first one completed."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            name = self._scope[REQUEST_ID].encode()
            headers = [*message.get("headers", ()), (b"x-request-id", name), (b"request-id", name)]
            headers += [(name.encode(), value.encode()) for name, value in self._scope[STANDING].items()]
            if ignored := self._scope[NOTES].get("ignored"):
                headers.append((b"x-ttc-ignored", ", ".join(ignored).encode()))
            if self._leaving():
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)


def _log_request(scope: Scope, status: int, started: float) -> None:
    """Write the line of a request that has ended; status 499 is that of a client that left before any reply."""
    _log.info(
        "request",
        extra={
            "request_id": scope[REQUEST_ID],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status or 499,
            "ms": round(1000 * (time.monotonic() - started), 1),
            **scope[NOTES],
        },
    )


def check_neighbour(scope: Scope, http: HttpSettings) -> None:
    """Refuse requests of foreign pages to a server without keys that listens on loopback.

    A browser on this machine sends them for any page: under a name that its owner points here (DNS rebinding, seen in
    Host), or by a plain form or fetch (seen in Origin). Raises ApiError, 403 or 421.
    """
    server = scope.get("server")
    if not server or not is_loopback(str(server[0])):
        return
    headers = dict(scope["headers"])
    host = _hostname(headers.get(b"host", b"localhost").decode("latin-1"))
    if not (is_loopback(host) or host in http.hosts):
        why = f"this server has no key and answers to its own names only, not to {host[:100]!r}"
        raise ApiError(421, "host_not_allowed", f"{why}: set http.hosts, or a key")
    origin = headers.get(b"origin", b"").decode("latin-1")
    page = _hostname(origin.partition("://")[2])
    if origin and not (is_loopback(page) or page == host or origin in http.cors_origins or "*" in http.cors_origins):
        why = f"this server has no key and does not answer pages of {origin[:100]!r}"
        raise ApiError(403, "origin_not_allowed", f"{why}: set http.cors_origins, or a key")


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    if host in ("127.0.0.1", "localhost", "::1") or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # of a socket that takes IPv4 and IPv6


def _hostname(place: str) -> str:
    """The name of HOST, HOST:PORT or [ADDRESS]:PORT."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0].rstrip(".").lower()


def _request_id(scope: Scope) -> str:
    """The client's own X-Request-Id where it is a plain name, else a new one."""
    name = dict(scope["headers"]).get(b"x-request-id", b"")
    return name.decode() if _ID.fullmatch(name) else secrets.token_hex(12)
