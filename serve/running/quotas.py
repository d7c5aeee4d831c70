"""What each key may still use this minute: reserved when a request is admitted, settled when it ends.

Tokens are those of prompts and those that are drawn, as in the usage of a reply. A request reserves all that it may
spend, so no number of requests at once passes a limit; what it did not spend comes back with its end. A minute is the
last 60 seconds. These are the quotas of one process; processes that serve the same keys share theirs in Redis
(`serve.running.shared_quotas`).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from serve.operator.keys import Key
from serve.requests.errors import ApiError
from ttc.config.values import counted

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request may spend at most, in tokens; None where its key has no such limit."""

    key: Key
    name: str
    tokens: int | None
    search: bool


class Quotas(Protocol):
    """Keeps the use of each key."""

    async def take(self, key: Key, most: int, *, search: bool, least: int = 1) -> Reservation:
        """Count a request of `key` that may spend `most` tokens, and needs `least` of them.

        Raises:
            ApiError: 429, with the seconds after which to try again.
        """
        ...

    def settle(self, reservation: Reservation, spent: int) -> None:
        """Book what a request has spent, and give back the rest."""
        ...

    async def close(self) -> None:
        """Finish what is pending."""
        ...


@dataclass(slots=True)
class _Account:
    """What one key used in the last minute, and what it runs now."""

    requests: deque[float] = field(default_factory=deque)
    tokens: deque[tuple[float, int]] = field(default_factory=deque)
    reserved: int = 0
    searches: int = 0

    def forget(self, horizon: float) -> None:
        """Drop what is older than a minute."""
        while self.requests and self.requests[0] <= horizon:
            self.requests.popleft()
        while self.tokens and self.tokens[0][0] <= horizon:
            self.tokens.popleft()


class LocalQuotas:
    """Those of one process; for one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._names = itertools.count()

    async def take(self, key: Key, most: int, *, search: bool, least: int = 1) -> Reservation:
        """See `Quotas`."""
        now, account = self._clock(), self._accounts.setdefault(key.name, _Account())
        account.forget(now - MINUTE_S)
        _check(key, account, now - MINUTE_S, search)
        tokens = _reservation(key, account, most, least, now - MINUTE_S)
        account.requests.append(now)
        account.searches += search
        account.reserved += tokens or 0
        return Reservation(key, str(next(self._names)), tokens, search)

    def settle(self, reservation: Reservation, spent: int) -> None:
        """See `Quotas`."""
        account = self._accounts[reservation.key.name]
        account.searches -= reservation.search
        account.reserved -= reservation.tokens or 0
        if spent:
            account.tokens.append((self._clock(), spent))  # also where no limit stands yet: SIGHUP may bring one

    async def close(self) -> None:
        """Nothing is pending."""


def _check(key: Key, account: _Account, horizon: float, search: bool) -> None:
    limits = key.limits
    if limits.requests_per_minute is not None and len(account.requests) >= limits.requests_per_minute:
        raise too_many_requests(key, account.requests[0] - horizon)
    if search and limits.max_searches is not None and account.searches >= limits.max_searches:
        raise too_many_searches(key)


def _reservation(key: Key, account: _Account, most: int, least: int, horizon: float) -> int | None:
    """Tokens to reserve for the request.

    A request that may spend more than a whole minute's worth gets what is left of it, if that is `least`, as soon as
    nothing else runs.
    """
    limit = key.limits.tokens_per_minute
    if limit is None:
        return None
    left = limit - sum(count for _, count in account.tokens) - account.reserved
    if most <= left:
        return most
    if most > limit and left >= least and not account.reserved:
        return left
    wait_s = account.tokens[0][0] - horizon if account.tokens and not account.reserved else 1.0
    raise too_many_tokens(key, account.reserved, wait_s)


def too_many_requests(key: Key, wait_s: float) -> ApiError:
    """The refusal of a key that has sent too many requests."""
    most = counted(key.limits.requests_per_minute or 0, "request")
    text = f"the key {key.name} may send {most} a minute"
    return too_many("rate_limit_exceeded", text, wait_s)


def too_many_searches(key: Key) -> ApiError:
    """The refusal of a key that runs too many searches."""
    most = key.limits.max_searches
    text = f"the key {key.name} may run {most} {'search' if most == 1 else 'searches'} at once"
    return too_many("too_many_searches", text, 1.0)


def too_many_tokens(key: Key, reserved: int, wait_s: float) -> ApiError:
    """The refusal of a key whose tokens are spent or reserved."""
    limit = key.limits.tokens_per_minute
    text = f"the key {key.name} may spend {limit} tokens a minute, and {reserved} are reserved for running requests"
    return too_many("token_limit_exceeded", text, wait_s)


def too_many(code: str, text: str, retry_after_s: float) -> ApiError:
    """A 429."""
    return ApiError(429, code, text, retry_after_s=retry_after_s)
