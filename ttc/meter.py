"""The meter: one place where tokens and calls are counted and a budget is held.

A session owns one meter and hands its `add` to the engine and to scorers, so no strategy can bypass it. A draw leases
its `max_tokens` before it starts and returns what it did not use; leases are taken in path order, before the first
await, so which draw gets the last tokens does not depend on the schedule. A draw that will be scored by a scorer with a
price leases that too, and keeps what its scoring may take until it is scored; other scorers' tokens are charged when
reported. Independent subtrees take an equal `share` each. Left out: budgets across problems (a planner's job).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ttc.core import Budget, Completion, Path, Price, PricedScorer, Prompt, Sampling, Usage
from ttc.errors import BudgetExceeded

T = TypeVar("T")

FREE = Price()
"""Draws that nobody scores, or by a scorer that cannot tell its price."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission to run `num_draws` draws of at most `max_tokens` each, and to score them at `price`.

    Each draw may take `max_calls` requests, where thinking control continues it; None is as many as it needs.
    `injected` tokens a draw, put there by thinking control, are not drawn but scored.
    """

    num_draws: int
    max_tokens: int
    price: Price = FREE
    max_calls: int | None = None
    injected: int = 0

    @property
    def each(self) -> int:
        """What one draw and its scoring may take."""
        price = self.price
        return self.max_tokens * (1 + price.per_token) + self.injected * price.per_token + price.per_draw

    @property
    def tokens(self) -> int:
        """What all of it may take."""
        return self.price.fixed + self.num_draws * self.each

    def hold(self, sampling: Sampling, fixed: Sampling) -> Sampling:
        """`sampling` under this lease, with what no strategy chooses taken from `fixed`.

        Mostly it has all of that, since it was made from `fixed`.
        """
        if (sampling.seed, sampling.logprobs, sampling.max_tokens) == (fixed.seed, fixed.logprobs, self.max_tokens):
            return sampling
        return replace(sampling, seed=fixed.seed, logprobs=fixed.logprobs, max_tokens=self.max_tokens)


class Meter:
    """Counts usage and grants leases under a budget."""

    def __init__(self, budget: Budget | None = None, parent: Meter | None = None, closed: bool = False) -> None:
        """Start at zero; `parent` is charged as well; one that is `closed` grants nothing."""
        self.budget = budget or Budget()
        self.limited = closed or self.budget != Budget()
        self._closed = closed
        self.usage = Usage()
        self.started: float = time.monotonic() if parent is None else parent.started
        self.exhausted = False
        self._parent = parent
        self._leased_tokens = 0
        self._leased_calls = 0
        self._priced: set[Path] = set()
        self._kept: dict[Path, int | None] = {}

    def exhaust(self) -> None:
        """Remember that the budget ended the work."""
        self.exhausted = True
        if self._parent is not None:
            self._parent.exhaust()

    def add(self, usage: Usage) -> None:
        """Charge `usage` here and in the parents."""
        self.usage += usage
        if self._parent is not None:
            self._parent.add(usage)

    @property
    def deadline(self) -> float | None:
        """Monotonic second at which the budget in seconds ends."""
        return None if self.budget.seconds is None else self.started + self.budget.seconds

    def lease(
        self,
        num_draws: int,
        max_tokens: int,
        price: Price = FREE,
        prompt: Path = (),
        calls_each: int = 1,
        injected: int = 0,
    ) -> Lease:
        """Grant as many of `num_draws` as fit at full length, or one shortened draw; raise when nothing is left.

        The fixed part of `price` is leased with the first draws of `prompt`, whose scoring pays it for all. A draw may
        take `calls_each` requests, or what is left of them; `injected` tokens of it may be scored without being drawn.

        Raises:
            BudgetExceeded: not even one token or call remains.
        """
        granted, max_calls = num_draws, None
        limits = self.budget
        if self._closed:
            raise BudgetExceeded("the budget is too small for so many subtrees")
        price = replace(price, fixed=0) if prompt in self._priced else price
        if limits.flops is not None and self.usage.flops >= limits.flops:
            raise BudgetExceeded(f"budget.flops {limits.flops:g} is spent")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise BudgetExceeded(f"budget.seconds {limits.seconds:g} is spent")
        if limits.calls is not None:
            calls_left = limits.calls - self.usage.calls - self._leased_calls
            if calls_left < 1:
                raise BudgetExceeded(f"budget.calls {limits.calls} is spent")
            max_calls = min(calls_each, calls_left)
            granted = min(granted, calls_left // max_calls)
        if limits.tokens is not None:
            left = limits.tokens - self.usage.tokens - self._leased_tokens
            each, aside = 1 + price.per_token, injected * price.per_token + price.per_draw
            room = left - price.fixed
            if room < each + aside:
                raise BudgetExceeded(f"budget.tokens {limits.tokens} is spent")
            granted = min(granted, max(room // (max_tokens * each + aside), 1))
            max_tokens = min(max_tokens, (room - aside) // each)
        lease = Lease(granted, max_tokens, price, max_calls, injected)
        if price != FREE:
            self._priced.add(prompt)
        self._hold(lease, 1)
        return lease

    def price(self, prompt: Prompt, scorer: object) -> Price:
        """What scoring `prompt` and its draws may take of a token budget; nothing where none has to be kept for it."""
        if self.budget.tokens is None or not isinstance(scorer, PricedScorer):
            return FREE
        return scorer.price(prompt)

    async def in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, but no longer than the budget in seconds; raises BudgetExceeded when that ends first."""
        deadline = self.deadline
        if deadline is None:
            return await work
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                return await work
        except TimeoutError as exc:
            self.exhaust()
            raise BudgetExceeded("budget.seconds is spent") from exc

    def settle(self, lease: Lease) -> None:
        """Return a lease; what was really used has been charged through `add`."""
        self._hold(lease, -1)

    def _hold(self, lease: Lease, sign: int) -> None:
        self._leased_tokens += sign * lease.tokens
        self._leased_calls += sign * lease.num_draws * (lease.max_calls or 1)

    def keep(self, lease: Lease, drawn: Sequence[Completion], wanted: Sequence[int]) -> None:
        """Keep `wanted` tokens to score each draw of a settled lease; one that it cannot cover will not be scored."""
        fixed = lease.price.fixed
        for completion, own in zip(drawn, wanted, strict=True):
            covered = own <= lease.each - completion.usage.generated
            self._kept[completion.path] = own + fixed if covered else None
            self._leased_tokens += own + fixed if covered else 0
            fixed = 0 if covered else fixed

    def affords(self, path: Path) -> bool:
        """Whether what is kept for this path covers its scoring; also where nothing had to be kept."""
        return self._kept.get(path, 0) is not None

    def release(self, path: Path) -> None:
        """Return what was kept for a path: it has been scored, and charged."""
        self._leased_tokens -= self._kept.pop(path, 0) or 0

    def share(self, parts: int, index: int = 0) -> Meter:
        """Return the child meter that may spend share `index` of `parts` equal ones of what is left.

        What does not divide goes to the first ones, so all of them together never exceed it. Without a budget there is
        nothing to share.
        """
        if not self.limited:
            return self
        limits, used = self.budget, self.usage
        tokens = None if limits.tokens is None else _part(limits.tokens - used.tokens, parts, index)
        calls = None if limits.calls is None else _part(limits.calls - used.calls, parts, index)
        flops = None if limits.flops is None else (limits.flops - used.flops) / parts
        if any(limit is not None and limit <= 0 for limit in (tokens, calls, flops)):
            return Meter(parent=self, closed=True)
        return Meter(Budget(tokens=tokens, flops=flops, seconds=limits.seconds, calls=calls), parent=self)


def _part(whole: int, parts: int, index: int) -> int:
    return whole // parts + (index < whole % parts)
