"""The meter: one place where tokens and calls are counted and a budget is held.

A session owns one meter and hands its `add` to the engine and to scorers, so no strategy can bypass it. A draw leases
its `max_tokens` before it starts and returns what it did not use; leases are taken in path order, before the first
await, so which draw gets the last tokens does not depend on the schedule. Independent subtrees take an equal `share`
each. Left out: leases of scorer tokens (they are charged when reported), budgets across problems (a planner's job).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ttc.core import Budget, Usage
from ttc.errors import BudgetExceeded


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission to run `num_draws` draws of at most `max_tokens` each."""

    num_draws: int
    max_tokens: int


class Meter:
    """Counts usage and grants leases under a budget."""

    def __init__(self, budget: Budget | None = None, parent: Meter | None = None) -> None:
        """Start at zero; `parent` is charged as well."""
        self.budget = budget or Budget()
        self.usage = Usage()
        self.started: float = time.monotonic() if parent is None else parent.started
        self.exhausted = False
        self._parent = parent
        self._leased_tokens = 0
        self._leased_calls = 0

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

    def lease(self, num_draws: int, max_tokens: int) -> Lease:
        """Grant as many of `num_draws` as fit at full length, or one shortened draw; raise when nothing is left.

        Raises:
            BudgetExceeded: not even one token or call remains.
        """
        granted = num_draws
        limits = self.budget
        if limits.flops is not None and self.usage.flops >= limits.flops:
            raise BudgetExceeded(f"budget.flops {limits.flops:g} is spent")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise BudgetExceeded(f"budget.seconds {limits.seconds:g} is spent")
        if limits.calls is not None:
            granted = min(granted, limits.calls - self.usage.calls - self._leased_calls)
            if granted < 1:
                raise BudgetExceeded(f"budget.calls {limits.calls} is spent")
        if limits.tokens is not None:
            left = limits.tokens - self.usage.tokens - self._leased_tokens
            if left < 1:
                raise BudgetExceeded(f"budget.tokens {limits.tokens} is spent")
            if left < granted * max_tokens:
                granted = max(left // max_tokens, 1)
                max_tokens = min(max_tokens, left)
        lease = Lease(granted, max_tokens)
        self._hold(lease, 1)
        return lease

    def settle(self, lease: Lease) -> None:
        """Return a lease; what was really used has been charged through `add`."""
        self._hold(lease, -1)

    def _hold(self, lease: Lease, sign: int) -> None:
        self._leased_tokens += sign * lease.num_draws * lease.max_tokens
        self._leased_calls += sign * lease.num_draws

    def share(self, parts: int) -> Meter:
        """Return a child meter that may spend one of `parts` equal shares of what is left."""
        limits = self.budget
        tokens = None if limits.tokens is None else max((limits.tokens - self.usage.tokens) // parts, 1)
        calls = None if limits.calls is None else max((limits.calls - self.usage.calls) // parts, 1)
        flops = None if limits.flops is None else max((limits.flops - self.usage.flops) / parts, 1.0)
        return Meter(Budget(tokens=tokens, flops=flops, seconds=limits.seconds, calls=calls), parent=self)
