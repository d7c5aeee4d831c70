"""HTTP connections to one server, for every remote engine: aiohttp, with the environment's proxies and certificates.

aiohttp's parser is in C, and its pool does not check every idle connection twice per request, as httpx's does. It uses
a proxy that the environment names, and the certificates that httpx trusts. A server may close a kept-alive connection
while a request is on its way, which says nothing about the server. Left out: HTTP/2, mutual TLS.
"""

from __future__ import annotations

import math
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ttc.engines.shared.balance import Transient
from ttc.errors import EngineError

if TYPE_CHECKING:
    from types import SimpleNamespace

    from aiohttp import ClientResponse, ClientSession, ClientTimeout

KEEP_S = 3.0
"""Seconds after which an idle connection is closed: earlier than servers do (5 s in vLLM and other users of uvicorn).

A server may close one while a request is on its way, and the attempt then fails needlessly.
"""
MAX_HEAD = 1 << 15
HIGH = 1 << 17
"""Unread bytes at which reading from the server pauses."""


def open_session(
    url: str, *, headers: Mapping[str, str], limit: int, timeout: ClientTimeout, tls: ssl.SSLContext | bool
) -> ClientSession:
    """A session of at most `limit` connections (0: unlimited) to the server at `url`, for the running loop."""
    import aiohttp

    reuse = aiohttp.TraceConfig()
    reuse.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEP_S, ssl=tls),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "ttc", "accept-encoding": "identity", **headers},
        read_bufsize=HIGH,
        max_line_size=MAX_HEAD,
        max_field_size=MAX_HEAD,
        proxy=_proxy(url),
        trace_configs=[reuse],
    )


async def reply_to(session: ClientSession, method: str, url: str, **options: Any) -> ClientResponse:
    """Send a request over a session of `open_session`; returns once the head of the reply is there.

    `options` are aiohttp's.

    Raises:
        Transient: a kept-alive connection was closed before the reply; the server need not have failed.
        aiohttp.ClientError: no connection, or a new one broke.
    """
    import aiohttp

    flags: list[bool] = []
    try:
        return await session.request(method, url, trace_request_ctx=flags, **options)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError) as exc:
        if not flags:
            raise
        place = urllib.parse.urlsplit(url).netloc
        raise Transient(EngineError(f"{place} closed a kept connection: {exc}"), is_of_connection=True) from exc


async def _note_reuse(_session: ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.append(True)


def timeouts(connect_s: float, silence_s: float) -> ClientTimeout:
    """Timeouts: seconds to connect, and of silence (inf: unlimited); waiting for a free connection has no limit."""
    import aiohttp

    silence = None if math.isinf(silence_s) else silence_s
    return aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silence)


def certificates(*urls: str) -> ssl.SSLContext | bool:
    """The trusted certificates, read only if some server uses TLS, since reading takes a tenth of a second."""
    if not any(url.startswith("https://") for url in urls):
        return True
    import httpx2

    return httpx2.create_ssl_context()


def _proxy(url: str) -> str | None:
    """The proxy set in the environment; aiohttp's own lookup costs half a millisecond per request."""
    place = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(place.netloc):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(place.scheme) or proxies.get("all")
