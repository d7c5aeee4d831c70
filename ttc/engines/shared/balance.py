"""Several servers of one model: least outstanding requests, prefix affinity, and a rest for the ones that fail.

All requests with one key (a problem) go to one server, which then has their common prefix in its cache; the key moves
only when that server is resting. A server that fails rests for a back-off that doubles with every further failure;
afterwards one request tries it before the others follow. When all are resting, the one that rests least is asked.
Which server answers is no part of the randomness of a draw. Cost: a table of the latest keys.

Left out: weights of unequal servers, moving a key for the sake of balance.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from ttc.engines.shared.retry import Retry, Transient, retrying
from ttc.errors import ConfigError

__all__ = ["Balancer", "ServerState"]

T = TypeVar("T")

MAX_KEYS = 1 << 16


@dataclass(slots=True)
class ServerState:
    """One server: requests under way, keys that were given to it, failures in a row, when its rest ends (monotonic)."""

    url: str
    outstanding: int = 0
    keys: int = 0
    failures: int = 0
    rests_until: float = 0.0

    def available(self, now: float) -> bool:
        """Whether it may be asked: in good health, or rested and not yet being tried."""
        return not self.failures or (now >= self.rests_until and not self.outstanding)


class Balancer:
    """Chooses a server for each request; to be used from one thread."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        rest_s: float = 1.0,
        max_rest_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rest_s` is the first rest of a failing server in seconds; it doubles up to `max_rest_s`.

        Raises:
            ConfigError: no URL, or one given twice.
        """
        if not urls or len(set(urls)) < len(urls):
            raise ConfigError(f"base_url needs one or more different URLs, got {', '.join(urls) or 'none'}")
        self._servers = [ServerState(url) for url in urls]
        self._rest_s, self._max_rest_s, self._clock = rest_s, max_rest_s, clock
        self._home: OrderedDict[str, ServerState] = OrderedDict()

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """A copy of the state of every server."""
        return tuple(replace(server) for server in self._servers)

    async def send(self, key: str, attempt: Callable[[str], Awaitable[T]], retry: Retry) -> T:
        """Await `attempt(url)` on the server of `key`, again elsewhere or later when it raises `Transient`."""

        async def once() -> T:
            with self.lease(key) as url:
                return await attempt(url)

        return await retrying(once, retry)

    @contextmanager
    def lease(self, key: str) -> Iterator[str]:
        """Give the URL of the server for `key` and count the request; a `Transient` inside sends the server to rest."""
        server = self._choose(key)
        server.outstanding += 1
        try:
            yield server.url
        except Transient as failure:
            self._fail(server, failure.retry_after_s)
            raise
        else:
            server.failures = 0
        finally:
            server.outstanding -= 1

    def _choose(self, key: str) -> ServerState:
        now, home = self._clock(), self._home.get(key)
        if home is not None and home.available(now):
            self._home.move_to_end(key)
            return home
        healthy = [server for server in self._servers if server.available(now)]
        if healthy:
            server_state = min(healthy, key=lambda server: (server.outstanding, server.keys))
        else:
            server_state = min(self._servers, key=lambda server: server.rests_until)
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

    def _fail(self, server: ServerState, retry_after_s: float | None) -> None:
        """Send a server to rest; requests that were under way when it failed do not lengthen the rest."""
        now = self._clock()
        if server.failures and now < server.rests_until:
            return
        server.failures += 1
        rest = min(self._rest_s * 2.0 ** (server.failures - 1), self._max_rest_s)
        server.rests_until = now + max(rest, min(retry_after_s or 0.0, self._max_rest_s))
