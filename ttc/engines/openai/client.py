"""One OpenAI-compatible server, through the official SDK: streams of plain dictionaries in, our errors out.

The only file that talks to the `openai` package. The SDK's own retries are off (`ttc.engines.shared.balance` decides);
chunks are left as dictionaries, since servers add fields and put values into known ones that the SDK's types do not
foresee. Every failure is translated here: into `Transient` when it may pass, otherwise into an error that names the
server and says what it said. The key is sent and nothing else: it is taken out of every message, also when a server
repeats it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ttc.engines.shared.balance import Transient, is_transient, retry_after_s
from ttc.errors import ConfigError, EngineBusy, EngineError, EngineTimeout, PromptTooLong, ServerRefused

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

Chunk = Mapping[str, Any]
MAX_MESSAGE = 400
KEEP_S = 3.0
"""An idle connection is closed after so many seconds: before the server does (5 s in vLLM and other users of uvicorn),
which may close one while a request is on its way, an attempt that fails for nothing."""
MAX_CONNECTIONS = 1000
PATIENCE = 10
"""A whole answer may take so many times the idle time, as long as its server answers other questions."""
_TOO_LONG = re.compile(r"context.?(length|window|size)|maximum context|max_model_len|too many tokens|too long", re.I)


class Busy(EngineError):
    """The server cannot answer at this moment: overloaded, starting, or gone."""


class NotFound(ServerRefused):
    """404: the server has no such route, or no such model."""


@dataclass(frozen=True, slots=True)
class Access:
    """The key (never printed) and the time limits: seconds to connect, and of silence while connected."""

    key: str = field(repr=False)
    connect_s: float
    idle_s: float

    def hide(self, text: str) -> str:
        """`text` without the key, and not longer than a line or two."""
        message = text.replace(self.key, "[key]") if self.key else text
        return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."

    def options(self, url: str, max_retries: int) -> dict[str, Any]:
        """Arguments of the SDK's clients."""
        import openai

        return {
            "api_key": self.key or "none",
            "base_url": url,
            "timeout": openai.Timeout(self.idle_s, connect=self.connect_s, pool=None),
            "max_retries": max_retries,
        }


