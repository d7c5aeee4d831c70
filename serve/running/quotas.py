"""What each key may still use, this minute and of its budget: reserved when a request is admitted, settled at its end.

Tokens are those of prompts and those that are drawn, as in the usage of a reply; money is in billionths of a dollar. A
request reserves all that it may spend, so no number of requests at once passes a limit; what it did not spend comes
back with its end. A limit is passed only by what others count beyond their estimate: the prompt of an upstream server,
and the reading of a scorer that states no price.

A minute is the last 60 seconds. A budget's time begins with its first request; what was spent of it is kept in a file
(`Spending`), as of the last request that ended. These are the quotas of one process; processes that serve the same keys
share theirs in Redis (`serve.running.shared_quotas`).
"""

from __future__ import annotations

import itertools
import logging
import math
import pathlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from serve.operator.keys import NANO, Key
from serve.requests.errors import INSUFFICIENT, ApiError
from ttc.config.values import counted
from ttc.errors import ConfigError

MINUTE_S = 60.0
STANDING_HEADERS = (
    *(f"x-ratelimit-{word}-{what}" for what in ("requests", "tokens") for word in ("limit", "remaining", "reset")),
    *(f"x-ttc-budget-{word}" for word in ("limit", "remaining", "reset")),
)
"""The headers that say what a key has left."""
_log = logging.getLogger("serve")


@dataclass(frozen=True, slots=True)
class Expense:
    """What a request may cost at most, and costs at least, in billionths of a dollar."""

    most: int = 0
    least: int = 0


FREE = Expense()


@dataclass(frozen=True, slots=True)
class Standing:
    """What a key has used, and the seconds until it has all of it again.

    Requests and tokens are those of the last minute, and tokens that are reserved; money is what was spent of a budget.
    """

    key: Key
    requests: int = 0
    requests_s: float = 0.0
    tokens: int = 0
    tokens_s: float = 0.0
    money: int = 0
    money_s: float = math.inf

    def headers(self) -> dict[str, str]:
        """OpenAI's headers for each limit of the key, and the like for its budget."""
        limits = self.key.limits
        values: list[str | None] = []
        for limit, number, wait_s, show in (
            (limits.requests_per_minute, self.requests, self.requests_s, str),
            (limits.tokens_per_minute, self.tokens, self.tokens_s, str),
            (limits.budget, self.money, self.money_s, dollars),
        ):
            wait = f"{math.ceil(max(wait_s, 0))}s" if math.isfinite(wait_s) else None
            values += [None] * 3 if limit is None else [show(limit), show(max(limit - number, 0)), wait]
        return {name: value for name, value in zip(STANDING_HEADERS, values, strict=True) if value is not None}


def dollars(money: int) -> str:
    """An amount in dollars, without the sign."""
    return f"{money / NANO:.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request may spend at most, in tokens and in money; None where its key has no such limit."""

    key: Key
    name: str
    tokens: int | None
    search: bool
    money: int | None = None
    standing: Standing | None = None
    """Of its key, with this reservation."""


class Quotas(Protocol):
    """Keeps the use of each key."""

    @property
    def keeps_money(self) -> bool:
        """Whether what is spent of budgets outlives this process."""
        ...

    async def take(self, key: Key, most: int, *, search: bool, least: int = 1, cost: Expense = FREE) -> Reservation:
        """Count a request of `key` that may spend `most` tokens, and needs `least` of them.

        Raises:
            ApiError: 429, with the seconds after which to try again.
        """
        ...

    def settle(self, reservation: Reservation, spent: int, price: int = 0) -> None:
        """Book the tokens that a request has spent and their price, and give back the rest."""
        ...

    async def close(self) -> None:
        """Finish what is pending."""
        ...


@dataclass(slots=True)
class _Account:
    """What one key used in the last minute and of its budget, and what it runs now."""

    requests: deque[float] = field(default_factory=deque)
    tokens: deque[tuple[float, int]] = field(default_factory=deque)
    num_tokens: int = 0
    """Their sum, which is not added up for every request."""
    reserved: int = 0
    searches: int = 0
    owed: int = 0
    """Money that is reserved."""
    money: int = 0
    since: float | None = None
    """When the time of `money` began, as the clock on the wall has it."""

    def forget(self, horizon: float) -> None:
        """Drop what is older than a minute."""
        while self.requests and self.requests[0] <= horizon:
            self.requests.popleft()
        while self.tokens and self.tokens[0][0] <= horizon:
            self.num_tokens -= self.tokens.popleft()[1]

    def renew(self, now: float, budget_s: float) -> None:
        """Begin a new time of the budget, if there was none or it has ended; if the clock went back, it begins now."""
        self.since = None if self.since is None else min(self.since, now)
        if self.since is None or now >= self.since + budget_s:
            self.since, self.money = now, 0

    def standing(self, key: Key, now: float, wall: float) -> Standing:
        """See `Standing`."""
        return Standing(
            key,
            len(self.requests),
            self.requests[-1] + MINUTE_S - now if self.requests else 0.0,
            self.num_tokens + self.reserved,
            MINUTE_S if self.reserved else self.tokens[-1][0] + MINUTE_S - now if self.tokens else 0.0,
            self.money,
            wait_for_budget(key, self.since, wall),
        )


def wait_for_budget(key: Key, since: float | None, now: float) -> float:
    """Seconds until the budget of a key is there anew; infinite if that never comes."""
    return math.inf if since is None else since + key.limits.budget_s - now


