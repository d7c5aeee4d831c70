"""Quotas that several server processes share, in Redis: each decision is one script there, so no two overlap.

The environment's TTC_SERVE_REDIS names the server (redis://HOST:6379/0). Redis's clock counts the minute. Tokens that a
process had reserved when it died are given back once its longest request would have ended. Cost: one round trip before
a request of a key with limits, and one in the background when it ends; a key without limits needs only the latter. If
Redis does not answer, requests of keys with limits are refused with 503, since nobody could count them. What such a
request may have reserved all the same, and requests that ended meanwhile, are settled once Redis answers again: every
script may run twice. Use counts against every process's limit on a key, also if this process has none: in the
background, and lost if Redis does not answer then. Only a process with a limit on tokens reserves any, and only one
with a budget reserves money. What a request cost is booked with its reservation, so that it is booked once; what was
spent of a budget stays as long as Redis keeps its data.
A server that became a replica is left at once, so that the address may lead to the new primary; a node of a cluster
leads to the others. If Redis's clock went back, what it dated later counts from now.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from serve.operator.keys import ANYONE, Key
from serve.requests.errors import ApiError, unavailable
from serve.running.quotas import (
    FREE,
    Expense,
    LocalQuotas,
    Quotas,
    Reservation,
    Spending,
    Standing,
    no_money,
    reserved_money,
    too_many_requests,
    too_many_searches,
    too_many_tokens,
)
from ttc.errors import ConfigError, MissingExtra

ENV = "TTC_SERVE_REDIS"
WAIT_S = 2.0
"""Seconds that an answer may take."""
MARGIN_S = 60.0
"""Seconds after a request's time-out in which it has surely ended."""
PLACES = ("requests", "spent", "held", "searches")
MONEY = ("budget", "owed")
"""Where a key's money stands: what it has spent since when, and what is reserved of it."""

_HEAD = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function sum(place)
  local total = 0
  for _, member in ipairs(redis.call('ZRANGE', place, 0, -1)) do
    total = total + tonumber(string.match(member, ':(%d+)$'))
  end
  return total
