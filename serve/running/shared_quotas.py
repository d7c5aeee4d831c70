"""Quotas that several server processes share, in Redis: each decision is one script there, so no two overlap.

The environment's TTC_SERVE_REDIS names the server (redis://HOST:6379/0). Redis's clock counts the minute. Tokens that a
process had reserved when it died are given back once its longest request would have ended. Cost: one round trip before
a request of a key with limits, and one in the background when it ends; a key without limits needs only the latter. If
Redis does not answer, requests of keys with limits are refused with 503, since nobody could count them. What such a
request may have reserved all the same, and requests that ended meanwhile, are settled once Redis answers again: every
script may run twice. Use counts against every process's limit on a key, also if this process has none: in the
background, and lost if Redis does not answer then. Only a process with a limit on tokens reserves any.
A server that became a replica is left at once, so that the address may lead to the new primary; a node of a cluster
leads to the others. If Redis's clock went back, what it dated later counts from now.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from serve.operator.keys import ANYONE, Key
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
local function forget(place, name)
  for _, member in ipairs(redis.call('ZRANGE', place, 0, -1)) do
    if string.sub(member, 1, #name + 1) == name .. ':' then redis.call('ZREM', place, member) end
  end
end
local requests, spent, held, searches = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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
"""
)
_TAKE = (
    _FORGET
    + """
local most, search = tonumber(ARGV[2]), tonumber(ARGV[3])
local per_minute, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local most_searches, held_s, least = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
let_go(requests)
let_go(spent)
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
  elseif most > limit and left >= least and reserved == 0 then tokens = left
  else return {'tokens', reserved == 0 and wait(spent) or '1', reserved} end
  redis.call('ZADD', held, now + held_s, name .. ':' .. string.format('%.0f', tokens))
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
local name, used = ARGV[1], ARGV[2]
redis.call('ZREM', searches, name)
forget(held, name)
if tonumber(used) > 0 then
  redis.call('ZADD', spent, now, name .. ':' .. used)
  redis.call('EXPIRE', spent, 120)
end
"""
)
_COUNT = (
    _SETTLE
    + """
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

    async def check(self) -> None:
        """Let Redis run a script that changes nothing; raises what it says where it takes none."""
        await asyncio.wait_for(self._forget(keys=_places("check"), args=["none"]), WAIT_S)

    async def take(self, key: Key, most: int, *, search: bool, least: int = 1) -> Reservation:
        """See `Quotas`; raises ApiError, 503, where Redis does not answer."""
        task = asyncio.ensure_future(self._taken(key, most, least, search))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:  # what Redis has reserved by then comes back
            task.add_done_callback(self._give_back)
            raise

    def _give_back(self, task: asyncio.Future[Reservation]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.settle(task.result(), 0)

    async def _taken(self, key: Key, most: int, least: int, search: bool) -> Reservation:
        name, bounds = secrets.token_hex(8), _bounds(key)
        if not any(bounds):
            return Reservation(key, name, None, search)
        arguments = [name, most, int(search), *(bound or 0 for bound in bounds), self._held_s, least]
        try:
            outcome, value, reserved = await self._asked(self._take, key, arguments)
        except ApiError as error:
            _log.error("quotas cannot be reached", extra={"key": key.name, "error": str(error.__cause__)[:300]})
            self._go_on(self._forgotten(key, name))  # Redis may have read the request, and nobody the answer
            raise
        match outcome:
            case b"requests":
                raise too_many_requests(key, float(value))
            case b"searches":
                raise too_many_searches(key)
            case b"tokens":
                raise too_many_tokens(key, reserved, float(value))
        return Reservation(key, name, None if value < 0 else value, search)

    def settle(self, reservation: Reservation, spent: int) -> None:
        """See `Quotas`; runs in the background."""
        key, arguments = reservation.key, [reservation.name, spent]
        if any(_bounds(key)):
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


def _places(name: str) -> list[str]:
    """Where the use of a key stands; the braces keep it on one node of a cluster."""
    return [f"ttc:{{{name}}}:{place}" for place in PLACES]


def _failures() -> tuple[type[Exception], ...]:
    """What a call to Redis raises where it fails."""
    from redis.exceptions import RedisClusterException, RedisError

    return RedisError, RedisClusterException, OSError, TimeoutError


async def find_quotas(longest_s: float) -> Quotas:
    """The quotas of this process, or those in Redis where the environment names one; a request ends in `longest_s`."""
    url = os.environ.get(ENV)
    if url and not math.isfinite(longest_s):
        raise ConfigError(f"limits.request_timeout_s must be finite beside {ENV}: reservations end with it")
    return LocalQuotas() if not url else await open_quotas(url, longest_s + MARGIN_S)


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
