"""The upstream servers of one model: which one is asked, when another is tried, and what a client is then told.

Requests that begin with the same turns go to one server, whose prefix cache then holds them. A server that fails gets
no requests (`ttc.engines.shared.balance`) and is asked for its models every few seconds until it answers. If a failure
may pass and nothing of the reply has been sent, another server is tried; a single server is asked a second time. A
server that is silent for too long, before its first byte or between two, counts as failed. One that refuses our key,
does not know its model or wants money stands in the log, for the operator; another server is tried there, too.

A client gets 429 with the server's own Retry-After if all that may answer are busy, 503 if none answers, 504 if they
are silent, 502 if all refuse us. No address leaves this server. Cost: a request is sent at most once to every server,
and once more to the last one; a request over a kept connection that the server has just closed is sent again at once
and does not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from serve.requests.errors import ApiError, from_error
from ttc.core import Message, Usage
from ttc.engines.shared.balance import Balancer, Retried, Transient
from ttc.errors import ConfigError, EngineError, EngineTimeout, ServerRefused

if TYPE_CHECKING:
    from ttc.engines.openai.client import Client
    from ttc.engines.openai.wire import Features

T = TypeVar("T")
_log = logging.getLogger("serve")
PAUSE_S = 0.2
"""Seconds before the only server is asked again."""
MAX_STALE = 100
"""So many kept connections may turn out to be closed before one counts as a failure of the server."""
SLACK = 0.05
"""By how much of itself a gap may be longer: the clock is not set anew for every word of a fast server."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a server may be silent: before its first byte, and between two."""

    first_s: float = 120.0
    gap_s: float = 30.0


