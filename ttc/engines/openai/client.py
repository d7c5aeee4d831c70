"""One OpenAI-compatible server: sends requests, returns streams of plain dictionaries, raises our errors.

Requests use aiohttp (`ttc.engines.shared.connections`), without an SDK. Nothing is retried here
(`ttc.engines.shared.balance` decides); `refusals` interprets error replies. A JSON object in place of a stream becomes
a stream of one chunk. Limits on what a server may send: aiohttp's on headers (`MAX_HEAD` a line), `MAX_EVENT` for one
event or a `get`; answers to `post` are unlimited. Unread data waits in the kernel. Redirects are not followed: like a
wrong address, they are for the operator to correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ttc.engines.openai.refusals import Access, refuse, status_of, words_of
from ttc.engines.shared.balance import Transient
from ttc.engines.shared.connections import certificates, open_session, reply_to, timeouts
from ttc.errors import EngineError, EngineTimeout, ServerRefused

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

Chunk = Mapping[str, Any]
MAX_CONNECTIONS = 1000
MAX_EVENT = 1 << 24
DRAIN_S = 0.1
"""Seconds that the end of a stream may take after its `[DONE]` before the connection is closed."""
PATIENCE = 10
"""A whole answer may take this many times the idle time, while its server answers other requests."""
_COUNTS = re.compile(r"\d+ of \d+ bytes")
ACCOUNT = {"OPENAI_ORG_ID": "openai-organization", "OPENAI_PROJECT_ID": "openai-project"}
"""Environment variables of the SDK for the billed account, and their headers."""


class Client:
    """The connections to one server; bound to the event loop that first uses it."""

    def __init__(self, url: str, access: Access) -> None:
        """Open no connection yet."""
        self._url, self._access = url, access
        self._opened: ClientSession | None = None

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Chunk]]:
        """Post `body` and yield the chunks of the answer; leaving the block early closes the connection (an abort).

        If `body` does not request a stream there is one chunk, awaited as in `post_patiently`.

        Raises:
            Transient: a failure that may pass, before the first chunk or between two.
            EngineError: a permanent failure; PromptTooLong when the context is exceeded.
            ConfigError: a wrong key, model or URL.
        """
        if body.get("stream") is False:
            yield self._one(path, body)
            return
        async with self._asked("POST", path, body) as response, contextlib.aclosing(self._chunks(response)) as chunks:
            yield chunks

    async def post(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """Post `body` and return the whole answer; raises like `stream`."""
        return await self._answer(path, body, self._access.idle_s)

    async def post_patiently(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """Post `body` and return the whole answer, however long it takes; cancelling closes the connection (an abort).

        Nothing arrives while the server decodes, so silence alone is not a failure: after each idle time the server
        gets another request. It counts as dead if it does not answer that, or after `PATIENCE` idle times. Raises like
        `stream`.
        """
        answer = asyncio.ensure_future(self._answer(path, body, math.inf))
        try:
            for _ in range(PATIENCE):
                await asyncio.wait({answer}, timeout=self._access.idle_s)
                if answer.done():
                    return answer.result()
                await self.get("/models")
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
        raise Transient(EngineTimeout(f"{self._url} answers, but not this request, in {PATIENCE} times idle_s"))

    async def _one(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Chunk, None]:
        yield self._answered(await self.post_patiently(path, body))

    async def get(self, path: str) -> Chunk:
        """Get a JSON object; raises like `stream`."""
        async with self._asked("GET", path, None) as response:
            return self._object(await self._whole(response, MAX_EVENT))

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    async def _answer(self, path: str, body: Mapping[str, Any], idle_s: float) -> Chunk:
        async with self._asked("POST", path, body, idle_s) as response:
            return self._object(await self._whole(response, math.inf))

    def _session(self) -> ClientSession:
        """The session, which is bound to the running loop."""
        if self._opened is None:
            account = {header: os.environ[name] for name, header in ACCOUNT.items() if os.environ.get(name)}
            self._opened = open_session(
                self._url,
                headers={
                    "accept": "application/json, text/event-stream",
                    "authorization": f"Bearer {self._access.key or 'none'}",
                    **account,
                },
                limit=MAX_CONNECTIONS,
                timeout=timeouts(self._access.connect_s, self._access.idle_s),
                tls=certificates(self._url),
            )
        return self._opened

    @contextlib.asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None, idle_s: float | None = None
    ) -> AsyncIterator[ClientResponse]:
        """Yield the reply to a request once its head is there without an error; a fully read connection is kept."""
        session = self._session()
        url = path if "://" in path else f"{self._url.rstrip('/')}{path}"
        data = None if body is None else json.dumps(dict(body)).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        timeout = session.timeout if idle_s is None else timeouts(self._access.connect_s, idle_s)
        with self._lost():
            response = await reply_to(
                session, method, url, data=data, headers=headers, allow_redirects=False, timeout=timeout
            )
        try:
            if response.status >= 300:
                words = words_of(self._parsed(await self._whole(response, MAX_EVENT)), f"status {response.status}")
                self._refuse(response.status, words, response.headers)
            yield response
        finally:
            response.release()

    async def _whole(self, response: ClientResponse, most: float) -> bytes:
        parts, size = [], 0
        with self._lost():
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise EngineError("its reply is too long")
        return b"".join(parts)

    async def _chunks(self, response: ClientResponse) -> AsyncGenerator[Chunk, None]:
        """The JSON objects of an event stream, up to `[DONE]` or its end; or the single object sent instead of one."""
        events = _Events()
        while True:
            with self._lost():
                part = await response.content.readany()
            if events.opens_object(part):
                yield self._answered(self._object(events.rest + part + await self._whole(response, MAX_EVENT)))
                return
            with self._lost():
                complete = events.feed(part)
            for data in complete:
                if data.startswith(b"[DONE]"):
                    await _drained(response)
                    return
                yield self._chunk(data)
            if not part:
                break
        if not events.is_begun:
            raise Transient(EngineError(no_events(self._url, response.content_type)))

    def _answered(self, answer: Chunk) -> Chunk:
        """Return a whole answer; raises Transient unless it is one."""
        if self._without_error(answer).get("choices") is None:
            raise Transient(EngineError(no_choices(self._url, self._access, answer)))
        return answer

    def _chunk(self, data: bytes) -> Chunk:
        return self._without_error(self._object(data))

    def _without_error(self, chunk: Chunk) -> Chunk:
        error = chunk.get("error")
        flat = chunk.get("object") == "error"
        if error or flat:
            code = error.get("code") if isinstance(error, Mapping) else chunk.get("code")
            self._refuse(status_of(code), words_of(chunk, "an error"), {})
        return chunk

    def _object(self, data: bytes) -> Chunk:
        try:
            value = _value(data)
        except (ValueError, RecursionError) as exc:
            raise self._unreadable(str(exc)) from exc
        if not isinstance(value, Mapping):
            raise self._unreadable(f"expected a JSON object, got {type(value).__name__}")
        return value

    def _parsed(self, data: bytes) -> object:
        """The JSON of an error reply, or its text."""
        try:
            return _value(data)
        except (ValueError, RecursionError):
            return {"message": data[:1000].decode("utf-8", "replace")} if data else None

    def _refuse(self, status: int, said: str, headers: Mapping[str, str]) -> None:
        if status < 400:
            raise ServerRefused(f"{self._url} redirects (status {status}): name the address it leads to")
        refuse(self._url, self._access, status, said, headers)

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Turn connection failures into Transient."""
        import aiohttp

        try:
            yield
        except aiohttp.SocketTimeoutError as exc:
            raise Transient(EngineTimeout(f"{self._url} was silent for {self._access.idle_s:g} s")) from exc
        except aiohttp.ServerTimeoutError as exc:
            error = EngineTimeout(f"{self._url} took no connection in {self._access.connect_s:g} s")
            raise Transient(error) from exc
        except aiohttp.ClientPayloadError as exc:
            counts = _COUNTS.search(str(exc))
            how = f" ({counts[0]})" if counts else ""
            raise Transient(EngineError(f"{self._url} broke the connection in the middle of its reply{how}")) from exc
        except (aiohttp.ClientError, EngineError, OSError) as exc:
            words = self._access.hide(str(exc) or type(exc).__name__)
            raise Transient(EngineError(f"{self._url} cannot be reached: {words}")) from exc

    def _unreadable(self, words: str) -> Transient:
        return Transient(EngineError(f"{self._url} sent something unreadable: {self._access.hide(words)}"))


