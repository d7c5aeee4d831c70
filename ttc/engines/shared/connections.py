"""Connections to one server, for every engine over HTTP: aiohttp's, by the proxies and certificates of the environment.

aiohttp's parser is in C, and its pool does not look at every idle connection twice a request, as httpx's does. A proxy
that the environment names is used, and the certificates that httpx trusts. A server may close a kept connection while
a request is on its way to it, which says nothing of the server. Left out: HTTP/2, mutual TLS.
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
"""An idle connection is closed after so many seconds: before the server does (5 s in vLLM and other users of uvicorn),
which may close one while a request is on its way, an attempt that fails for nothing."""
MAX_HEAD = 1 << 15
HIGH = 1 << 17
"""Bytes that wait to be taken before the server is not read from any more."""


def open_session(
    url: str, *, headers: Mapping[str, str], limit: int, timeout: ClientTimeout, tls: ssl.SSLContext | bool
) -> ClientSession:
    """At most `limit` connections (0: any number) to the server at `url`, for the loop that runs; opens none yet."""
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
    """The reply to a request over a session of `open_session`, once its head has come; `options` are aiohttp's.

    Raises:
        Transient: a kept connection was closed before the reply, by a server that need not have failed.
        aiohttp.ClientError: no connection, or a new one that broke.
    """
    import aiohttp

    kept: list[bool] = []
    try:
        return await session.request(method, url, trace_request_ctx=kept, **options)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError) as exc:
        if not kept:
            raise
        place = urllib.parse.urlsplit(url).netloc
        raise Transient(EngineError(f"{place} closed a kept connection: {exc}"), is_of_connection=True) from exc


async def _note_reuse(_session: ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.append(True)


def timeouts(connect_s: float, silence_s: float) -> ClientTimeout:
    """Silence of so many seconds (inf: any); who waits for a free connection waits as long as that takes."""
    import aiohttp

    silence = None if math.isinf(silence_s) else silence_s
    return aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silence)


def certificates(*urls: str) -> ssl.SSLContext | bool:
    """What to trust, read only when some server speaks TLS: reading takes a tenth second."""
    if not any(url.startswith("https://") for url in urls):
        return True
    import httpx2

    return httpx2.create_ssl_context()


def _proxy(url: str) -> str | None:
    """The proxy that the environment names; aiohttp's own look at it costs half a millisecond a request."""
    place = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(place.netloc):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(place.scheme) or proxies.get("all")
