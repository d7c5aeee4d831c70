"""Who is let in: a bound on the draws that run or wait, and what each key may use.

Counted in sequences (draws that may run at once), not in requests: one search of 64 weighs as much as 64 chats. Who is
not let in is told when to come back: the time in which as many sequences ended lately as are too many now. A plan has
been validated before it comes here, so a refusal is never about the request itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serve.requests.errors import ApiError
from serve.requests.keys import Key
from ttc.core import Usage

__all__ = ["Admission", "Ticket"]

MINUTE_S = 60.0
MAX_RETRY_S = 60.0


@dataclass(slots=True)
class _Account:
    """What one key used in the last minute, and what it runs."""

    requests: deque[float] = field(default_factory=deque)
    tokens: deque[tuple[float, int]] = field(default_factory=deque)
    searches: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Permission to run; `charge` books tokens on the key, `leave` gives the place back."""

    charge: Callable[[Usage], None]
    leave: Callable[[], None]


class Admission:
    """Lets requests in; for one event loop."""

    def __init__(self, max_sequences: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max, self._clock = max_sequences, clock
        self._accounts: dict[str, _Account] = {}
        self._ended: deque[tuple[float, int]] = deque(maxlen=512)
        self.sequences = self.requests = 0

    def admit(self, key: Key, sequences: int, *, search: bool) -> Ticket:
        """Let a request of `sequences` draws in.

        Raises:
            ApiError: 429 with the seconds after which to try again.
        """
        now, account = self._clock(), self._accounts.setdefault(key.name, _Account())
        self._check_key(key, account, now, search)
        excess = self.sequences + sequences - self._max
        if excess > 0 and self.sequences:
            raise ApiError(
                429,
                "queue_full",
                f"the server is busy: {self.sequences} draws are admitted, {sequences} more would exceed {self._max}",
                retry_after_s=self._drain_s(excess, now),
            )
        account.requests.append(now)
        account.searches += search
        self.sequences += sequences
        self.requests += 1

        def charge(usage: Usage) -> None:
            account.tokens.append((self._clock(), usage.tokens))

        def leave() -> None:
            account.searches -= search
            self.sequences -= sequences
            self.requests -= 1
            self._ended.append((self._clock(), sequences))

        return Ticket(charge, leave)

    def _check_key(self, key: Key, account: _Account, now: float, search: bool) -> None:
        limits, horizon = key.limits, now - MINUTE_S
        while account.requests and account.requests[0] <= horizon:
            account.requests.popleft()
        while account.tokens and account.tokens[0][0] <= horizon:
            account.tokens.popleft()
        if limits.requests_per_minute is not None and len(account.requests) >= limits.requests_per_minute:
            raise ApiError(
                429,
                "rate_limit_exceeded",
                f"the key {key.name} may send {limits.requests_per_minute} requests a minute",
                retry_after_s=account.requests[0] + MINUTE_S - now,
            )
        if limits.tokens_per_minute is not None and sum(t for _, t in account.tokens) >= limits.tokens_per_minute:
            raise ApiError(
                429,
                "token_limit_exceeded",
                f"the key {key.name} may spend {limits.tokens_per_minute} tokens a minute",
                retry_after_s=account.tokens[0][0] + MINUTE_S - now,
            )
        if search and limits.max_searches is not None and account.searches >= limits.max_searches:
            raise ApiError(
                429,
                "too_many_searches",
                f"the key {key.name} may run {limits.max_searches} searches at once",
                retry_after_s=1.0,
            )

    def _drain_s(self, excess: int, now: float) -> float:
        """Seconds in which `excess` sequences end, as fast as they ended in the last minute."""
        recent = [(at, count) for at, count in self._ended if at > now - MINUTE_S]
        if not recent:
            return 1.0
        rate = sum(count for _, count in recent) / max(now - recent[0][0], 1.0)
        return min(max(excess / rate, 1.0), MAX_RETRY_S)
