"""A server before the run, through the official SDK: a few short requests from synchronous code, retried by the SDK.

Where a server is still too busy then (429), it is asked again for as long as in the run: a limit of a few requests a
minute is reached by these alone.

Chunks are left as dictionaries, since servers add fields, and values to known ones, that the SDK's types do not allow.
The requests of a run itself go through `client`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ttc.engines.openai.client import Chunk, no_choices, no_events
from ttc.engines.openai.refusals import Access, Busy, refuse, status_of, words_of
from ttc.engines.shared.balance import Retry, Transient
from ttc.errors import ConfigError, EngineError, EngineTimeout

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")
_TOO_BUSY, _PLAIN = 429, 500


class SyncClient:
    """A few short requests to one server, retried by the SDK.

    Raises like `Client.stream`, but EngineError for a failure that may pass: Busy unless it was a plain 500.
    """

    def __init__(self, url: str, access: Access, retry: Retry | None = None) -> None:
        """Open no connection yet."""
        import openai

        self._url, self._access, self._retry = url, access, retry or Retry()
        self._sdk: OpenAI = openai.OpenAI(
            api_key=access.key or "none",
            base_url=url,
            timeout=openai.Timeout(access.idle_s, connect=access.connect_s, pool=None),
            max_retries=2,
        )

    @property
    def url(self) -> str:
        """The address of its API."""
        return self._url

    def get(self, path: str) -> Chunk:
        """Get a JSON object."""
        return self._final(lambda: _object(self._sdk.get(path, cast_to=object)))

    def cards(self) -> list[Any]:
        """The entries of `/models`: the `data` of an object, or the list itself, as Together sends it."""
        listed = self._final(lambda: self._sdk.get("/models", cast_to=object))
        cards = listed if isinstance(listed, list) else self._final(lambda: _object(listed)).get("data")
        return list(cards) if isinstance(cards, list) else []

    def post(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """Post `body` and return the whole answer."""
        return self._final(lambda: _object(self._sdk.post(path, body=dict(body), cast_to=object)))

    def stream(self, path: str, body: Mapping[str, Any]) -> list[Chunk]:
        """Post `body` and return all chunks of the answer; a server that does not stream sends one."""
        return self._final(lambda: self._streamed(path, body))

    def _streamed(self, path: str, body: Mapping[str, Any]) -> list[Chunk]:
        import openai

        stream = self._sdk.post(path, body=dict(body), cast_to=object, stream=True, stream_cls=openai.Stream[object])
        kind = stream.response.headers.get("content-type", "").partition(";")[0]
        try:
            if kind == "application/json" and stream.response.read().lstrip().startswith(b"{"):
                answer = _chunk(stream.response.json())
                if answer.get("choices") is None:
                    raise EngineError(no_choices(self._url, self._access, answer))
                return [answer]
            chunks = [_chunk(data) for data in stream]
            if not chunks and kind != "text/event-stream":
                raise EngineError(no_events(self._url, kind))
            return chunks
        finally:
            stream.close()

    def _final(self, request: Callable[[], T]) -> T:
        """The answer to a request, or its final error; some servers use a plain 500 for what they do not support."""
        began, failures = time.monotonic(), 0
        while True:
            try:
                with _translated(self._url, self._access):
                    return request()
            except Transient as failure:
                failures += 1
                pause = self._retry.pause_s(failures, failure.retry_after_s)
                left = self._retry.max_total_s - (time.monotonic() - began)
                if failure.status != _TOO_BUSY or self._retry.max_attempts == 1 or pause > left:
                    wish = (
                        f": it asks to be called again in {wish_s:.0f} s" if (wish_s := failure.retry_after_s) else ""
                    )
                    error = failure.error if failure.status == _PLAIN else Busy(f"{failure.error}{wish}")
                    raise error from failure.__cause__
                if failures == 1:
                    warnings.warn(f"{failure.error}: asking again for {left:.0f} s", RuntimeWarning, stacklevel=4)
            time.sleep(pause)

    def close(self) -> None:
        """Close the connections."""
        self._sdk.close()


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
    """Translate the SDK's exceptions; one whose message contained the key is not kept as the cause."""
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
    except openai.APIError as exc:  # an error object within a stream
        refuse(url, access, status_of(exc.code), words_of(exc.body, str(exc.message)), {}, exc)
    except _FlatError as exc:
        refuse(url, access, status_of(exc.code), str(exc), {}, exc)
    except ValueError as exc:  # not JSON, not UTF-8, or not an object
        if isinstance(exc, ConfigError | EngineError):
            raise
        raise Transient(EngineError(f"{url} sent something unreadable: {access.hide(str(exc))}")) from exc


def _root(exc: BaseException) -> str:
    """The message of the first cause: `Connection error.` alone is uninformative."""
    while exc.__cause__ is not None or exc.__context__ is not None:
        exc = exc.__cause__ or exc.__context__ or exc
    return str(exc) or type(exc).__name__