class Client:
    """The draws' way to one server; belongs to the event loop that first uses it."""

    def __init__(self, url: str, access: Access) -> None:
        """Open nothing yet."""
        import httpx2
        import openai

        self._url, self._access = url, access
        kept = httpx2.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_S
        )
        options = access.options(url, 0)
        pool = openai.DefaultAsyncHttpxClient(base_url=url, timeout=options["timeout"], limits=kept)
        self._sdk: AsyncOpenAI = openai.AsyncOpenAI(**options, http_client=pool)

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Chunk]]:
        """Post `body` and give the chunks of the answer; leaving the block early closes the connection (an abort).

        Raises:
            Transient: a failure that may pass, before the first chunk or between two.
            EngineError: one that does not; PromptTooLong when it is the context.
            ConfigError: a wrong key, model or URL.
        """
        import openai

        with _translated(self._url, self._access):
            stream = await self._sdk.post(
                path, body=dict(body), cast_to=object, stream=True, stream_cls=openai.AsyncStream[object]
            )
        chunks = self._checked(stream)
        try:
            yield chunks
        finally:
            await chunks.aclose()
            await stream.close()

    async def post(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """Post `body` and give the whole answer; raises like `stream`."""
        with _translated(self._url, self._access):
            return _object(await self._sdk.post(path, body=dict(body), cast_to=object))

    async def post_patiently(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """Post `body` and give the whole answer, however long it takes; cancelling closes the connection (an abort).

        Nothing arrives while the server decodes, so silence says nothing: after each idle time the server is asked
        something else, and only one that is silent then, too, or `PATIENCE` idle times, count as dead. Raises like
        `stream`.
        """
        import openai

        patient = openai.Timeout(None, connect=self._access.connect_s, pool=None)
        answer = asyncio.ensure_future(
            self._sdk.post(path, body=dict(body), cast_to=object, options={"timeout": patient})
        )
        try:
            with _translated(self._url, self._access):
                for _ in range(PATIENCE):
                    await asyncio.wait({answer}, timeout=self._access.idle_s)
                    if answer.done():
                        return _object(answer.result())
                    await self.get("/models")
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
        raise Transient(EngineTimeout(f"{self._url} answers, but not this request, in {PATIENCE} times idle_s"))

    async def get(self, path: str) -> Chunk:
        """Get an object; raises like `stream`."""
        with _translated(self._url, self._access):
            return _object(await self._sdk.get(path, cast_to=object))

    async def _checked(self, stream: Any) -> AsyncGenerator[Chunk, None]:
        with _translated(self._url, self._access):
            async for data in stream:
                yield _chunk(data)

    async def close(self) -> None:
        """Close the connections."""
        await self._sdk.close()


class SyncClient:
    """The same server before the run, from synchronous code: a few short requests, retried by the SDK.

    Raises what `Client.stream` raises, but for a failure that may pass an EngineError, Busy unless it was a plain 500.
    """

    def __init__(self, url: str, access: Access) -> None:
        """Open nothing yet."""
        import openai

        self._url, self._access = url, access
        self._sdk: OpenAI = openai.OpenAI(**access.options(url, 2))

    def get(self, path: str) -> Chunk:
        """Get an object."""
        with _final(), _translated(self._url, self._access):
            return _object(self._sdk.get(path, cast_to=object))

    def post(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """Post `body` and return the whole answer."""
        with _final(), _translated(self._url, self._access):
            return _object(self._sdk.post(path, body=dict(body), cast_to=object))

    def stream(self, path: str, body: Mapping[str, Any]) -> list[Chunk]:
        """Post `body` and return all chunks of the answer."""
        import openai

        with _final(), _translated(self._url, self._access):
            stream = self._sdk.post(
                path, body=dict(body), cast_to=object, stream=True, stream_cls=openai.Stream[object]
            )
            try:
                return [_chunk(data) for data in stream]
            finally:
                stream.close()

    def close(self) -> None:
        """Close the connections."""
        self._sdk.close()


@contextmanager
def _final() -> Iterator[None]:
    """Let a transient failure out as what it stands for; some servers say a plain 500 to what they cannot do."""
    try:
        yield
    except Transient as failure:
        error = failure.error if failure.status == 500 else Busy(str(failure.error))
        raise error from failure.__cause__


def _object(data: object) -> Chunk:
    if not isinstance(data, Mapping):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    return data


def _chunk(data: object) -> Chunk:
    """A chunk of a stream; the SDK recognises nested errors, flat ones (SGLang's) are recognised here."""
    chunk = _object(data)
    if chunk.get("object") == "error":
        raise _FlatError(str(chunk.get("message")), chunk.get("code"))
    return chunk


class _FlatError(Exception):
    """`{"object": "error", "message": ..., "code": int}` in the middle of a stream."""

    def __init__(self, message: str, code: object) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def _translated(url: str, access: Access) -> Iterator[None]:
    """Translate what the SDK raises; a message that held the key does not stay on as the cause."""
    import openai

    try:
        yield
    except openai.APIStatusError as exc:
        refuse(url, access, exc.status_code, words_of(exc.body, str(exc.message)), exc.response.headers, exc)
    except openai.APITimeoutError as exc:
        error = EngineTimeout(
            f"{url} was silent for {access.idle_s:g} s, or took no connection in {access.connect_s:g} s"
        )
        raise Transient(error) from exc
    except openai.APIConnectionError as exc:
        raise Transient(EngineError(f"{url} cannot be reached: {access.hide(_root(exc))}")) from exc
    except openai.APIError as exc:  # an error object in the middle of a stream
        refuse(url, access, status_of(exc.code), words_of(exc.body, str(exc.message)), {}, exc)
    except _FlatError as exc:
        refuse(url, access, status_of(exc.code), str(exc), {}, exc)
    except ValueError as exc:  # not JSON, not UTF-8, or no object
        if isinstance(exc, ConfigError | EngineError):
            raise
        raise Transient(EngineError(f"{url} sent something unreadable: {access.hide(str(exc))}")) from exc


def refuse(url: str, access: Access, status: int, said: str, headers: Mapping[str, str], exc: Exception) -> NoReturn:
    """Raise what an answer of `status` means; `said` is the server's own words, `exc` the cause.

    Raises:
        Transient: it may pass.
        EngineError: it does not; ServerRefused for a wrong key or URL, PromptTooLong when it is the context.
    """
    text = f"{url} answered {status}: {access.hide(said)}"
    cause = None if access.key and access.key in f"{exc} {said}" else exc
    if is_transient(status, headers):
        error = EngineBusy(text) if status == 429 else EngineError(text)
        if isinstance(error, EngineBusy):
            error.retry_after_s = retry_after_s(headers)
        raise Transient(error, retry_after_s=retry_after_s(headers), status=status) from cause
    if status in (401, 403):
        raise ServerRefused(f"{text}; check the key in the environment (engine.api_key_env)") from cause
    if status == 404:
        raise NotFound(f"{text}; check engine.base_url (it ends in /v1 as a rule) and --model") from cause
    if _TOO_LONG.search(said):
        raise PromptTooLong(text) from cause
    raise EngineError(text) from cause


def status_of(code: object) -> int:
    """The status that an error in a stream carries; without one the server is at fault."""
    text = str(code)
    return int(text) if text.isdecimal() and 400 <= int(text) < 600 else 500


def words_of(body: object, otherwise: str) -> str:
    """What a server said with an error, from the nested, flat or bare shapes that servers use."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            return f"{inner.get('message', inner)}" + (f" ({inner['code']})" if _named(inner.get("code")) else "")
        return str(inner)
    return otherwise


def _named(code: object) -> bool:
    return isinstance(code, str) and not code.isdecimal()


def _root(exc: BaseException) -> str:
    """The first cause's words: `Connection error.` alone says nothing."""
    while exc.__cause__ is not None or exc.__context__ is not None:
        exc = exc.__cause__ or exc.__context__ or exc
    return str(exc) or type(exc).__name__
