"""Quotas hold over several processes that share them in a real Redis server; skipped where none is installed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import pytest

from serve.operator.keys import ANYONE, Key, KeyLimits, key_from_secret
from serve.requests.errors import ApiError
from serve.requests.fields import ServeRequest
from serve.requests.search import SearchRequest
from serve.running import shared_quotas
from serve.running.active import _Attempt
from serve.running.admission import Admission
from serve.running.quotas import LocalQuotas, Quotas, Reservation, too_many_requests, too_many_searches
from serve.running.shared_quotas import ENV, PLACES, RedisQuotas, find_quotas, open_quotas
from serve.running.upstreams import Upstreams
from tests.serve.running import chat, running, scripted, served
from tests.serve.slow import until
from tests.serve.streams import chunks_of
from tests.serve.test_forward import TOOLS, WithoutIds
from tests.serve.thinker import think
from tests.serve.upstream import upstream
from ttc.core import Message, Path, Price, Prompt, Score, Usage, UsageSink
from ttc.engines.openai.client import Client
from ttc.engines.openai.refusals import Access
from ttc.engines.openai.wire import Features
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.errors import ConfigError, EngineError
from ttc.scorers.constant import constant

SECRET = "a-secret-of-alice"
PROGRAM = os.environ.get("TTC_REDIS_SERVER") or shutil.which("redis-server")


def alice(**limits: int) -> Key:
    return key_from_secret("alice", SECRET, KeyLimits(**limits))


@contextlib.contextmanager
def redis(folder: pathlib.Path, *more: str) -> Iterator[str]:
    """The address of a server of its own, started with `more` options."""
    pytest.importorskip("redis")
    if PROGRAM is None:
        pytest.skip("redis-server is not installed (TTC_REDIS_SERVER names it)")
    port = 0
    while not 0 < port < 55536:  # a cluster's nodes talk to each other 10000 above
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *more]
    child = subprocess.Popen([PROGRAM, *options], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        child.terminate()
        child.wait(10)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis(tmp_path_factory.mktemp("redis")) as address:
        yield address


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(quotas: Quotas, key: Key, most: int, *, search: bool = False) -> ApiError:
    async def ask() -> None:
        await quotas.take(key, most, search=search)

    with pytest.raises(ApiError) as refusal:
        asyncio.run(ask())
    return refusal.value


def test_what_is_spent_counts_for_a_minute_and_what_is_not_comes_back() -> None:
    clock, key = Clock(), alice(tokens_per_minute=100)
    quotas = LocalQuotas(clock)
    first = asyncio.run(quotas.take(key, 100, search=False))
    assert refused(quotas, key, 1).status == 429
    quotas.settle(first, 30)
    assert asyncio.run(quotas.take(key, 70, search=False)).tokens == 70
    clock.now += 61
    assert asyncio.run(quotas.take(key, 30, search=False)).tokens == 30


def test_what_was_sampled_for_a_client_that_left_is_spent_as_far_as_it_was_set_aside() -> None:
    async def ask(most: int) -> int | None:
        admission, key = Admission(10, LocalQuotas(Clock())), alice(tokens_per_minute=100)
        for usage in (Usage(overrun=40), Usage(generated=10, overrun=90)):
            ticket = await admission.admit(key, 1, search=False, most=50)
            ticket.charge(usage.tokens, usage.overrun)
            ticket.leave()
        return (await admission.admit(key, 1, search=False, most=most)).tokens

    with pytest.raises(ApiError) as refusal:
        asyncio.run(ask(most=11))
    assert refusal.value.code == "token_limit_exceeded"
    assert asyncio.run(ask(most=10)) == 10


def test_one_process_and_redis_decide_alike(url: str) -> None:
    key = alice(tokens_per_minute=100, requests_per_minute=6, max_searches=1)

    async def decisions(quotas: Quotas) -> list[Any]:
        told: list[Any] = []

        async def take(most: int, search: bool = False, least: int = 1) -> Any:
            try:
                reservation = await quotas.take(key, most, search=search, least=least)
            except ApiError as error:
                told.append((error.code, error.message))
                return None
            told.append(reservation.tokens)
            return reservation

        def settle(reservation: Any, spent: int) -> None:
            if reservation is not None:
                quotas.settle(reservation, spent)

        one, two = await take(40, True), await take(40)
        await take(10, True)  # one search runs
        await take(30)  # 80 of 100 are set aside
        settle(one, 15)
        settle(two, 0)
        await asyncio.sleep(0.2)  # Redis hears of it behind our back
        await take(200, least=86)  # more than a minute's worth, with a prompt of 85
        three = await take(200, least=85)  # what is left of it
        settle(three, 85)
        await asyncio.sleep(0.2)
        await take(1)
        for _ in range(4):
            settle(await take(0), 0)
        await quotas.close()
        return told

    async def both() -> None:
        local = await decisions(LocalQuotas())
        shared = await decisions(await open_quotas(url, 60))
        assert local == shared
        assert [one if isinstance(one, int) else one[0] for one in local[:7]] == [
            *(40, 40, "too_many_searches", "token_limit_exceeded", "token_limit_exceeded", 85, "token_limit_exceeded")
        ]
        assert local[-1][0] == "rate_limit_exceeded"

    asyncio.run(both())


def test_what_a_key_used_where_nothing_bounds_it_counts_where_its_limit_stands(url: str) -> None:
    def gina(**limits: int) -> Key:
        return key_from_secret("gina", SECRET, KeyLimits(**limits))

    async def use(quotas: Quotas, key: Key, spent: int, *, search: bool = False) -> None:
        quotas.settle(await quotas.take(key, spent, search=search), spent)
        await asyncio.sleep(0.1)  # Redis hears of it behind our back

    async def go() -> None:
        free, bounded = await open_quotas(url, 600), await open_quotas(url, 600)
        await use(free, gina(), 30)
        await use(free, gina(requests_per_minute=9), 25, search=True)
        with pytest.raises(ApiError) as refusal:
            await bounded.take(gina(tokens_per_minute=100), 50, search=False)
        assert refusal.value.code == "token_limit_exceeded"
        await use(bounded, gina(tokens_per_minute=100), 45)
        with pytest.raises(ApiError, match="3 requests a minute"):
            await bounded.take(gina(requests_per_minute=3), 0, search=False)
        await use(bounded, gina(max_searches=1), 0, search=True)  # none runs any more
        await free.close()
        await bounded.close()

    asyncio.run(go())


def test_a_key_without_limits_is_served_while_redis_is_away_and_leaves_no_list_that_grows(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = pytest.importorskip("redis.asyncio")

    async def go() -> None:
        with redis(tmp_path) as address:
            quotas, other = await open_quotas(address, 60), library.Redis.from_url(address)
            await other.zadd("ttc:{alice}:requests", {"old": time.time() - 61})
            await other.zadd("ttc:{alice}:spent", {"old:5": time.time() - 61})
            quotas.settle(await quotas.take(alice(), 5, search=False), 4)
            quotas.settle(await quotas.take(ANYONE, 5, search=False), 4)
            await asyncio.sleep(0.1)
            assert [await other.zcard(f"ttc:{{alice}}:{place}") for place in PLACES] == [1, 1, 0, 0]
            assert not await other.keys("*anyone*")
            await other.aclose()
        quotas.settle(await quotas.take(alice(), 5, search=False), 4)
        await quotas.close()

    asyncio.run(go())
    assert "what a key without limits used is not counted" in caplog.text


def test_what_a_key_used_before_it_had_a_limit_counts_for_the_limit_it_is_given() -> None:
    quotas = LocalQuotas(Clock())
    quotas.settle(asyncio.run(quotas.take(alice(), 80, search=False)), 80)
    assert refused(quotas, alice(tokens_per_minute=100), 21).code == "token_limit_exceeded"


def test_two_processes_and_forty_parallel_requests_never_pass_a_quota(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_from_secret("bob", SECRET, KeyLimits(tokens_per_minute=500))
    from redis.asyncio import Redis

    engines = [scripted({"hi": ["x" * 120]}, jitter=seed) for seed in (1, 2)]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(running(served(engine), keys=[key], quotas=RedisQuotas(Redis.from_url(url), 600)))
            for engine in engines
        ]
        replies: list[Any] = []

        def ask(i: int) -> None:
            body = chat(max_tokens=150, **({"ttc": {"strategy": "majority", "n": 3}} if i % 4 == 0 else {}))
            replies.append(servers[i % 2].ask(body, authorization=f"Bearer {SECRET}"))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spent = sum(one.json()["ttc"]["usage"]["tokens"] for one in replies if one.status_code == 200)
    assert {one.status_code for one in replies} == {200, 429}
    assert 0 < spent <= 500
    assert spent == sum(engine.counters().generated for engine in engines)


def test_a_redis_that_goes_away_refuses_keys_with_limits_and_no_others(tmp_path: pathlib.Path) -> None:
    async def go() -> None:
        with redis(tmp_path) as address:
            quotas = await open_quotas(address, 60)
            assert (await quotas.take(alice(tokens_per_minute=9), 5, search=False)).tokens == 5
        with pytest.raises(ApiError) as refusal:
            await quotas.take(alice(tokens_per_minute=9), 1, search=False)
        assert (refusal.value.status, refusal.value.code) == (503, "quotas_unavailable")
        assert (await quotas.take(alice(), 5, search=False)).tokens is None
        await quotas.close()

    asyncio.run(go())


def test_a_connection_that_redis_closed_while_nobody_asked_costs_no_refusal(url: str) -> None:
    key = key_from_secret("carol", SECRET, KeyLimits(tokens_per_minute=9))

    async def go() -> None:
        from redis.asyncio import Redis

        quotas, other = await open_quotas(url, 60), Redis.from_url(url)
        quotas.settle(await quotas.take(key, 5, search=False), 0)
        await other.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(0.05)
        assert (await quotas.take(key, 5, search=False)).tokens == 5
        await quotas.close()
        await other.aclose()

    asyncio.run(go())


async def in_time(quotas: Quotas, key: Key, most: int) -> Reservation:
    """The first reservation that is granted."""
    for _ in range(100):
        with contextlib.suppress(ApiError):
            return await quotas.take(key, most, search=True)
        await asyncio.sleep(0.05)
    return await quotas.take(key, most, search=True)


def test_what_a_request_set_aside_that_was_refused_since_redis_was_slow_comes_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_quotas, "WAIT_S", 0.2)
    key = alice(tokens_per_minute=9, max_searches=1)

    async def go(address: str) -> None:
        from redis.asyncio import Redis

        quotas, other = await open_quotas(address, 600), Redis.from_url(address)
        process = (await other.info("server"))["process_id"]
        quotas.settle(await quotas.take(key, 5, search=True), 0)  # the script is known there
        await asyncio.sleep(0.1)
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(ApiError, match="cannot be reached"):
                await quotas.take(key, 9, search=True)
        finally:
            os.kill(process, signal.SIGCONT)
        assert (await in_time(quotas, key, 9)).tokens == 9
        await quotas.close()
        await other.aclose()

    with redis(tmp_path) as address:
        asyncio.run(go(address))


def test_what_was_spent_while_redis_did_not_answer_is_booked_once_it_does(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_quotas, "WAIT_S", 0.2)
    key = alice(tokens_per_minute=9)

    async def go(address: str) -> None:
        from redis.asyncio import Redis

        quotas, other = await open_quotas(address, 600), Redis.from_url(address)
        reservation = await quotas.take(key, 9, search=False)
        await other.client_pause(500)
        quotas.settle(reservation, 4)
        await asyncio.sleep(0.6)
        assert (await in_time(quotas, key, 5)).tokens == 5
        assert await other.zcard("ttc:{alice}:spent") == 1
        await quotas.close()
        await other.aclose()

    with redis(tmp_path) as address:
        asyncio.run(go(address))


def test_a_server_that_ends_waits_for_a_redis_that_is_gone_no_longer_than_for_one_answer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_quotas, "WAIT_S", 0.2)

    async def go() -> None:
        with redis(tmp_path) as address:
            quotas = await open_quotas(address, 600)
            reservation = await quotas.take(alice(tokens_per_minute=9), 5, search=False)
        quotas.settle(reservation, 4)
        async with asyncio.timeout(2):
            await quotas.close()

    asyncio.run(go())
    assert "quotas were not settled" in caplog.text


def test_a_server_that_became_a_replica_is_left_for_what_the_address_leads_to_then(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_quotas, "WAIT_S", 0.2)
    key = key_from_secret("dora", SECRET, KeyLimits(tokens_per_minute=9))

    async def go() -> None:
        from redis.asyncio import Redis

        quotas = await open_quotas(url, 60)
        other: Any = Redis.from_url(url)
        await quotas.take(key, 5, search=False)
        before = {client["id"] for client in await other.client_list()}
        await other.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(ApiError, match="cannot be reached"):
                await quotas.take(key, 1, search=False)
            mine = await other.client_id()
            after = {client["id"] for client in await other.client_list()} - {str(mine)}
            assert not before & after
        finally:
            await other.execute_command("REPLICAOF", "NO", "ONE")
        assert (await quotas.take(key, 1, search=False)).tokens == 1
        await quotas.close()
        await other.aclose()

    asyncio.run(go())


def test_a_cluster_counts_and_is_out_of_reach_while_it_is_away(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("redis.asyncio")

    async def go() -> None:
        with redis(tmp_path, "--cluster-enabled", "yes") as address:
            other: Any = library.Redis.from_url(address)
            with pytest.raises(ConfigError, match=r"counts no quotas there: .*slots"):
                await open_quotas(address, 60)
            await other.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            async with asyncio.timeout(30):
                while "cluster_state:ok" not in str(await other.execute_command("CLUSTER", "INFO")):
                    await asyncio.sleep(0.02)
            quotas = await open_quotas(address, 60)
            assert (await quotas.take(alice(tokens_per_minute=9), 5, search=False)).tokens == 5
            with pytest.raises(ApiError, match="5 are reserved"):
                await quotas.take(alice(tokens_per_minute=9), 5, search=False)
            await other.aclose()
        with pytest.raises(ApiError, match="cannot be reached"):
            await quotas.take(alice(tokens_per_minute=9), 5, search=False)
        monkeypatch.setattr(shared_quotas, "WAIT_S", 0.1)
        await quotas.close()

    asyncio.run(go())


def test_what_redis_dated_before_its_clock_went_back_counts_for_a_minute(url: str) -> None:
    key = key_from_secret("erin", SECRET, KeyLimits(requests_per_minute=1))

    async def go() -> None:
        from redis.asyncio import Redis

        quotas, other = await open_quotas(url, 60), Redis.from_url(url)
        await other.zadd("ttc:{erin}:requests", {"a": time.time() + 3600})
        with pytest.raises(ApiError, match="1 request a minute") as refusal:
            await quotas.take(key, 0, search=False)
        assert refusal.value.retry_after_s is not None
        assert refusal.value.retry_after_s <= 60
        await quotas.close()
        await other.aclose()

    asyncio.run(go())


def test_a_redis_that_cannot_count_stops_the_start_with_its_reason(tmp_path: pathlib.Path) -> None:
    def told(address: str) -> str:
        with pytest.raises(ConfigError) as refusal:
            asyncio.run(open_quotas(address, 60))
        return str(refusal.value)

    with redis(tmp_path, "--requirepass", "sesame", "--replicaof", "127.0.0.1 1") as address:
        assert "another user or password" in told(address)
        assert "another user or password" in told(address.replace("//", "//:wrong@"))
        assert "read only replica" in told(address.replace("//", "//:sesame@"))
        unescaped = told(address.replace("//", "//:se/same@"))
        assert "%2F" in unescaped
        assert "same" not in unescaped


def test_tokens_of_a_quota_without_end_are_written_out(url: str) -> None:
    key = key_from_secret("fred", SECRET, KeyLimits(tokens_per_minute=10**15))

    async def go() -> None:
        quotas = await open_quotas(url, 60)
        for most in (10**14, 5):
            assert (await quotas.take(key, most, search=False)).tokens == most
        await quotas.close()

    asyncio.run(go())


def test_without_an_address_quotas_are_the_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV, raising=False)
    assert isinstance(asyncio.run(find_quotas(60)), LocalQuotas)


def test_an_address_where_nothing_answers_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis")
    monkeypatch.setenv(ENV, "redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError, match=ENV):
        asyncio.run(find_quotas(60))


def test_shared_quotas_need_requests_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, "redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError, match=r"limits\.request_timeout_s must be finite"):
        asyncio.run(find_quotas(math.inf))


def test_a_limit_of_one_is_told_in_the_singular() -> None:
    key = alice(requests_per_minute=1, max_searches=1)
    assert str(too_many_requests(key, 1.0)) == "the key alice may send 1 request a minute"
    assert str(too_many_searches(key)) == "the key alice may run 1 search at once"
    assert str(too_many_searches(alice(max_searches=2))) == "the key alice may run 2 searches at once"


class NotedQuotas(LocalQuotas):
    """Notes what was settled."""

    def __init__(self) -> None:
        super().__init__()
        self.booked: list[int] = []

    def settle(self, reservation: Reservation, spent: int, price: int = 0) -> None:
        super().settle(reservation, spent, price)
        self.booked.append(spent)


MANY = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=1_000_000))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"n": 3},
        {"ttc": {"strategy": "majority", "n": 3}},
        {"ttc": {"strategy": "best_of_n", "n": 3, "scorer": "constant"}},
        {"ttc": {"strategy": "refine"}},
    ],
)
def test_a_keys_minute_counts_the_tokens_that_the_usage_of_a_reply_tells(fields: dict[str, Any]) -> None:
    model, quotas = served(ScriptedEngine(think, thinking=True), scorers={"constant": constant()}), NotedQuotas()
    with running(model, keys=[MANY], quotas=quotas) as server:
        usage = usage_of(server.ask(chat(**fields), authorization=f"Bearer {SECRET}"))
        assert until(lambda: server.service.idle)
    assert quotas.booked == [usage["total_tokens"]] and usage["prompt_tokens"] > 0


def test_the_words_that_end_a_thought_count_and_the_token_that_they_replace() -> None:
    quotas = NotedQuotas()
    with running(served(ScriptedEngine(think, thinking=True)), keys=[MANY], quotas=quotas) as server:
        body = chat(thinking_budget=4, max_tokens=200)
        reply = server.ask(body, authorization=f"Bearer {SECRET}").json()
        assert until(lambda: server.service.idle)
    assert reply["ttc"]["thinking"]["forced_end"] and reply["ttc"]["usage"]["overrun"] == 1
    assert quotas.booked == [reply["usage"]["total_tokens"] + 1]


@pytest.mark.parametrize(
    "fields", [{}, {"stream": True, "stream_options": {"include_usage": True}}, {"n": 3}, {"tools": TOOLS}]
)
def test_a_keys_minute_counts_what_an_upstream_server_counts(fields: dict[str, Any]) -> None:
    quotas = NotedQuotas()
    with upstream(lambda number, body: {"content": "7"}) as behind:
        servers = Upstreams({behind.url: Client(behind.url, Access("", 5, 30))}, Features("theirs", usage=True))
        model = dataclasses.replace(served(scripted()), forward=servers)
        if "tools" not in fields:
            model = dataclasses.replace(model, engine=WithoutIds(replies({})))
        with running(model, keys=[MANY], quotas=quotas) as server:
            usage = usage_of(server.ask(chat(**fields), authorization=f"Bearer {SECRET}"))
            assert until(lambda: server.service.idle)
    assert quotas.booked == [usage["total_tokens"]] == [16 * len(behind.asked)]


def test_who_leaves_an_upstream_server_before_it_has_counted_has_spent_the_prompt() -> None:
    quotas = NotedQuotas()
    with upstream(lambda number, body: {"content": "7" * 500}, pause_s=0.05) as behind:
        servers = Upstreams({behind.url: Client(behind.url, Access("", 5, 30))}, Features("theirs", usage=True))
        model = dataclasses.replace(served(WithoutIds(replies({}))), forward=servers)
        with running(model, keys=[MANY], quotas=quotas) as server:
            body, place = chat("word " * 400, stream=True), "/v1/chat/completions"
            with (
                server.client(headers={"authorization": f"Bearer {SECRET}"}) as client,
                client.stream("POST", place, json=body) as response,
            ):
                next(line for line in response.iter_lines() if '"content":"7"' in line)
            assert until(lambda: server.service.idle, 5)
    assert len(quotas.booked) == 1 and 500 <= quotas.booked[0] < 700


@pytest.mark.parametrize(("asked", "spent"), [(0, 0), (1, 10), (3, 30), (90, 400)])
def test_of_a_strategy_that_asks_an_upstream_server_in_waves_only_what_it_asked_is_spent(
    asked: int, spent: int
) -> None:
    search = SearchRequest(strategy="adaptive", params={"n": 40})
    request = ServeRequest("m", (Message("user", "x" * 40),), search=search)
    with running(served(WithoutIds(replies({})))) as server:
        plan = asyncio.run_coroutine_threadsafe(server.service.plan(request, MANY), server.loop).result(10)
    plan = dataclasses.replace(plan, prompts=(Prompt("x" * 40, None),))
    assert plan.num_prompt == 400, "ten tokens for each draw"
    assert _Attempt(plan, Usage(attempts=asked)).num_tokens == spent


def usage_of(response: httpx2.Response) -> Any:
    """The usage of a reply, whole or streamed."""
    assert response.status_code == 200, response.text
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    return (chunks_of(response.text)[-1] if is_stream else response.json())["usage"]


def test_a_request_whose_prompt_takes_a_whole_minute_is_refused_and_one_that_is_not_read_costs_nothing() -> None:
    key, quotas = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=100)), NotedQuotas()

    class Down(ScriptedEngine):
        async def generate(self, *_: Any) -> Any:
            raise EngineError("is down")

    with running(served(Down(think)), keys=[key], quotas=quotas) as server:
        statuses = []
        for num in (40, 100):
            response = server.ask(chat("x" * num), authorization=f"Bearer {SECRET}")
            statuses.append((response.status_code, response.json()["error"]["code"]))
    assert statuses == [(503, "engine_unavailable"), (400, "token_limit_exceeded")] and quotas.booked == [0]


class Reads:
    """A scorer that reads a prompt once and then every draw, and says so in advance."""

    def __init__(self) -> None:
        self._roots: set[str] = set()

    def price(self, prompt: Prompt) -> Price:
        known = prompt.rendered_len if prompt.problem_id in self._roots else 0
        return Price(fixed=len(prompt.token_ids or ()) - known, per_token=1)

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        for prompt in prompts:
            on_usage(Usage(scored=self.price(prompt).fixed))
            self._roots.add(prompt.problem_id)
        return [Score(0.5) for _ in prompts]

    def release(self, problem_id: str) -> None:
        self._roots.discard(problem_id)


@pytest.mark.parametrize("strategy", ["best_of_n", "tree"])
@pytest.mark.parametrize("limits", [{"tokens_per_minute": 10_000}, {"max_budget": 1.0}])
def test_a_search_over_a_long_prompt_is_scored_as_well_where_its_key_has_limits(
    strategy: str, limits: dict[str, Any]
) -> None:
    text, keys = (
        "x" * 1200,
        [key_from_secret("bob", "a-secret-of-bob"), key_from_secret("alice", SECRET, KeyLimits(**limits))],
    )
    model = served(
        scripted({text: [f"step {i}\n\nis {i}" for i in range(8)]}),
        scorers={"reads": Reads()},
        price_in=1.0,
        price_out=2.0,
    )
    body = chat(text, max_tokens=40, seed=1, ttc={"strategy": strategy, "n": 4})
    with running(model, keys=keys) as server:
        free, bounded = (
            server.ask(body, authorization=f"Bearer {name}").json() for name in ("a-secret-of-bob", SECRET)
        )
    assert bounded["ttc"]["stop_cause"] == free["ttc"]["stop_cause"] == "done"
    assert bounded["ttc"]["scores"] == free["ttc"]["scores"] == [0.5] * 4
    assert bounded["usage"]["total_tokens"] == free["usage"]["total_tokens"]


def says_much(prompt: Prompt, path: Path, key: int) -> str:
    """Words of any length, with a call of a tool where the prompt shows one."""
    if "calculator" in prompt.text and key % 3 == 0:
        call = {"name": "calculator", "arguments": {"expression": f"{key}*3333333333"}}
        return f"I ask. <tool_call>{json.dumps(call)}</tool_call>"
    return "1+1=3, and so on, " + "x" * (key % 60) + f" so it is \\boxed{{{key % 9}}}"


ASKING: dict[str, dict[str, Any]] = {
    "aggregate": {"n": 4, "k": 2, "rounds": 2},
    "genselect": {"n": 4},
    "knockout": {"n": 4},
    "refine": {"rounds": 4, "feedback": "self"},
    "tools": {"n": 3},
    "no_think_then_think": {},
}


@pytest.mark.parametrize("strategy", ASKING)
def test_prompts_of_a_strategys_own_are_paid_from_what_its_key_has_reserved(strategy: str) -> None:
    body = chat(max_tokens=90, seed=3, ttc={"strategy": strategy, **ASKING[strategy]})
    limits = (320, 500, 1000, 20_000)
    keys = [key_from_secret(str(limit), f"{SECRET}-{limit}", KeyLimits(tokens_per_minute=limit)) for limit in limits]
    keys.append(key_from_secret("free", SECRET))
    with running(served(ScriptedEngine(says_much)), keys=keys) as server:
        free = server.ask(body, authorization=f"Bearer {SECRET}").json()
        replies_ = [server.ask(body, authorization=f"Bearer {SECRET}-{limit}").json() for limit in limits]
    spent = [reply["usage"]["total_tokens"] for reply in replies_]
    assert all(used <= limit for used, limit in zip(spent, limits, strict=True)), spent
    assert free["usage"]["total_tokens"] > 320, "so it is trimmed somewhere"
    assert spent[-1] == free["usage"]["total_tokens"] and replies_[-1]["ttc"]["stop_cause"] == free["ttc"]["stop_cause"]


def test_revisions_that_a_scorer_asks_for_are_paid_from_what_a_key_has_reserved() -> None:
    body = chat(max_tokens=90, seed=3, ttc={"strategy": "refine", "rounds": 4, "feedback": "scorer", "scorer": "reads"})
    body["ttc"]["threshold"] = 0.9
    for limit in (150, 400, 1000):
        key = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=limit))
        with running(served(ScriptedEngine(says_much), scorers={"reads": Reads()}), keys=[key]) as server:
            reply = server.ask(body, authorization=f"Bearer {SECRET}").json()
        assert 0 < reply["usage"]["total_tokens"] <= limit


@pytest.mark.parametrize(("limit", "spent", "status"), [(150, 0, 400), (400, 280, 429)])
def test_a_key_that_cannot_pay_for_a_strategys_prompt_hears_what_it_has_left(
    limit: int, spent: int, status: int
) -> None:
    key = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=limit))
    with running(served(ScriptedEngine(lambda prompt, path, key: "x" * 500)), keys=[key]) as server:
        if spent:
            server.ask(chat(max_tokens=spent - 20), authorization=f"Bearer {SECRET}")
        reply = server.ask(chat(max_tokens=300, ttc={"strategy": "tools"}), authorization=f"Bearer {SECRET}")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, "token_limit_exceeded")
    assert f"the {limit - spent} tokens that the key alice has left do not pay for one draw" in error["message"]
    assert reply.headers.get("retry-after") == (None if status == 400 else "60")


def rambles(prompt: Prompt, path: Path, key: int) -> str:
    """Thoughts that end, that do not, and that begin again in the answer; with a call where the prompt shows a tool."""
    words = (
        "think" * 40,
        f"I</think> then <think>again {'y' * (key % 90)}",
        f"so {'x' * (key % 60)}</think> \\boxed{{{key % 9}}}",
    )
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "2**90"}}</tool_call>'
    return call if "calculator" in prompt.text and key % 3 == 0 else words[key % 3]


@pytest.mark.parametrize("wish", [{}, {"thinking_budget": 60, "min_thinking_tokens": 50}, {"n": 3, "stream": True}])
@pytest.mark.parametrize("strategy", ["direct", "majority", "adaptive", "refine", "tools", "tree", "best_of_n"])
def test_what_ends_a_thought_is_part_of_what_a_key_has_reserved(strategy: str, wish: dict[str, Any]) -> None:
    more = {} if strategy == "direct" else {"ttc": {"strategy": strategy, **ASKING.get(strategy, {"n": 4})}}
    body = chat(max_tokens=90, seed=3, **more, **wish) | {"stream_options": {"include_usage": True}}
    if "stream" not in wish:
        del body["stream_options"]
    limits = (60, 150, 151, 220, 450, 20_000)
    keys = [key_from_secret(str(limit), f"{SECRET}-{limit}", KeyLimits(tokens_per_minute=limit)) for limit in limits]
    model = served(ScriptedEngine(rambles, thinking=True), scorers={"reads": Reads()})
    with running(model, keys=keys) as server:
        replies_ = {limit: server.ask(body, authorization=f"Bearer {SECRET}-{limit}") for limit in limits}
    spent = {limit: usage_of(reply)["total_tokens"] for limit, reply in replies_.items() if reply.status_code == 200}
    refusals = [reply.json()["error"]["code"] for reply in replies_.values() if reply.status_code != 200]
    assert all(used <= limit for limit, used in spent.items()), spent
    assert set(refusals) <= {"token_limit_exceeded", "invalid_value", "unsupported_parameter"}


def test_choices_of_a_prompt_pay_for_it_once_and_are_refused_together_where_one_token_for_each_does_not_fit() -> None:
    length = len("user: hi\nassistant: ")
    for num_choices, status in ((3, 400), (2, 200)):
        engine, key = ScriptedEngine(think), key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=length + 2))
        with running(served(engine), keys=[key]) as server:
            reply = server.ask(chat(max_tokens=9, n=num_choices), authorization=f"Bearer {SECRET}")
        assert reply.status_code == status, reply.text
        assert engine.counters().calls == (2 if status == 200 else 0)
    assert usage_of(reply)["total_tokens"] == length + 2


def test_a_path_of_a_tree_whose_hand_over_fills_its_last_token_is_scored_once() -> None:
    class Counts(Reads):
        num_scored = 0

        async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
            self.num_scored += len(prompts)
            return await super().score(prompts, on_usage)

    scorer, engine = Counts(), ScriptedEngine(lambda prompt, path, key: "x" * 200, thinking=True)
    with running(served(engine, scorers={"counts": scorer})) as server:
        reply = server.ask(chat(max_tokens=90, thinking_budget=80, ttc={"strategy": "tree", "n": 4})).json()
    assert reply["usage"]["completion_tokens"] == 4 * 90
    assert scorer.num_scored == 4


def test_results_of_tools_are_reserved_so_that_a_key_with_enough_tokens_hears_what_one_without_limits_does() -> None:
    body = chat(max_tokens=90, seed=3, ttc={"strategy": "tools", "n": 3})
    keys = [
        key_from_secret("rich", SECRET, KeyLimits(tokens_per_minute=50_000)),
        key_from_secret("free", f"{SECRET}-2"),
    ]
    with running(served(ScriptedEngine(rambles, thinking=True)), keys=keys) as server:
        rich, free = (server.ask(body, authorization=f"Bearer {secret}").json() for secret in (SECRET, f"{SECRET}-2"))
    assert rich["ttc"]["stop_cause"] == free["ttc"]["stop_cause"] == "done"
    assert rich["usage"]["total_tokens"] == free["usage"]["total_tokens"]