class _Events:
    """Splits a stream of bytes into the data of its server-sent events."""

    def __init__(self) -> None:
        self.rest = b""
        """Bytes after the last complete line."""
        self.is_begun = False
        """Whether a line with data has come."""
        self._lines: list[bytes] = []

    def opens_object(self, part: bytes) -> bool:
        """Whether the stream begins with a JSON object instead of an event, if `part` comes next."""
        return not self.is_begun and (self.rest + part).removeprefix(BOM_UTF8).lstrip().startswith(b"{")

    def feed(self, part: bytes) -> list[bytes]:
        """Add a part, or b"" at the end of the stream; returns the data of the events that it completes.

        Raises:
            EngineError: a line is too long.
        """
        if len(self.rest) + len(part) > MAX_EVENT:
            raise EngineError("an event is too long")
        *lines, self.rest = (self.rest + part).split(b"\n") if part else (self.rest, b"", b"")
        return [data for data in map(self._add, lines) if data is not None]

    def _add(self, line: bytes) -> bytes | None:
        """Add a line; returns the data of the event that it ends, if any."""
        line = line.rstrip(b"\r") if self.is_begun else line.rstrip(b"\r").removeprefix(BOM_UTF8)
        if line.startswith(b"data:"):
            self.is_begun = True
            self._lines.append(line[5:].removeprefix(b" "))
        elif not line and self._lines:
            data = b"\n".join(self._lines)
            self._lines.clear()
            return data
        return None


def no_events(url: str, content_type: str) -> str:
    """The error message for a reply that is neither an event stream nor a JSON object."""
    return f"{url} answers a completion with {content_type}, not with events or JSON: check engine.base_url"


def no_choices(url: str, access: Access, answer: Chunk) -> str:
    """The error message for an object that is not an answer: some servers report errors that way, with status 200."""
    return f"{url} answers a completion without choices: {access.hide(json.dumps(dict(answer), ensure_ascii=False))}"


async def _drained(response: ClientResponse) -> None:
    """Read what follows `[DONE]`, so that the connection can be reused; failures are ignored."""
    import aiohttp

    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(DRAIN_S):
            while await response.content.readany():
                pass


def _value(data: bytes) -> Any:
    """Parse `data` with the faster parser, or with Python's own for lone surrogates, which the faster one refuses."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError:
        return json.loads(data)
