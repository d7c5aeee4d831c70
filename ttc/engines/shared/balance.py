"""Several servers of one model: least outstanding requests, prefix affinity, back-off of failing servers, retries.

All requests with one key (a problem) go to one server, which then has their common prefix in its cache; the key moves
only while that server is in back-off. The back-off of a failing server doubles with every further failure; afterwards
one request tries it before the others follow. When all servers are in back-off, the one that is free first is used. A
kept-alive connection that the server has closed does not count as a failure: the request is sent again at once, and
counted. The randomness of a draw does not depend on which server answers. Cost: a table of the latest keys.

A server that answers 429 (too busy) gets no request before the time that it names, then only as many at once as it
accepted before, and one more for every round that it answers. So a rate limit costs seconds, and fails no problem.

A server that refuses our key, or whose account is spent, gets no requests either while another one answers; once a
minute one request asks it again. The request that it refused goes to another server at once. A request that all
servers refuse fails, and leaves none of them out.

Retries (`Retry`): transient failures only, bounded in attempts and in seconds, with exponential back-off and full
jitter (Brooker 2015, "Exponential Backoff And Jitter", AWS Architecture Blog). The jitter uses the operating system's
entropy: it affects only when a request is sent, never what is sampled. A server's own delay (`Retry-After`,
`retry-after-ms`) is respected up to a cap, unless another server accepts requests. Permanent failures (an invalid
request, a missing key, a prompt beyond the context) are never retried. Cost: the tokens that a failed attempt had
decoded, charged as `overrun`.

Left out: weights for servers of different speed, moving a key to balance the load.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from ttc.config.values import counted
from ttc.errors import ConfigError, EngineBusy, EngineError, EngineTimeout, ServerRefused

T = TypeVar("T")

_ENTROPY = random.SystemRandom()
_STATUSES = frozenset({408, 409, 429})
_TOO_BUSY = 429
_LOOK_S = 0.1
"""How often a waiting request checks whether a full server has room."""


class Transient(Exception):
    """A failure that may pass. Never leaves this package: `retrying` raises its `error` when retries are used up."""

    def __init__(
        self,
        error: EngineError,
        *,
        retry_after_s: float | None = None,
        status: int | None = None,
        is_of_connection: bool = False,
    ) -> None:
        """`error` is finally raised to the caller; `retry_after_s` is the delay that the server asks for, in seconds.

        `status` is the HTTP status, None without an answer; `is_of_connection`: a kept-alive connection was closed,
        which says nothing about the server, so the request is sent again at once.
        """
        super().__init__(str(error))
        self.error, self.retry_after_s, self.status = error, retry_after_s, status
        self.is_of_connection = is_of_connection


@dataclass(frozen=True, slots=True)
class Retry:
    """Limits of retrying. `max_attempts` includes the first attempt; the other limits are in seconds.

    No attempt starts later than `max_total_s` after the first failure. While a server is only too busy (429), both
    limits start anew whenever it has answered any request in between, and one that names no delay is asked for as long
    as that allows, in any number of attempts: most such limits are by the minute. The pause before attempt k + 1 is
    uniform in [0, min(max_pause_s, base_s * 2**(k - 1))], or the server's own delay, at most `max_wish_s`, plus some
    jitter. Without `silent_again` a request fails once as many attempts as there are servers have timed out; with it
    timeouts count as other failures do, since a lost connection looks the same.
    """

    max_attempts: int = 6
    max_total_s: float = 60.0
    base_s: float = 0.5
    max_pause_s: float = 15.0
    max_wish_s: float = 60.0
    silent_again: bool = True

    def __post_init__(self) -> None:
        """Refuse limits that allow no attempt, and negative times."""
        if self.max_attempts < 1:
            raise ConfigError(f"retry.max_attempts must be >= 1, got {self.max_attempts}")
        for spec in fields(self)[1:-1]:
            if not getattr(self, spec.name) >= 0:
                raise ConfigError(f"retry.{spec.name} must be >= 0, got {getattr(self, spec.name)!r}")

    def pause_s(self, failures: int, retry_after_s: float | None) -> float:
        """Seconds to wait after this many failures."""
        jitter = _ENTROPY.uniform(0.0, min(self.max_pause_s, self.base_s * 2.0 ** (failures - 1)))
        if retry_after_s is None:
            return jitter
        return min(retry_after_s, self.max_wish_s) + min(jitter, self.base_s)


def _told_to_wait(url: str, seconds: float) -> EngineBusy:
    """The error of a request that is not sent, since the server's delay exceeds the limits of waiting."""
    wait = math.ceil(seconds)
    error = EngineBusy(
        f"{url} is too busy (429) and asks to be called again in {wait} s: resume later, or set "
        f"engine.retry_s={wait + 1}"
    )
    error.retry_after_s = seconds
    return error


def _none_answered() -> int:
    return 0


