"""The meter: one place where tokens, calls and FLOPs are counted and a budget is held.

A session owns one meter and hands its `add` to the engine and to scorers, so no strategy can bypass it. Before a draw
starts it takes a lease of its `max_tokens`; when it ends, the unused part is returned. Leases are taken in path order,
before the first await, so which draw gets the last tokens does not depend on the schedule. If a scorer knows its price
in advance, the lease also covers the scoring of the draw, and that part stays reserved until the draw has been scored.
Other scorers are charged when they report their tokens. The very first draw may use up the tokens for its own scoring:
an answer without a score is better than none. Independent subtrees take an equal `share` each. Left out: budgets across
problems (a planner's job).

FLOPs are counted as if a problem were alone: it pays for what others computed for it, and once for what its own draws
share. An engine's prefix cache outlives a problem, so the first request would pay for a prompt, while a second strategy
of an evaluation, a problem that shares its examples with an earlier one, or a resumed run would get it for nothing:
FLOPs, and what a budget of FLOPs buys, would depend on the order of work. Tokens, `cached` among them, stay those of
the engine. Cost: a hash for every 16 tokens of a prompt and of a draw. Left out: endpoints that take no token ids,
whose FLOPs are what the server reports as computed.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ttc.core import (
    Budget,
    Completion,
    Engine,
    ModelShape,
    Path,
    Price,
    PricedScorer,
    Prompt,
    Sampling,
    Usage,
    UsageSink,
)
from ttc.errors import BudgetExceeded

Clock: TypeAlias = Callable[[], float]
"""Seconds that only ever grow."""

_Hold: TypeAlias = tuple[int, float, int]
"""Tokens, FLOPs and calls that are kept for the scoring of a path."""
FREE = Price()
"""Draws that nobody scores, or by a scorer that cannot tell its price."""
_BLOCK = 16
"""Ids that are hashed together."""
COUNTING = 2
"""The number of this way to count FLOPs, which runs keep; 1, or none, charged nobody for a prompt that was cached."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a piece of work takes of each unit of a budget but seconds."""

    tokens: float = 0.0
    calls: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Add unit by unit."""
        return Cost(self.tokens + other.tokens, self.calls + other.calls, self.flops + other.flops)

    def __mul__(self, times: float) -> Cost:
        """The cost of this many."""
        return Cost(self.tokens * times, self.calls * times, self.flops * times)


@dataclass(frozen=True, slots=True)
class Request:
    """What draws ask of the budget: the most tokens, requests and FLOPs of each, and those of its scoring.

    `max_tokens` are those that are sampled; with `holds_injected`, those that thinking control adds are among them.
    Each draw takes up to `calls` requests if thinking control continues it, or up to `most_calls` if the budget covers
    that for all draws. `injected` tokens per draw, added by thinking control, are scored but not drawn. `draw_flops`
    gives the FLOPs of drawing this many tokens after the prompt.
    """

    num_draws: int
    max_tokens: int
    price: Price = FREE
    prompt: Path = ()
    calls: int = 1
    most_calls: int = 1
    injected: int = 0
    draw_flops: Callable[[int], float] = lambda num_tokens: 0.0
    holds_injected: bool = False
    opening: bool = False
    """Where it is the first of all, it may take what its scoring would need."""

    def flops(self, num_tokens: int) -> float:
        """Most FLOPs of one draw of `num_tokens` and of its scoring; each request may read the prompt again."""
        return self.calls * self.draw_flops(num_tokens + self.injected) + self.price.flops(num_tokens + self.injected)


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission to run `num_draws` draws of at most `max_tokens` each, and to score them at `price`.

    Each draw may take `max_calls` requests; None: as many as it needs. `flops` are those of one draw and its scoring.
    `is_cut`: each has fewer tokens than were asked for. `max_ids` bounds sampled and injected tokens together.
    """

    num_draws: int
    max_tokens: int
    price: Price = FREE
    max_calls: int | None = None
    injected: int = 0
    flops: float = 0.0
    is_cut: bool = False
    max_ids: int | None = None

    @property
    def each(self) -> int:
        """The most that one draw and its scoring take."""
        price = self.price
        return self.max_tokens * (1 + price.per_token) + self.injected * price.per_token + price.per_draw

    @property
    def tokens(self) -> int:
        """The most that all draws and their scoring take."""
        return self.price.fixed + self.num_draws * self.each

    def hold(self, sampling: Sampling, fixed: Sampling) -> Sampling:
        """`sampling` under this lease, with fields that no strategy chooses taken from `fixed`.

        Usually it has them already, since it was made from `fixed`.
        """
        most = min(sampling.max_tokens, self.max_tokens)
        if (sampling.seed, sampling.logprobs, sampling.max_tokens) == (fixed.seed, fixed.logprobs, most):
            return sampling
        return replace(sampling, seed=fixed.seed, logprobs=fixed.logprobs, max_tokens=most)