class Upstreams:
    """The upstream servers of one model; they serve the same one."""

    def __init__(
        self,
        clients: Mapping[str, Client],
        features: Features,
        balancer: Balancer | None = None,
        patience: Patience | None = None,
        count: Callable[[Sequence[Message], str], Usage] | None = None,
    ) -> None:
        """`clients` by URL; `balancer` is shared with the engine that asks the same servers.

        `count` says what a reply to messages cost where the servers report nothing; None counts nothing.
        """
        self.features, self.count, self._clients = features, count, dict(clients)
        self._balancer = balancer or Balancer(tuple(clients))
        self._patience = patience or Patience()

    @property
    def retried(self) -> Retried:
        """Requests that were sent again, those of the engine included."""
        return self._balancer.retried

    @property
    def num_healthy(self) -> int:
        """How many servers have neither failed nor refused us since they last answered."""
        return sum(not (server.failures or server.refusal) for server in self._balancer.servers)

    def __len__(self) -> int:
        return len(self._clients)

    async def stream(
        self,
        home: str,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[AsyncIterator[Any]], Awaitable[T]],
        shown: Callable[[], bool],
    ) -> T:
        """Post `body` and return what `read` makes of the chunks; `shown`: whether something of it was passed on.

        Raises:
            ApiError: no server could answer, or the one that did refuses.
        """
        tried, stale, failures, url = 0, 0, set[str](), ""
        excuse: Transient | None = None
        while True:
            avoid = failures if len(failures) < len(self) else failures - {url}
            try:
                with self._balancer.lease(home, avoid) as url:
                    return await self._attempt(url, path, body, read)
            except Transient as failure:
                if failure.is_of_connection and stale < MAX_STALE:
                    stale += 1
                    self.retried.add(failure)
                    continue
                tried += 1
                failures.add(url)
                _log.warning("an upstream server failed", extra={"attempt": tried, "error": str(failure)[:300]})
                excuse = _to_tell(excuse, failure)
                if shown():
                    raise _broken(failure) from failure
                if not self._again(tried, failure):
                    raise _told(excuse) from failure
                self.retried.add(failure)
            except ServerRefused as refusal:
                tried += 1
                failures.add(url)
                _log.error("an upstream server refuses this server", extra={"error": str(refusal)[:300]})
                if shown() or tried >= len(self):
                    if excuse is None:
                        self._balancer.forgive()
                    raise (misconfigured() if excuse is None else _told(excuse)) from refusal
                self.retried.add(refusal)
                continue
            except EngineError as exc:
                raise from_error(exc) from exc
            if not self.num_healthy:
                await asyncio.sleep(PAUSE_S)

    def _again(self, tried: int, failure: Transient) -> bool:
        """Whether there is a server left to try: a busy one is not asked twice."""
        if tried < len(self):
            return True
        return tried == max(len(self), 1) and failure.status not in (408, 409, 429) and not _silent(failure)

    async def _attempt(
        self, url: str, path: str, body: Mapping[str, Any], read: Callable[[AsyncIterator[Any]], Awaitable[T]]
    ) -> T:
        patience, loop = self._patience, asyncio.get_running_loop()

        async def watched(chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
            until = 0.0
            async for chunk in chunks:
                if until < (now := loop.time()) + patience.gap_s:
                    until = now + patience.gap_s * (1 + SLACK)
                    limit.reschedule(until)
                yield chunk

        try:
            async with asyncio.timeout(patience.first_s) as limit, self._clients[url].stream(path, body) as chunks:
                return await read(watched(chunks))
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise Transient(EngineTimeout(f"{url} was silent for too long")) from exc

    async def check(self, within_s: float) -> None:
        """Ask every server for its models, and note which of them answer."""
        await asyncio.gather(*(self._check(url, client, within_s) for url, client in self._clients.items()))

    async def _check(self, url: str, client: Client, within_s: float) -> None:
        well = True
        try:
            async with asyncio.timeout(within_s):
                await client.get("/models")
        except TimeoutError:
            well = False
        except Transient as failure:
            well = failure.status in (408, 409, 429)
        except (ConfigError, EngineError):
            well = True  # it answers, though not this
        self._balancer.note(url, well=well)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


def home_of(messages: Sequence[Any]) -> str:
    """The key of a conversation: its turns up to the user's first, which every later request of it begins with."""
    first = next((i for i, turn in enumerate(messages) if turn.get("role") == "user"), len(messages) - 1)
    head = repr([(turn.get("role"), turn.get("content")) for turn in messages[: first + 1]])
    return hashlib.sha256(head.encode("utf-8", "replace")).hexdigest()


def misconfigured() -> ApiError:
    """What a client is told about a fault of the operator's."""
    return ApiError(
        502, "upstream_misconfigured", "the upstream server refuses this server: its operator must look into it"
    )


def _to_tell(excuse: Transient | None, failure: Transient) -> Transient:
    """Of two failures the one that a client is told: of servers that are busy, the one that has room first."""
    if excuse is None or excuse.status != 429:
        return failure
    return failure if failure.status == 429 and _wish_s(failure) < _wish_s(excuse) else excuse


def _wish_s(failure: Transient) -> float:
    return math.inf if failure.retry_after_s is None else failure.retry_after_s


def _silent(failure: Transient) -> bool:
    return isinstance(failure.error, EngineTimeout)


def _broken(failure: Transient) -> ApiError:
    """What a client is told that has seen the beginning of a reply."""
    if _silent(failure):
        return _told(failure)
    return ApiError(503, "engine_unavailable", "the upstream server broke off its reply")


def _told(failure: Transient) -> ApiError:
    if failure.status == 429:
        wait_s = failure.retry_after_s or 1.0
        return ApiError(429, "upstream_busy", "the upstream servers are busy", retry_after_s=wait_s)
    if _silent(failure):
        return ApiError(504, "engine_timeout", "the upstream server was silent for too long")
    last = "" if failure.status is None else f": the last one asked answered with status {failure.status}"
    return ApiError(
        503, "engine_unavailable", f"no upstream server could answer{last}", retry_after_s=failure.retry_after_s
    )
