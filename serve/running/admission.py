"""Which requests are admitted, and which of them may start the next draw.

Admission counts sequences (draws that may run at once), not requests: a search of 64 counts as much as 64 chats. A
refusal says when to come back: after the time in which as many sequences ended lately as are too many now. Plans are
validated before they come here, so a refusal is never about the request itself.

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
from serve.running.quotas import FREE, Expense, LocalQuotas, Quotas, Reservation, too_many
from ttc.config.values import counted
from ttc.errors import ConfigError

RECENT_S = 60.0
MAX_RETRY_S = 60.0


class Ticket:
    """Permission to run; counts what the request spends.

    `tokens` and `money` are the most that may be spent, where the key has limits; they are reserved until `leave`.
    """

    def __init__(self, reservation: Reservation, book: Callable[[int, int], None], *, is_whole: bool) -> None:
        """`book` is told what was spent and its price, and gives back the place and the rest.

        `is_whole`: all that the request may spend is reserved.
        """
        self.is_whole = is_whole
        self.tokens, self.money, self._book = reservation.tokens, reservation.money, book
        self.headers = {} if reservation.standing is None else reservation.standing.headers()
        self._used = self._overrun = self._price = self._overrun_price = 0

    @property
    def left(self) -> int | None:
        """What may still be spent of `tokens`."""
        return None if self.tokens is None else max(self.tokens - self._spent, 0)

    @property
    def _spent(self) -> int:
        """Tokens that were drawn and not kept count too; otherwise a client that leaves early would read for free.

        They count only up to what was reserved, since the request's own limit does not include them.
        """
        return _within(self._used, self._overrun, self.tokens)

    @property
    def _paid(self) -> int:
        """The like in money."""
        return _within(self._price, self._overrun_price, self.money)

    @property
    def money_left(self) -> int | None:
        """What may still be spent of `money`."""
        return None if self.money is None else max(self.money - self._paid, 0)

    def charge(self, tokens: int, overrun: int = 0, price: int = 0, overrun_price: int = 0) -> None:
        """Count what was spent and its price; `overrun` are tokens that were drawn and not kept."""
        self._used += tokens
        self._overrun += overrun
        self._price += price
        self._overrun_price += overrun_price

    def leave(self) -> None:
        """Book what was spent."""
        self._book(self._spent, self._paid)


def _within(used: int, overrun: int, reserved: int | None) -> int:
    """What was used, and of the overrun what is reserved; None reserves all."""
    return used + (overrun if reserved is None else max(min(overrun, reserved - used), 0))


class Admission:
    """Admits requests; for one event loop."""

    def __init__(
        self, max_sequences: int, quotas: Quotas | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`quotas` are those of this process where none are given."""
        self._max, self._clock = max_sequences, clock
        self._quotas = LocalQuotas() if quotas is None else quotas
        self._ended: deque[tuple[float, int]] = deque(maxlen=512)
        self.sequences = self.requests = 0

    @property
    def keeps_money(self) -> bool:
        """Whether what is spent of budgets outlives this process."""
        return self._quotas.keeps_money

    async def admit(
        self, key: Key, sequences: int, *, search: bool, most: int, least: int = 1, cost: Expense = FREE
    ) -> Ticket:
        """Admit a request of `sequences` draws that may spend `most` tokens; with fewer than `least` it has no answer.

        Raises:
            ApiError: 429, with the seconds after which to try again; 400 where its key never has `least`.
        """
        limit = key.limits.tokens_per_minute
        if limit is not None and least > limit:
            text = f"this request takes at least {least} tokens, including its prompt"
            raise ApiError(400, "token_limit_exceeded", f"{text}, and the key {key.name} may spend {limit} a minute")
        excess = self.sequences + sequences - self._max
        if excess > 0 and self.sequences:
            there = f"{counted(self.sequences, 'draw')} {'is' if self.sequences == 1 else 'are'} admitted"
            text = f"the server is busy: {there}, {sequences} more would exceed {self._max}"
            raise too_many("queue_full", text, self._drain_s(excess, self._clock()))
        self._enter(sequences)
        try:
            reservation = await self._quotas.take(key, most, search=search, least=least, cost=cost)
        except BaseException:
            self._enter(-sequences)
            raise

        def book(spent: int, price: int) -> None:
            self._enter(-sequences)
            self._ended.append((self._clock(), sequences))
            self._quotas.settle(reservation, spent, price)

        is_whole = reservation.tokens in (None, most) and reservation.money in (None, cost.most)
        return Ticket(reservation, book, is_whole=is_whole)

    def _enter(self, sequences: int) -> None:
        self.sequences += sequences
        self.requests += 1 if sequences > 0 else -1

    def _drain_s(self, excess: int, now: float) -> float:
        """Seconds in which `excess` sequences end, as fast as they ended in the last minute."""
        recent = [(at, count) for at, count in self._ended if at > now - RECENT_S]
        if not recent:
            return 1.0
        rate = sum(count for _, count in recent) / max(now - recent[0][0], 1.0)
        return min(max(excess / rate, 1.0), MAX_RETRY_S)


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

    Shares limit how many draws run; `max_wide` limits how long a step of the engine takes. If each draw makes a step
    longer, as on a CPU, a small chat is otherwise as slow as the widest search beside it.
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