end
local function forget(place, name)
  for _, member in ipairs(redis.call('ZRANGE', place, 0, -1)) do
    if string.sub(member, 1, #name + 1) == name .. ':' then return redis.call('ZREM', place, member) end
  end
  return 0
end
local requests, spent, held, searches, budget, owed = unpack(KEYS)
local function renew(seconds)
  local since = redis.call('HGET', budget, 'since')
  if not since or (seconds > 0 and now >= tonumber(since) + seconds) then
    redis.call('HSET', budget, 'since', string.format('%.6f', now), 'money', 0)
  elseif now < tonumber(since) then
    redis.call('HSET', budget, 'since', string.format('%.6f', now))
  end
end
local function book(price, seconds)
  if tonumber(price) > 0 then
    renew(tonumber(seconds))
    redis.call('HINCRBY', budget, 'money', price)
  end
end
local function let_go(place)
  redis.call('ZREMRANGEBYSCORE', place, '-inf', now - 60)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', place, '(' .. time[1] + 1, '+inf')) do
    redis.call('ZADD', place, now, member)
  end
end
"""
_FORGET = (
    _HEAD
    + """
local name = ARGV[1]
redis.call('ZREM', requests, name)
redis.call('ZREM', searches, name)
forget(held, name)
forget(owed, name)
"""
)
_TAKE = (
    _FORGET
    + """
local most, search = tonumber(ARGV[2]), tonumber(ARGV[3])
local per_minute, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local most_searches, held_s, least = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local most_money, budget_s = tonumber(ARGV[9]), tonumber(ARGV[10])
local most_cost, least_cost = tonumber(ARGV[11]), tonumber(ARGV[12])
let_go(requests)
let_go(spent)
for _, place in ipairs({held, searches, owed}) do redis.call('ZREMRANGEBYSCORE', place, '-inf', now) end
if most_money > 0 then renew(budget_s) end
local function until_free(place)
  local newest = redis.call('ZRANGE', place, -1, -1, 'WITHSCORES')
  return newest[2] and tostring(tonumber(newest[2]) + 60 - now) or '0'
end
local function answer(outcome, value, number)
  local money, since = 0, '-1'
  if most_money > 0 then
    money = tonumber(redis.call('HGET', budget, 'money'))
    since = redis.call('HGET', budget, 'since')
  end
  local tokens, reserved = 0, 0
  if limit > 0 then tokens, reserved = sum(spent), sum(held) end
  return {
    outcome, value, number, redis.call('ZCARD', requests), until_free(requests),
    tokens + reserved, reserved > 0 and '60' or until_free(spent), money, sum(owed), since, string.format('%.6f', now)
  }
end
local function wait(place)
  local oldest = redis.call('ZRANGE', place, 0, 0, 'WITHSCORES')
  return oldest[2] and tostring(tonumber(oldest[2]) + 60 - now) or '1'
end
if per_minute > 0 and redis.call('ZCARD', requests) >= per_minute then return answer('requests', wait(requests), 0) end
if search > 0 and most_searches > 0 and redis.call('ZCARD', searches) >= most_searches then
  return answer('searches', '1', 0)
end
local money = 0
if most_money > 0 then
  local left, others = most_money - tonumber(redis.call('HGET', budget, 'money')), sum(owed)
  if left <= 0 or least_cost > left then return answer('money', '0', 0) end
  if most_cost > left - others and others > 0 then return answer('owed', '1', 0) end
  money = math.min(most_cost, left)
end
local tokens = -1
if limit > 0 then
  local reserved = sum(held)
  local left = limit - sum(spent) - reserved
  if most <= left then tokens = most
  elseif most > limit and left >= least and reserved == 0 then tokens = left
  else return answer('tokens', reserved == 0 and wait(spent) or '1', reserved) end
  redis.call('ZADD', held, now + held_s, name .. ':' .. string.format('%.0f', tokens))
  redis.call('EXPIRE', held, math.ceil(held_s) + 60)
end
redis.call('ZADD', owed, now + held_s, name .. ':' .. string.format('%.0f', money))
redis.call('EXPIRE', owed, math.ceil(held_s) + 60)
redis.call('ZADD', requests, now, name)
redis.call('EXPIRE', requests, 120)
if search > 0 then
  redis.call('ZADD', searches, now + held_s, name)
  redis.call('EXPIRE', searches, math.ceil(held_s) + 60)
end
return answer('taken', tokens, money)
"""
)
_SETTLE = (
    _HEAD
    + """
local name, used, price, budget_s = unpack(ARGV)
redis.call('ZREM', searches, name)
forget(held, name)
if forget(owed, name) > 0 then book(price, budget_s) end
if tonumber(used) > 0 then
  redis.call('ZADD', spent, now, name .. ':' .. used)
  redis.call('EXPIRE', spent, 120)
end
"""
)
_COUNT = (
    _SETTLE
    + """
book(price, budget_s)
redis.call('ZADD', requests, now, name)
redis.call('EXPIRE', requests, 120)
let_go(requests)
let_go(spent)
"""
)
_log = logging.getLogger("serve")


class RedisQuotas:
    """Implements `Quotas` over one Redis server."""

    def __init__(self, client: Any, held_s: float) -> None:
        """`client` is a `redis.asyncio.Redis`; after `held_s` seconds nothing that was reserved can still run."""
        self._client, self._held_s = client, held_s
        scripts = map(client.register_script, (_TAKE, _SETTLE, _FORGET, _COUNT))
        self._take, self._settle, self._forget, self._count = scripts
        self._under_way: set[asyncio.Task[None]] = set()
        self.keeps_money = True

    async def check(self) -> None:
        """Let Redis run a script that changes nothing; raises what it says where it takes none."""
        await asyncio.wait_for(self._forget(keys=_places("check"), args=["none"]), WAIT_S)

    async def take(self, key: Key, most: int, *, search: bool, least: int = 1, cost: Expense = FREE) -> Reservation:
        """See `Quotas`; raises ApiError, 503, where Redis does not answer."""
        task = asyncio.ensure_future(self._taken(key, most, least, search, cost))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:  # what Redis has reserved by then comes back
            task.add_done_callback(self._give_back)
            raise

    def _give_back(self, task: asyncio.Future[Reservation]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.settle(task.result(), 0)

    async def _taken(self, key: Key, most: int, least: int, search: bool, cost: Expense) -> Reservation:
        name, bounds, budget = secrets.token_hex(8), _bounds(key), key.limits.budget or 0
        if not any(bounds) and not budget:
            return Reservation(key, name, None, search)
        arguments = [name, most, int(search), *(bound or 0 for bound in bounds), self._held_s, least]
        arguments += [budget, _budget_s(key), cost.most, cost.least]
        try:
            outcome, value, number, *rest = await self._asked(self._take, key, arguments)
        except ApiError as error:
            _log.error("quotas cannot be reached", extra={"key": key.name, "error": str(error.__cause__)[:300]})
            self._go_on(self._forgotten(key, name))  # Redis may have read the request, and nobody the answer
            raise
        num_requests, requests_s, num_tokens, tokens_s, money, owed, since, now = rest
        money_s = float(since) + key.limits.budget_s - float(now)
        standing = Standing(key, num_requests, float(requests_s), num_tokens, float(tokens_s), money, money_s)
        refusals: dict[bytes, Callable[[], ApiError]] = {
            b"requests": lambda: too_many_requests(key, float(value)),
            b"searches": lambda: too_many_searches(key),
            b"tokens": lambda: too_many_tokens(key, number, float(value)),
            b"money": lambda: no_money(key, money, money_s),
            b"owed": lambda: reserved_money(key, money, owed),
        }
        if outcome in refusals:
            refusal = refusals[outcome]()
            refusal.more = standing.headers()
            raise refusal
        return Reservation(key, name, None if value < 0 else value, search, number if budget else None, standing)

    def settle(self, reservation: Reservation, spent: int, price: int = 0) -> None:
        """See `Quotas`; runs in the background."""
        key = reservation.key
        arguments = [reservation.name, spent, price, _budget_s(key)]
        if any(_bounds(key)) or key.limits.budget:
            self._go_on(self._insisted(self._settle, key, arguments))
        elif key is not ANYONE:
            self._go_on(self._counted(key, arguments))

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """See `Quotas`; what Redis is not told in time is given back when the reservation expires."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=WAIT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if late:
                _log.error("quotas were not settled", extra={"requests": len(late)})
        await self._client.aclose()

    async def _forgotten(self, key: Key, name: str) -> None:
        """Release what a request may have reserved; twice, since Redis may read the reservation late."""
        await self._insisted(self._forget, key, [name])
        await asyncio.sleep(WAIT_S)
        await self._insisted(self._forget, key, [name])

    async def _counted(self, key: Key, arguments: Sequence[Any]) -> None:
        """Tell the others what a key used that has no limit here: once, since its requests do not wait for Redis."""
        try:
            await self._asked(self._count, key, arguments)
        except ApiError as error:
            extra = {"key": key.name, "error": str(error.__cause__)[:300]}
            _log.warning("what a key without limits used is not counted", extra=extra)

    async def _insisted(self, script: Any, key: Key, arguments: Sequence[Any]) -> None:
        """Run a script once Redis answers, as long as the reservation would stand there."""
        until = time.monotonic() + self._held_s
        while time.monotonic() < until:
            try:
                await self._asked(script, key, arguments)
            except ApiError as error:
                extra = {"key": key.name, "error": str(error.__cause__)[:300]}
                _log.warning("a quota is not settled yet", extra=extra)
                await asyncio.sleep(WAIT_S)
            else:
                return

    async def _asked(self, script: Any, key: Key, arguments: Sequence[Any]) -> Any:
        """What Redis says."""
        try:
            return await asyncio.wait_for(script(keys=_places(key.name), args=arguments), WAIT_S)
        except _failures() as exc:
            raise unavailable(
                "quotas_unavailable", "the quotas of this key cannot be reached", retry_after_s=5
            ) from exc


def _bounds(key: Key) -> tuple[int | None, ...]:
    """What is counted of `key`, in the order of the script."""
    limits = key.limits
    return limits.requests_per_minute, limits.tokens_per_minute, limits.max_searches


def _budget_s(key: Key) -> float:
    """The seconds of a budget as the scripts take them: 0 for one that is never renewed."""
    return key.limits.budget_s if math.isfinite(key.limits.budget_s) else 0


def _places(name: str) -> list[str]:
    """Where the use of a key stands; the braces keep it on one node of a cluster."""
    return [f"ttc:{{{name}}}:{place}" for place in PLACES + MONEY]


def _failures() -> tuple[type[Exception], ...]:
    """What a call to Redis raises where it fails."""
    from redis.exceptions import RedisClusterException, RedisError

    return RedisError, RedisClusterException, OSError, TimeoutError


async def find_quotas(longest_s: float, spend_file: pathlib.Path | None = None) -> Quotas:
    """The quotas of this process, or those in Redis where the environment names one; a request ends in `longest_s`.

    What is spent of budgets is kept in `spend_file`, if there is one, or in Redis.
    """
    url = os.environ.get(ENV)
    if url and not math.isfinite(longest_s):
        raise ConfigError(f"limits.request_timeout_s must be finite beside {ENV}: reservations end with it")
    if url:
        return await open_quotas(url, longest_s + MARGIN_S)
    return LocalQuotas(spending=None if spend_file is None else Spending(spend_file))


async def open_quotas(url: str, held_s: float) -> RedisQuotas:
    """Connect to the Redis server or cluster at `url`; a kept connection that it closed meanwhile is opened again.

    Raises:
        MissingExtra: its library is not installed.
        ConfigError: nothing answers there, or what does counts no quotas.
    """
    try:
        from redis.exceptions import AuthenticationError, RedisError
        from redis.exceptions import ConnectionError as NoConnection
    except ImportError as exc:
        raise MissingExtra("redis", "redis") from exc
    try:
        quotas = RedisQuotas(await _connected(url), held_s)
    except ValueError as exc:  # its text may hold a part of the password
        form = "redis://USER:PASSWORD@HOST:6379/0, with / # ? and @ of a password as %2F %23 %3F and %40"
        raise ConfigError(f"{ENV} is no address of Redis: write {form}") from exc
    except AuthenticationError as exc:
        form = "redis://:PASSWORD@HOST:6379/0 or redis://USER:PASSWORD@HOST:6379/0"
        raise ConfigError(f"{ENV}: Redis asks for another user or password there: write {form}") from exc
    except _failures() as exc:
        answered = isinstance(exc, RedisError) and type(exc) is not NoConnection
        text = f"Redis refuses there: {exc}" if answered else f"no Redis server answers there ({type(exc).__name__})"
        raise ConfigError(f"{ENV}: {text}") from exc
    try:
        await quotas.check()
    except _failures() as exc:
        await quotas.close()
        raise ConfigError(f"{ENV}: Redis counts no quotas there: {str(exc) or type(exc).__name__}") from exc
    return quotas


async def _connected(url: str) -> Any:
    """A client of the server at `url`, or of the cluster that it belongs to."""
    import redis.asyncio as library
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ReadOnlyError, RedisError

    again = Retry(NoBackoff(), 1)
    client: Any = library.Redis.from_url(
        url, socket_connect_timeout=WAIT_S, retry=again, retry_on_error=[ReadOnlyError]
    )
    await asyncio.wait_for(client.ping(), WAIT_S)
    try:
        await asyncio.wait_for(client.execute_command("CLUSTER", "INFO"), WAIT_S)
    except RedisError:  # it belongs to none
        return client
    await client.aclose()
    return library.RedisCluster.from_url(url, socket_connect_timeout=WAIT_S)