class Meter:
    """Counts usage and grants leases under a budget."""

    def __init__(
        self,
        budget: Budget | None = None,
        parent: Meter | None = None,
        closed: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start at zero; `parent` is charged, too, and its clock is used; a `closed` meter grants nothing."""
        self.budget = budget or Budget()
        self.limited = closed or self.budget != Budget()
        self._closed = closed
        self.usage = Usage()
        self.clock: Clock = clock if parent is None else parent.clock
        self.started: float = self.clock() if parent is None else parent.started
        self.exhausted = False
        self._parent = parent
        self._leased_tokens = 0
        self._leased_calls = 0
        self._leased_flops = 0.0
        self._priced: set[Path] = set()
        self._kept: dict[Path, _Hold | None] = {}

    def exhaust(self) -> None:
        """Record that the budget ended the work."""
        self.exhausted = True
        if self._parent is not None:
            self._parent.exhaust()

    def add(self, usage: Usage) -> None:
        """Charge `usage` here and in the parents."""
        self.usage += usage
        if self._parent is not None:
            self._parent.add(usage)

    def withhold(self, tokens: int) -> None:
        """Take tokens out of the budget that are paid for but are no usage; fewer than 0 are given back."""
        self._leased_tokens += tokens

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the budget in seconds ends; None without one."""
        return None if self.budget.seconds is None else self.started + self.budget.seconds - self.clock()

    @property
    def left(self) -> Cost:
        """What is neither spent nor leased; infinite without a limit."""
        limits, usage = self.budget, self.usage
        if self._closed:
            return Cost()
        return Cost(
            math.inf if limits.tokens is None else limits.tokens - usage.tokens - self._leased_tokens,
            math.inf if limits.calls is None else limits.calls - usage.calls - self._leased_calls,
            math.inf if limits.flops is None else limits.flops - usage.flops - self._leased_flops,
        )

    def pays_for(self, cost: Cost) -> float:
        """How many times the rest covers `cost`; infinite if none of its units is limited."""
        left = self.left
        pairs = ((left.tokens, cost.tokens), (left.calls, cost.calls), (left.flops, cost.flops))
        if self.seconds_left is not None and self.seconds_left <= 0:
            return 0.0
        return min((max(have, 0.0) / price for have, price in pairs if price > 0), default=math.inf)

    def lease(self, request: Request) -> Lease:
        """Grant as many of the draws as fit at full length, or one shortened draw; raise when nothing is left.

        The fixed part of the price is leased with the first draws of a prompt, whose scoring pays it for all.

        Raises:
            BudgetExceeded: not even one token or call remains.
        """
        if self._closed:
            raise BudgetExceeded("the budget is too small for so many subtrees")
        if self.seconds_left is not None and self.seconds_left <= 0:
            raise BudgetExceeded(f"budget.seconds {self.budget.seconds:g} is spent")
        if request.prompt in self._priced:
            request = replace(request, price=replace(request.price, fixed=0))
        try:
            lease = self._fit(request)
        except BudgetExceeded:
            if not self._takes_all(request):
                raise
            lease = self._fit(replace(request, price=FREE, num_draws=1))
        else:
            if lease.is_cut and self._takes_all(request):
                lease = self._fit(replace(request, price=FREE, num_draws=1))
        if lease.price != FREE:
            self._priced.add(request.prompt)
        # Fitted to the rest and reserved without an await in between: no token is granted twice.
        self._hold(lease, 1)
        return lease

    def _takes_all(self, request: Request) -> bool:
        """Whether a draw may use the tokens for its scoring: nothing was drawn before it or is in flight."""
        first = not self.usage.calls and not self._leased_calls and self._parent is None
        return request.opening and request.price != FREE and first

    def _fit(self, request: Request) -> Lease:
        """The largest lease for `request` that the rest covers."""
        left, limits, price = self.left, self.budget, request.price
        if request.most_calls > request.calls and self._pays_for_all(request):
            request = replace(request, calls=request.most_calls)
        granted, max_tokens, max_calls = request.num_draws, request.max_tokens, None
        if limits.calls is not None:
            if left.calls < 1 + price.calls:
                raise BudgetExceeded(f"budget.calls {limits.calls} is spent")
            max_calls = min(request.calls, int(left.calls) - price.calls)
            granted = min(granted, int(left.calls) // (max_calls + price.calls))
        if limits.tokens is not None:
            each, aside = 1 + price.per_token, request.injected * price.per_token + price.per_draw
            room = int(left.tokens) - price.fixed
            if room < each + aside:
                raise BudgetExceeded(f"budget.tokens {limits.tokens} is spent")
            granted = min(granted, max(room // (max_tokens * each + aside), 1))
            max_tokens = min(max_tokens, (room - aside) // each)
        if limits.flops is not None:
            max_tokens = bisect_right(range(1, max_tokens + 1), left.flops, key=request.flops)
            if max_tokens < 1:
                raise BudgetExceeded(f"budget.flops {limits.flops:g} is spent")
            granted = min(granted, max(int(left.flops // request.flops(request.max_tokens)), 1))
            max_calls = min(max_calls or request.calls, request.calls)  # each may read the prompt again
        # FLOPs are reserved only if they are limited: pricing them costs time on every draw.
        flops = 0.0 if limits.flops is None else request.flops(max_tokens)
        is_cut, max_ids = max_tokens < request.max_tokens, max_tokens if request.holds_injected else None
        return Lease(granted, max_tokens, price, max_calls, request.injected, flops, is_cut, max_ids)

    def _pays_for_all(self, request: Request) -> bool:
        """Whether the rest covers all draws with the most calls and FLOPs of each."""
        most, left, num = replace(request, calls=request.most_calls), self.left, request.num_draws
        if left.calls < num * (most.calls + most.price.calls):
            return False
        return self.budget.flops is None or left.flops >= num * most.flops(most.max_tokens)

    def price(self, prompt: Prompt, scorer: object) -> Price:
        """The price of scoring `prompt` and its draws; zero if nothing has to be reserved for it."""
        limits = self.budget
        rationed = limits.tokens is not None or limits.flops is not None
        if not (rationed or limits.calls is not None) or not isinstance(scorer, PricedScorer):
            return FREE
        price = scorer.price(prompt)
        return price if rationed else Price(calls=price.calls)

    def settle(self, lease: Lease) -> None:
        """Return a lease; the actual use has been charged through `add`."""
        self._hold(lease, -1)

    def _hold(self, lease: Lease, sign: int) -> None:
        self._leased_tokens += sign * lease.tokens
        self._leased_calls += sign * lease.num_draws * ((lease.max_calls or 1) + lease.price.calls)
        self._leased_flops += sign * lease.num_draws * lease.flops

    def keep(self, lease: Lease, drawn: Sequence[Completion], prices: Sequence[Price], before: Price) -> None:
        """Reserve the scoring of each draw of a settled lease; a draw that is not covered will not be scored.

        `prices` are those of the whole paths, `before` is that of their prompt, which is paid once.
        """
        due = lease.price.fixed if lease.price != FREE else before.fixed
        for completion, price in zip(drawn, prices, strict=True):
            own = price.fixed - before.fixed
            # A lease covers only its own draws, whatever else is in flight; only the very first draw had no price.
            left = self.left
            room = lease.each - completion.usage.generated if lease.price != FREE else left.tokens - due
            # The tokens that the draw left unused move from its lease to its scoring, so the sum stays what it was.
            is_covered = own <= room and price.flops(0) <= left.flops and price.calls <= left.calls
            self._keep(completion.path, (own + due, price.flops(0), price.calls) if is_covered else None)
            due = 0 if is_covered else due

    def cover(self, path: Path, price: Price) -> None:
        """Reserve the scoring of a path if that was not done when it was drawn."""
        if path not in self._kept and price != FREE:
            left, hold = self.left, (price.fixed, price.flops(0), price.calls)
            is_covered = hold[0] <= left.tokens and hold[1] <= left.flops and hold[2] <= left.calls
            self._keep(path, hold if is_covered else None)

    def _keep(self, path: Path, hold: _Hold | None) -> None:
        self._kept[path] = hold
        self._move(hold, 1)

    def _move(self, hold: _Hold | None, sign: int) -> None:
        tokens, flops, calls = hold or (0, 0.0, 0)
        self._leased_tokens += sign * tokens
        self._leased_flops += sign * flops
        self._leased_calls += sign * calls

    def affords(self, path: Path) -> bool:
        """Whether the reserve for this path covers its scoring; true if nothing had to be reserved."""
        return path not in self._kept or self._kept[path] is not None

    def release(self, path: Path) -> None:
        """Release the reserve of a path: it has been scored and charged."""
        self._move(self._kept.pop(path, None), -1)

    def release_below(self, root: Path) -> None:
        """Release the reserves of the paths below `root`, which will not be scored any more."""
        for path in [path for path in self._kept if path[: len(root)] == root]:
            self.release(path)

    def share(self, parts: int, index: int = 0) -> Meter:
        """Return the child meter that may spend share `index` of `parts` equal ones of what is left.

        The remainder goes to the first ones, so all of them together never exceed it. Without a budget, shares are
        unlimited.
        """
        if not self.limited:
            return self
        limits, usage = self.budget, self.usage
        tokens = None if limits.tokens is None else _part(limits.tokens - usage.tokens, parts, index)
        calls = None if limits.calls is None else _part(limits.calls - usage.calls, parts, index)
        flops = None if limits.flops is None else (limits.flops - usage.flops) / parts
        if any(limit is not None and limit <= 0 for limit in (tokens, calls, flops)):
            return Meter(parent=self, closed=True)
        return Meter(Budget(tokens=tokens, flops=flops, seconds=limits.seconds, calls=calls), parent=self)


def _part(whole: int, parts: int, index: int) -> int:
    return whole // parts + (index < whole % parts)


class OwnPrefixes:
    """The prefixes computed for one problem, as a tree of blocks of ids; mutable and private to its session."""

    def __init__(self) -> None:
        self._blocks: dict[int, set[tuple[int, ...]]] = {}
        """What came next, whole blocks and ends, by the hash of all blocks before."""

    def length(self, ids: Sequence[int]) -> int:
        """How many ids at the start of `ids` are known."""
        return self.match(ids)[0]

    def match(self, ids: Sequence[int]) -> tuple[int, tuple[int, int]]:
        """How many ids at the start of `ids` are known, and where their whole blocks end, for `add`."""
        state = start = 0
        while True:
            block, seen = tuple(ids[start : start + _BLOCK]), self._blocks.get(state, set())
            if len(block) < _BLOCK or block not in seen:
                return start + max((_common(block, other) for other in seen), default=0), (state, start)
            state, start = hash((state, block)), start + _BLOCK

    def add(self, ids: Sequence[int], after: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Remember `ids` and all their beginnings, of which those before `after` are known.

        Returns where the whole blocks end: what continues `ids` may be added after it.
        """
        state, start = after
        while block := tuple(ids[start : start + _BLOCK]):
            self._blocks.setdefault(state, set()).add(block)
            if len(block) < _BLOCK:
                break
            state, start = hash((state, block)), start + _BLOCK
        return state, start


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """The length of the common beginning, by bisection."""
    least, most = 0, min(len(first), len(second))
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if first[:middle] == second[:middle] else (least, middle - 1)
    return least


class _Bill:
    """Forwards the reports of one request, adding the FLOPs of what others had computed for it."""

    def __init__(self, shape: ModelShape, own: int, num_new: int, on_usage: UsageSink) -> None:
        self._shape, self._own, self._num_new, self._on_usage = shape, own, num_new, on_usage
        self.extra = 0.0

    def __call__(self, usage: Usage) -> None:
        """Charge one draw; any of them may be the one that the engine charges for the prompt."""
        if usage.prompt:
            self._num_new -= usage.prompt - usage.cached
            extra = self._shape.flops(max(self._num_new, 0), self._own)
            if extra != self.extra:
                usage, self.extra = replace(usage, flops=usage.flops + extra - self.extra), extra
        self._on_usage(usage)


async def generate_alone(
    engine: Engine, prefixes: OwnPrefixes, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink
) -> list[Completion]:
    """Like `Engine.generate`, with FLOPs as if the problem were alone; `prefixes` are the problem's."""
    ids, shape = prompt.token_ids, engine.capabilities.shape
    if ids is None or shape is None:
        return await engine.generate(prompt, sampling, draws, on_usage)
    own, known = prefixes.match(ids)
    end = prefixes.add(ids, known)  # before the first await: of two requests at once, one pays
    bill = _Bill(shape, own, len(ids) - own, on_usage)
    completions = await engine.generate(prompt, sampling, draws, bill)
    for completion in completions:
        prefixes.add((*ids, *completion.token_ids[:-1]), end)  # the last one was sampled, and has not been read
    if bill.extra and completions:
        first, *others = completions
        usage = replace(first.usage, flops=first.usage.flops + bill.extra)
        completions = [replace(first, usage=usage), *others]
    return completions