def _noted_nowhere(failure: Transient) -> None:
    pass


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    policy: Retry,
    answered: Callable[[], int] = _none_answered,
    again: Callable[[Transient], None] = _noted_nowhere,
) -> T:
    """Await `attempt()` until it succeeds, fails for good, or the limits of `policy` are reached.

    `answered` returns how many requests of all callers were answered so far; `again` is called with each failure that
    is retried.

    Raises:
        EngineError: the last transient failure, with the number of attempts; any other exception passes through.
    """
    failures, first, before = 0, 0.0, answered()
    while True:
        try:
            return await attempt()
        except Transient as failure:
            if failure.status == _TOO_BUSY and answered() > before:
                failures, before = 0, answered()
            failures += 1
            now = time.monotonic()
            first = now if failures == 1 else first
            pause = 0.0 if failure.is_of_connection else policy.pause_s(failures, failure.retry_after_s)
            left = policy.max_total_s - (now - first)
            if failure.retry_after_s is not None and failure.retry_after_s <= left:
                pause = min(pause, left)  # the delay fits, but delay and jitter might not
            insists = failure.status == _TOO_BUSY and failure.retry_after_s is None and policy.max_attempts > 1
            if (failures >= policy.max_attempts and not insists) or pause > left:
                tries = counted(failures, "attempt")
                wish = failure.retry_after_s or 0.0
                why = f": it asks to be called again in {wish:.0f} s" if wish > max(left, 0.0) else ""
                error = type(failure.error)(f"{failure.error} (gave up after {tries}{why})")
                error.__dict__.update(failure.error.__dict__)
                raise error from failure.__cause__
            again(failure)
        await asyncio.sleep(pause)


