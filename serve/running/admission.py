"""Who is let in, and who may start the next draw.

Admission is counted in sequences (draws that may run at once), not in requests: one search of 64 weighs as much as 64
chats. Who is not let in hears when to come back: the time in which as many sequences ended lately as are too many now.
A plan has been validated before it comes here, so a refusal is never about the request itself.

Within the engine each request holds as many slots as it has draws running. With k slots it may take another only while
k < alpha times the free ones (Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet
switches"), so one wide search fills most of an idle engine and never all of it: a request that holds nothing finds a
slot. Freed slots go to the request that holds fewest, the earlier one on a tie.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from serve.operator.keys import Key
from serve.requests.errors import ApiError
from ttc.core import Usage
from ttc.errors import ConfigError

MINUTE_S = 60.0
MAX_RETRY_S = 60.0


@dataclass(slots=True)
class _Account:
    """What one key used in the last minute, and what it runs."""

    requests: deque[float] = field(default_factory=deque)
    tokens: deque[tuple[float, int]] = field(default_factory=deque)
    reserved: int = 0
    searches: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Permission to run; `charge` books tokens on the key, `leave` gives back the place and what was not spent.

    `tokens` is the most that may be spent, where the key has a limit; it is reserved until `leave`.
    """

    tokens: int | None
    charge: Callable[[Usage], None]
    leave: Callable[[], None]


