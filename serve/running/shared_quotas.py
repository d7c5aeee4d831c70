"""Quotas that several server processes share, in Redis: each decision is one script there, so no two overlap.

The environment's TTC_SERVE_REDIS names the server (redis://HOST:6379/0). Redis's clock counts the minute. What a
process that died had set aside is given back once its longest request would have ended. Cost: one round trip before a
request of a key with limits, one behind its back when it ends; keys without limits cost none. Where Redis does not
answer, requests of keys with limits are refused with 503: a limit that nobody counts is none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable
from typing import Any

from serve.operator.keys import Key
from serve.requests.errors import ApiError, unavailable
from serve.running.quotas import LocalQuotas, Quotas, Reservation, too_many_requests, too_many_searches, too_many_tokens
from ttc.errors import ConfigError, MissingExtra

ENV = "TTC_SERVE_REDIS"
WAIT_S = 2.0
"""Seconds that an answer may take."""
MARGIN_S = 60.0
"""Seconds after a request's time-out in which it has surely ended."""
PLACES = ("requests", "spent", "held", "searches")

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
local requests, spent, held, searches = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
"""
_TAKE = (
    _HEAD
    + """
local name, most, search = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local per_minute, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local most_searches, held_s = tonumber(ARGV[6]), tonumber(ARGV[7])
redis.call('ZREMRANGEBYSCORE', requests, '-inf', now - 60)
redis.call('ZREMRANGEBYSCORE', spent, '-inf', now - 60)
redis.call('ZREMRANGEBYSCORE', held, '-inf', now)
redis.call('ZREMRANGEBYSCORE', searches, '-inf', now)
local function wait(place)
  local oldest = redis.call('ZRANGE', place, 0, 0, 'WITHSCORES')
  return oldest[2] and tostring(tonumber(oldest[2]) + 60 - now) or '1'
end
if per_minute > 0 and redis.call('ZCARD', requests) >= per_minute then return {'requests', wait(requests), 0} end
if search > 0 and most_searches > 0 and redis.call('ZCARD', searches) >= most_searches then
  return {'searches', '1', 0}
end
local tokens = -1
if limit > 0 then
  local reserved = sum(held)
  local left = limit - sum(spent) - reserved
  if most <= left then tokens = most
  elseif most > limit and left > 0 and reserved == 0 then tokens = left
  else return {'tokens', reserved == 0 and wait(spent) or '1', reserved} end
  redis.call('ZADD', held, now + held_s, name .. ':' .. tokens)
  redis.call('EXPIRE', held, math.ceil(held_s) + 60)
end
redis.call('ZADD', requests, now, name)
redis.call('EXPIRE', requests, 120)
if search > 0 then
  redis.call('ZADD', searches, now + held_s, name)
  redis.call('EXPIRE', searches, math.ceil(held_s) + 60)
end
return {'taken', tokens, 0}
"""
)
_SETTLE = (
    _HEAD
    + """
local name, tokens, used = ARGV[1], ARGV[2], ARGV[3]
redis.call('ZREM', held, name .. ':' .. tokens)
redis.call('ZREM', searches, name)
if tonumber(used) > 0 then
  redis.call('ZADD', spent, now, name .. ':' .. used)
  redis.call('EXPIRE', spent, 120)
end
"""
)
_log = logging.getLogger("serve")


class RedisQuotas:
    """Implements `Quotas` over one Redis server."""

    def __init__(self, client: Any, held_s: float) -> None:
        """`client` is a `redis.asyncio.Redis`; after `held_s` seconds nothing that was set aside can still run."""
        self._client, self._held_s = client, held_s
        self._take, self._settle = client.register_script(_TAKE), client.register_script(_SETTLE)
        self._under_way: set[asyncio.Task[None]] = set()

    async def take(self, key: Key, most: int, *, search: bool) -> Reservation:
        """See `Quotas`; raises ApiError, 503, where Redis does not answer."""
        task = asyncio.ensure_future(self._taken(key, most, search))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:  # what Redis has set aside by then comes back
            task.add_done_callback(self._give_back)
            raise

    def _give_back(self, task: asyncio.Future[Reservation]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.settle(task.result(), 0)

    async def _taken(self, key: Key, most: int, search: bool) -> Reservation:
        name, limits = secrets.token_hex(8), key.limits
        bounds = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_searches)
        if not any(bounds):
            return Reservation(key, name, None, search)
        arguments = [name, most, int(search), *(bound or 0 for bound in bounds), self._held_s]
        outcome, value, reserved = await self._asked(self._take(keys=_places(key), args=arguments))
        match outcome:
            case b"requests":
                raise too_many_requests(key, float(value))
            case b"searches":
                raise too_many_searches(key)
            case b"tokens":
                raise too_many_tokens(key, reserved, float(value))
        return Reservation(key, name, None if value < 0 else value, search)

    def settle(self, reservation: Reservation, spent: int) -> None:
        """See `Quotas`; goes on behind the caller's back."""
        if any((reservation.tokens is not None, reservation.search and reservation.key.limits.max_searches)):
            task = asyncio.get_running_loop().create_task(self._settled(reservation, spent))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """See `Quotas`."""
        await asyncio.gather(*self._under_way)
        await self._client.aclose()

    async def _settled(self, reservation: Reservation, spent: int) -> None:
        used = 0 if reservation.tokens is None else spent
        arguments = [reservation.name, reservation.tokens or 0, used]
        try:
            await self._asked(self._settle(keys=_places(reservation.key), args=arguments))
        except ApiError as error:  # it is given back when its time is over
            _log.error("a quota was not settled", extra={"key": reservation.key.name, "error": error.message})

    async def _asked(self, answer: Awaitable[Any]) -> Any:
        """What Redis says."""
        from redis.exceptions import RedisError

        try:
            return await asyncio.wait_for(answer, WAIT_S)
        except (RedisError, OSError, TimeoutError) as exc:
            _log.error("quotas are out of reach", extra={"error": f"{type(exc).__name__}: {exc}"})
            raise unavailable("quotas_unavailable", "the quotas of this key are out of reach", retry_after_s=5) from exc


def _places(key: Key) -> list[str]:
    """Where a key's use stands; the braces keep it on one node of a cluster."""
    return [f"ttc:{{{key.name}}}:{place}" for place in PLACES]


async def find_quotas(longest_s: float) -> Quotas:
    """The quotas of this process, or those in Redis where the environment names one; a request ends in `longest_s`."""
    url = os.environ.get(ENV)
    return LocalQuotas() if not url else await open_quotas(url, longest_s + MARGIN_S)


async def open_quotas(url: str, held_s: float) -> RedisQuotas:
    """Connect to the Redis server at `url`.

    Raises:
        MissingExtra: its library is not installed.
        ConfigError: nothing answers there.
    """
    try:
        import redis.asyncio as library
        from redis.exceptions import RedisError
    except ImportError as exc:
        raise MissingExtra("redis", "redis") from exc
    try:
        client = library.Redis.from_url(url, socket_connect_timeout=WAIT_S)
        await asyncio.wait_for(client.ping(), WAIT_S)
    except (RedisError, OSError, ValueError, TimeoutError) as exc:
        raise ConfigError(f"{ENV}: no Redis server answers there ({type(exc).__name__})") from exc
    return RedisQuotas(client, held_s)