class LocalQuotas:
    """Those of one process; for one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        spending: Spending | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Without `spending`, what was spent of a budget is forgotten with this process."""
        self._clock, self._wall, self._spending = clock, wall, spending
        rows = {} if spending is None else spending.read()
        self._accounts = {name: _Account(money=money, since=since) for name, (money, since) in rows.items()}
        self._names = itertools.count()
        self.keeps_money = spending is not None

    async def take(self, key: Key, most: int, *, search: bool, least: int = 1, cost: Expense = FREE) -> Reservation:
        """See `Quotas`."""
        now, account = self._clock(), self._accounts.setdefault(key.name, _Account())
        account.forget(now - MINUTE_S)
        try:
            _check(key, account, now - MINUTE_S, search)
            money = _money(key, account, cost, self._wall())
            tokens = _reservation(key, account, most, least, now - MINUTE_S)
        except ApiError as refusal:
            refusal.more = account.standing(key, now, self._wall()).headers()
            raise
        account.requests.append(now)
        account.searches += search
        account.reserved += tokens or 0
        account.owed += money or 0
        standing = account.standing(key, now, self._wall())
        return Reservation(key, str(next(self._names)), tokens, search, money, standing)

    def settle(self, reservation: Reservation, spent: int, price: int = 0) -> None:
        """See `Quotas`."""
        key, account = reservation.key, self._accounts[reservation.key.name]
        account.searches -= reservation.search
        account.reserved -= reservation.tokens or 0
        account.owed -= reservation.money or 0
        if spent:
            account.num_tokens += spent
            account.tokens.append((self._clock(), spent))  # also where no limit stands yet: SIGHUP may bring one
        if price:
            account.renew(self._wall(), key.limits.budget_s)
            account.money += price
            if self._spending is not None and account.since is not None:
                self._spending.write(key.name, account.money, account.since)

    async def close(self) -> None:
        """See `Quotas`."""
        if self._spending is not None:
            self._spending.close()


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
    left = limit - account.num_tokens - account.reserved
    if most <= left:
        return most
    if most > limit and left >= least and not account.reserved:
        return left
    wait_s = account.tokens[0][0] - horizon if account.tokens and not account.reserved else 1.0
    raise too_many_tokens(key, account.reserved, wait_s)


def _money(key: Key, account: _Account, cost: Expense, now: float) -> int | None:
    """Money to reserve for the request: what is left, where that is less than it may cost and nothing else runs."""
    budget = key.limits.budget
    if budget is None:
        return None
    account.renew(now, key.limits.budget_s)
    left = budget - account.money
    if left <= 0 or cost.least > left:
        raise no_money(key, account.money, wait_for_budget(key, account.since, now))
    if cost.most > left - account.owed and account.owed:
        raise reserved_money(key, account.money, account.owed)
    return min(cost.most, left)


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


def no_money(key: Key, money: int, wait_s: float) -> ApiError:
    """The refusal of a key whose budget does not pay for the request any more."""
    text = f"the key {key.name} has spent ${dollars(money)} of its budget of {_budget(key)}"
    error = ApiError(429, INSUFFICIENT, f"{text}, and what is left does not pay for this request")
    error.retry_after_s = wait_s if math.isfinite(wait_s) else None
    return error


def reserved_money(key: Key, money: int, owed: int) -> ApiError:
    """The refusal of a key whose running requests may spend what is left of its budget."""
    text = f"the key {key.name} has spent ${dollars(money)} of its budget of {_budget(key)}"
    return too_many("budget_reserved", f"{text}, and ${dollars(owed)} are reserved for running requests", 1.0)


def _budget(key: Key) -> str:
    every = "" if key.limits.budget_duration is None else f" every {key.limits.budget_duration}"
    return f"${dollars(key.limits.budget or 0)}{every}"


def too_many(code: str, text: str, retry_after_s: float) -> ApiError:
    """A 429."""
    return ApiError(429, code, text, retry_after_s=retry_after_s)


_OPEN = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS spending (key TEXT PRIMARY KEY, nanodollars INTEGER, since REAL)",
)


class Spending:
    """The file with what each key has spent of its budget; of one process at a time.

    Every row is written as soon as it has changed. It outlives a kill; a power failure may lose the last rows.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Open or make it. Raises ConfigError where it cannot be used."""
        self._path = path
        try:
            self._rows = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                for line in _OPEN:
                    self._rows.execute(line)
            except sqlite3.Error:
                self._rows.close()
                raise
        except sqlite3.Error as exc:
            if exc.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                fix = "give each server a spend_file of its own, or let them share budgets in TTC_SERVE_REDIS"
                raise ConfigError(f"another server keeps what its keys spend in {path}: {fix}") from exc
            fix = "name another place with spend_file"
            raise ConfigError(f"what keys spend cannot be kept in {path} ({exc}): {fix}") from exc

    def read(self) -> Mapping[str, tuple[int, float]]:
        """Of each key, what it has spent and since when."""
        rows = self._rows.execute("SELECT key, nanodollars, since FROM spending").fetchall()
        return {name: (money, since) for name, money, since in rows}

    def write(self, name: str, money: int, since: float) -> None:
        """Replace the row of a key."""
        try:
            self._rows.execute("INSERT OR REPLACE INTO spending VALUES (?, ?, ?)", (name, money, since))
        except sqlite3.Error as exc:  # the next row of this key holds what this one had
            _log.error("what a key spent is not kept", extra={"key": name, "file": str(self._path), "error": str(exc)})

    def close(self) -> None:
        """Close it, so that another process may open it."""
        self._rows.close()