class Admission:
    """Lets requests in; for one event loop."""

    def __init__(self, max_sequences: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max, self._clock = max_sequences, clock
        self._accounts: dict[str, _Account] = {}
        self._ended: deque[tuple[float, int]] = deque(maxlen=512)
        self.sequences = self.requests = 0

    def admit(self, key: Key, sequences: int, *, search: bool, most: int) -> Ticket:
        """Let a request of `sequences` draws in that may spend `most` tokens.

        Raises:
            ApiError: 429, with the seconds after which to try again.
        """
        now, account = self._clock(), self._accounts.setdefault(key.name, _Account())
        self._check_key(key, account, now, search)
        tokens = _reservation(key, account, most, now - MINUTE_S)
        excess = self.sequences + sequences - self._max
        if excess > 0 and self.sequences:
            text = f"the server is busy: {self.sequences} draws are admitted, {sequences} more would exceed {self._max}"
            raise _too_many("queue_full", text, self._drain_s(excess, now))
        account.requests.append(now)
        account.searches += search
        account.reserved += tokens or 0
        self.sequences += sequences
        self.requests += 1

        def charge(usage: Usage) -> None:
            account.tokens.append((self._clock(), usage.tokens))

        def leave() -> None:
            account.searches -= search
            account.reserved -= tokens or 0
            self.sequences -= sequences
            self.requests -= 1
            self._ended.append((self._clock(), sequences))

        return Ticket(tokens, charge, leave)

    def _check_key(self, key: Key, account: _Account, now: float, search: bool) -> None:
        limits, horizon = key.limits, now - MINUTE_S
        while account.requests and account.requests[0] <= horizon:
            account.requests.popleft()
        while account.tokens and account.tokens[0][0] <= horizon:
            account.tokens.popleft()
        if limits.requests_per_minute is not None and len(account.requests) >= limits.requests_per_minute:
            text = f"the key {key.name} may send {limits.requests_per_minute} requests a minute"
            raise _too_many("rate_limit_exceeded", text, account.requests[0] - horizon)
        if search and limits.max_searches is not None and account.searches >= limits.max_searches:
            raise _too_many(
                "too_many_searches", f"the key {key.name} may run {limits.max_searches} searches at once", 1.0
            )

    def _drain_s(self, excess: int, now: float) -> float:
        """Seconds in which `excess` sequences end, as fast as they ended in the last minute."""
        recent = [(at, count) for at, count in self._ended if at > now - MINUTE_S]
        if not recent:
            return 1.0
        rate = sum(count for _, count in recent) / max(now - recent[0][0], 1.0)
        return min(max(excess / rate, 1.0), MAX_RETRY_S)


def _reservation(key: Key, account: _Account, most: int, horizon: float) -> int | None:
    """Tokens to set aside of the key's: all that may be spent, so that no number of requests at once passes the limit.

    A request that may spend more than a whole minute's worth gets what is left of it, as soon as nothing else runs.
    """
    limit = key.limits.tokens_per_minute
    if limit is None:
        return None
    left = limit - sum(count for _, count in account.tokens) - account.reserved
    if most <= left:
        return most
    if most > limit and left > 0 and not account.reserved:
        return left
    text = f"the key {key.name} may spend {limit} tokens a minute, and {account.reserved} are set aside for what runs"
    wait_s = account.tokens[0][0] - horizon if account.tokens and not account.reserved else 1.0
    raise _too_many("token_limit_exceeded", text, wait_s)


def _too_many(code: str, text: str, retry_after_s: float) -> ApiError:
    return ApiError(429, code, text, retry_after_s=retry_after_s)


ALPHA = 4.0


@dataclass(slots=True, eq=False)
class FairShare:
    """One request's slots, and its draws that wait for one."""

    arrival: int
    wide: bool = False
    held: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairGate:
    """At most `capacity` draws at once, at most `max_wide` of them of wide requests; for one event loop.

    The shares bound how many draws run; how long a step of the engine takes with them, `max_wide` does: where a step
    takes longer with every draw, as on a CPU, a small chat waits as long as the widest search beside it.
    """

    def __init__(self, capacity: int, alpha: float = ALPHA, max_wide: int | None = None) -> None:
        if capacity < 1:
            raise ConfigError(f"an engine must take at least one draw at once, got {capacity}")
        self.capacity, self._alpha = capacity, alpha
        self.tell: Callable[[float], None] = lambda seconds: None
        """Told of every draw how many seconds it has waited."""
        self.held = self._held_wide = 0
        self._max_wide = capacity if max_wide is None else max_wide
        self._arrivals = itertools.count()
        self._waiting: dict[int, FairShare] = {}

    @property
    def num_waiting(self) -> int:
        """Draws that wait for a slot."""
        return sum(len(share.waiting) for share in self._waiting.values())

    def share(self, *, wide: bool = False) -> FairShare:
        """The share of a new request; `wide`: it runs several draws at once."""
        return FairShare(next(self._arrivals), wide)

    @contextlib.asynccontextmanager
    async def slot(self, share: FairShare) -> AsyncIterator[None]:
        """Hold one slot for `share` while a draw runs."""
        begun = time.monotonic()
        await self._take(share)
        self.tell(time.monotonic() - begun)
        try:
            yield
        finally:
            self._give_back(share)
            self._hand_out()

    async def _take(self, share: FairShare) -> None:
        if not share.waiting and self._may(share):
            self._grant(share)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append(turn)
        self._waiting[share.arrival] = share
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted and cancelled at once: pass it on
                self._give_back(share)
            elif turn in share.waiting:
                share.waiting.remove(turn)
                if not share.waiting:
                    self._waiting.pop(share.arrival, None)
            self._hand_out()
            raise

    def _may(self, share: FairShare) -> bool:
        free = self.capacity - self.held
        if share.wide and self._held_wide >= self._max_wide:
            return False
        return free > 0 and share.held < max(self._alpha * free, 1)

    def _grant(self, share: FairShare) -> None:
        share.held += 1
        self.held += 1
        self._held_wide += share.wide

    def _give_back(self, share: FairShare) -> None:
        share.held -= 1
        self.held -= 1
        self._held_wide -= share.wide

    def _hand_out(self) -> None:
        while self._waiting:
            able = [share for share in self._waiting.values() if self._may(share)]
            if not able:
                return
            share = min(able, key=lambda item: (item.held, item.arrival))
            turn = share.waiting.popleft()
            if not share.waiting:
                del self._waiting[share.arrival]
            if not turn.done():
                self._grant(share)
                turn.set_result(None)