def is_transient(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an HTTP status may pass by waiting: 408, 409, 429 and 5xx, unless `x-should-retry` decides otherwise.

    `headers` has lower-case names (or ignores case, as the types of HTTP clients do). 501 (not implemented) and 505
    (version) are properties of the server and never pass.
    """
    advice = headers.get("x-should-retry", "").lower()
    if advice in ("true", "false"):
        return advice == "true"
    return status in _STATUSES or (500 <= status < 600 and status not in (501, 505))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The delay in `retry-after-ms` or `Retry-After` (seconds or a date), in seconds; None without a valid one."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            parsed = email.utils.parsedate_tz(value)
            if parsed is not None:
                return max(email.utils.mktime_tz(parsed) - time.time(), 0.0)
        else:
            if math.isfinite(seconds):
                return max(seconds, 0.0)
    return None


MAX_KEYS = 1 << 16
MAX_REASONS = 32
_OTHER = "other failures"


@dataclass(slots=True)
class ServerState:
    """One server: outstanding requests, number of keys, failures in a row, end of its back-off (monotonic).

    `refusal`: the first words with which it has refused us since it last answered; empty if it has not. `room`: how
    many requests at once it accepts, as far as known; `busy_until`: end of the delay that it asked for; `answered`
    requests in total, of which `answered_before` when it was last too busy; `took`: those between the last two times.
    """

    url: str
    outstanding: int = 0
    keys: int = 0
    failures: int = 0
    refusal: str = ""
    rests_until: float = 0.0
    room: float = math.inf
    busy_until: float = 0.0
    answered: int = 0
    answered_before: int = 0
    took: int = 0

    def available(self, now: float) -> bool:
        """Whether it may be used: healthy, or after its back-off and not being tried yet."""
        is_well = not (self.failures or self.refusal)
        return is_well or (now >= self.rests_until and not self.outstanding)

    def wait_s(self, now: float) -> float:
        """Seconds until it may accept one more request; 0 if it does now."""
        if now < self.busy_until:
            return self.busy_until - now
        return _LOOK_S if self.outstanding >= self.room else 0.0


@dataclass(slots=True)
class Retried:
    """How often requests were sent again, by reason (the status, `connection` or `refused`); for metrics."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, failure: Transient | ServerRefused) -> None:
        """Count one."""
        reason = str(failure.status or "connection") if isinstance(failure, Transient) else "refused"
        self.counts[reason] = self.counts.get(reason, 0) + 1


class Balancer:
    """Chooses a server for each request; may be used from one thread only."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        rest_s: float = 1.0,
        max_rest_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rest_s` is the first back-off of a failing server in seconds; it doubles up to `max_rest_s`.

        Raises:
            ConfigError: no URL, or a duplicate.
        """
        if not urls or len(set(urls)) < len(urls):
            raise ConfigError(f"base_url needs one or more different URLs, got {', '.join(urls) or 'none'}")
        self._servers = [ServerState(url) for url in urls]
        self._rest_s, self._max_rest_s, self._clock = rest_s, max_rest_s, clock
        self._home: OrderedDict[str, ServerState] = OrderedDict()
        self._failures: Counter[str] = Counter()
        self.retried = Retried()

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """A copy of the state of every server."""
        return tuple(replace(server) for server in self._servers)

    @property
    def failures(self) -> Mapping[str, int]:
        """Failures that were retried or given up: error message -> number of attempts."""
        return dict(self._failures)

    async def send(self, key: str, attempt: Callable[[str], Awaitable[T]], retry: Retry) -> T:
        """Await `attempt(url)` on the server of `key`; on `Transient`, retry later or on another server.

        A server that refuses us is not asked twice, since that stays so; raises its ServerRefused once all have.
        """
        silences, refusing = 0, set[str]()

        async def once() -> T:
            nonlocal silences
            while (pause := self._choose(key, refusing).wait_s(self._clock())) > 0:
                if pause > max(retry.max_total_s, retry.max_wish_s):
                    raise _told_to_wait(self._choose(key, refusing).url, pause)
                await asyncio.sleep(pause)
            try:
                with self.lease(key, refusing) as url:
                    return await attempt(url)
            except ServerRefused as refusal:
                refusing.add(url)
                if len(refusing) == len(self._servers):
                    self.forgive()
                    raise
                self.retried.add(refusal)
                return await once()
            except Transient as failure:
                silences += isinstance(failure.error, EngineTimeout)
                if silences >= len(self._servers) and not retry.silent_again:
                    raise failure.error from failure.__cause__
                # another server does not share this one's delay
                if any(self._takes(server) for server in self._servers):
                    failure.retry_after_s = None
                raise

        return await retrying(once, retry, lambda: sum(server.answered for server in self._servers), self.retried.add)

    @contextmanager
    def lease(self, key: str, avoid: Collection[str] = ()) -> Iterator[str]:
        """Yield the URL of the server for `key` and count the request.

        A `Transient` puts the server into back-off, ServerRefused into the longest one.

        Servers in `avoid` are left out; at least one other must exist.
        """
        server = self._choose(key, avoid)
        server.outstanding += 1
        try:
            yield server.url
        except Transient as failure:
            if not failure.is_of_connection:
                self._fail(server, failure.retry_after_s, is_busy=failure.status == _TOO_BUSY)
            self._count(str(failure))
            raise
        except ServerRefused as refusal:
            server.refusal = server.refusal or str(refusal)
            server.rests_until = self._clock() + self._max_rest_s
            if len(self._servers) > 1:
                self._count(server.refusal)
            raise
        else:
            server.failures, server.refusal = 0, ""
            server.room += 1 / server.room
            server.answered += 1
        finally:
            server.outstanding -= 1

    def note(self, url: str, *, well: bool) -> None:
        """Record the result of a health check; a server that has recovered is used again at once."""
        server = next(server for server in self._servers if server.url == url)
        if well:
            server.failures = 0
        else:
            self._fail(server, None)

    def forgive(self) -> None:
        """Leave no server out for a refusal: all have refused one request, so it may be that request's fault."""
        for server in self._servers:
            server.refusal = ""

    def _count(self, reason: str) -> None:
        self._failures[reason if reason in self._failures or len(self._failures) < MAX_REASONS else _OTHER] += 1

    def _takes(self, server: ServerState) -> bool:
        now = self._clock()
        return server.available(now) and not server.wait_s(now)

    def _choose(self, key: str, avoid: Collection[str] = ()) -> ServerState:
        now, home = self._clock(), self._home.get(key)
        if home is not None and home.available(now) and home.url not in avoid:
            self._home.move_to_end(key)
            return home
        others = [server for server in self._servers if server.url not in avoid]
        healthy = [server for server in others if server.available(now)]
        if healthy:
            server_state = min(healthy, key=lambda server: (server.outstanding, server.keys))
        else:
            server_state = min(others, key=lambda server: (bool(server.refusal), server.rests_until))
        self._bind(key, server_state)
        return server_state

    def _bind(self, key: str, server: ServerState) -> None:
        old = self._home.pop(key, None)
        if old is not None:
            old.keys -= 1
        self._home[key] = server
        server.keys += 1
        if len(self._home) > MAX_KEYS:
            self._home.popitem(last=False)[1].keys -= 1

    def _fail(self, server: ServerState, retry_after_s: float | None, *, is_busy: bool = False) -> None:
        """Put a server into back-off; requests that were outstanding when it failed do not prolong it."""
        now = self._clock()
        rests = server.failures > 0 and now < server.rests_until
        if not rests:
            server.failures += 1
            rest = min(self._rest_s * 2.0 ** (server.failures - 1), self._max_rest_s)
            server.rests_until = now + max(rest, min(retry_after_s or 0.0, self._max_rest_s))
        if is_busy and now >= server.busy_until:
            server.busy_until = server.rests_until if retry_after_s is None else now + retry_after_s
            server.took, server.answered_before = server.answered - server.answered_before, server.answered
        if is_busy:
            server.room = min(server.room, max(1, server.outstanding - 1, server.took // 2))
