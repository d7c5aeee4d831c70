"""Budgets of keys in dollars: what requests cost by the prices of their models, kept over restarts and processes."""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from serve.commands.serve import register, run
from serve.http.process import take_over_keys
from serve.operator.config import load_config
from serve.operator.keys import NANO, Key, KeyLimits, key_from_secret
from serve.requests.errors import ApiError
from serve.running.admission import Admission
from serve.running.catalogue import Catalogue
from serve.running.quotas import Expense, LocalQuotas, Quotas, Spending
from serve.running.shared_quotas import open_quotas
from tests.serve.running import Running, chat, running, scripted, served, spec
from tests.serve.slow import until
from tests.serve.test_quotas import SECRET, Clock, url
from tests.serve.thinker import think
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, EngineError

__all__ = ["url"]
PRICES: Any = {"price_in": 2.0, "price_out": 10.0}
FILE = """
[models.m]
engine = "scripted"
{prices}
[keys.alice]
env = "ALICE_KEY"
{limits}
"""


def poor(**limits: Any) -> Key:
    return key_from_secret("alice", SECRET, KeyLimits(**limits))


def ask(server: Running, **fields: Any) -> Any:
    return server.ask(chat(**fields), authorization=f"Bearer {SECRET}")


def price(reply: Any) -> int:
    """What a reply cost, in billionths of a dollar, by its own usage."""
    usage = reply.json()["usage"]
    return 2000 * usage["prompt_tokens"] + 10000 * usage["completion_tokens"]


async def refusal(quotas: Quotas, key: Key, cost: Expense) -> ApiError:
    with pytest.raises(ApiError) as error:
        await quotas.take(key, 0, search=False, cost=cost)
    return error.value


@pytest.mark.parametrize(
    ("prices", "limits", "words"),
    [
        ("", "max_budget = 5", r"keys\.alice\.max_budget: \[models\.m\] has no prices: write price_in and price_out"),
        ("price_in = 1", "", r"models\.m has one of price_in and price_out"),
        ("price_in = -1\nprice_out = 1", "", r"price_in and price_out must be dollars >= 0"),
        ("price_in = 1\nprice_out = 1", "max_budget = 0", r"max_budget must be dollars > 0"),
        ("price_in = 1\nprice_out = 1", "max_budget = inf", r"max_budget must be dollars > 0"),
        ("", 'budget_duration = "1d"', r"budget_duration needs max_budget"),
        ("price_in = 1\nprice_out = 1", 'max_budget = 5\nbudget_duration = "monthly"', r"s, m, h or d behind it"),
        ("price_in = 1\nprice_out = 1", 'max_budget = 5\nbudget_duration = "0d"', r"s, m, h or d behind it"),
    ],
)
def test_a_budget_that_could_not_be_counted_stops_the_start(
    prices: str, limits: str, words: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", SECRET)
    (tmp_path / "serve.toml").write_text(FILE.format(prices=prices, limits=limits))
    with pytest.raises(ConfigError, match=words):
        load_config(tmp_path / "serve.toml")


def test_a_file_tells_prices_budgets_and_where_the_spending_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", SECRET)
    text = FILE.format(prices="price_in = 0.15\nprice_out = 0.6", limits='max_budget = 5\nbudget_duration = "30d"')
    (tmp_path / "serve.toml").write_text(text)
    config = load_config(tmp_path / "serve.toml")
    (key,), (spec,) = config.keys, config.models
    assert (key.limits.budget, key.limits.budget_s) == (5 * NANO, 30 * 24 * 3600)
    assert spec.price(1000, 100) == 1000 * 150 + 100 * 600
    assert config.has_budgets and config.spend_file == tmp_path / "serve.spend"
    (tmp_path / "serve.toml").write_text(f'spend_file = "{tmp_path}/money"\n{text}')
    assert load_config(tmp_path / "serve.toml").spend_file == tmp_path / "money"


def test_what_was_spent_of_a_budget_outlives_the_process_until_its_time_is_over(tmp_path: pathlib.Path) -> None:
    key, wall = poor(max_budget=1e-6, budget_duration="1h"), Clock()

    def started() -> LocalQuotas:
        return LocalQuotas(spending=Spending(tmp_path / "spend"), wall=wall)

    async def go() -> None:
        quotas = started()
        quotas.settle(await quotas.take(key, 0, search=False, cost=Expense(900, 1)), 5, 700)
        with pytest.raises(ConfigError, match=r"another server keeps what its keys spend in .*spend: give each"):
            started()
        await quotas.close()
        quotas = started()
        error = await refusal(quotas, key, Expense(400, 301))
        assert (error.status, error.code, error.type) == (429, "insufficient_quota", "insufficient_quota")
        assert "has spent $0.0000007 of its budget of $0.000001 every 1h" in error.message
        assert error.headers()["x-should-retry"] == "false" and error.headers()["retry-after"] == "3600"
        assert error.headers()["x-ttc-budget-remaining"] == "0.0000003"
        assert error.headers()["x-ttc-budget-reset"] == "3600s"
        quotas.settle(await quotas.take(key, 0, search=False, cost=Expense(400, 300)), 5, 300)
        wall.now += 3599
        assert (await refusal(quotas, key, Expense(1, 1))).retry_after_s == 1
        wall.now += 1
        assert (await quotas.take(key, 0, search=False, cost=Expense(1000, 1))).money == 1000
        await quotas.close()

    asyncio.run(go())


def test_a_file_that_another_server_uses_stops_the_start_before_a_model_is_loaded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", SECRET)
    (tmp_path / "serve.toml").write_text(FILE.format(prices="price_in = 1\nprice_out = 1", limits="max_budget = 5"))
    parser, loads = argparse.ArgumentParser(), []
    register(parser.add_subparsers())
    monkeypatch.setattr(Catalogue, "load", loads.append)
    other = Spending(tmp_path / "serve.spend")
    with pytest.raises(ConfigError, match="another server keeps what its keys spend"):
        run(parser.parse_args(["serve", "--config", str(tmp_path / "serve.toml"), "--port", "0"]))
    assert not loads
    other.close()


def test_a_file_that_holds_something_else_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    (tmp_path / "spend").write_text("my notes, which are longer than the header of a database " * 20)
    with pytest.raises(ConfigError, match="file is not a database"):
        Spending(tmp_path / "spend")
    with pytest.raises(ConfigError, match="unable to open"):
        Spending(tmp_path / "nowhere" / "spend")


def test_a_process_that_is_killed_loses_nothing_of_what_was_booked(tmp_path: pathlib.Path) -> None:
    code = """
import os, pathlib, sys
from serve.running.quotas import Spending
rows = Spending(pathlib.Path(sys.argv[1]))
for number in range(50):
    rows.write("alice", number, 1.0)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "spend")], check=False)
    assert Spending(tmp_path / "spend").read() == {"alice": (49, 1.0)}


def test_one_process_and_redis_count_money_alike(url: str) -> None:
    key = key_from_secret("rita", SECRET, KeyLimits(max_budget=1e-6, budget_duration="1s", requests_per_minute=9))

    async def decisions(quotas: Quotas) -> Sequence[Any]:
        log: list[Any] = []

        async def take(most: int, least: int = 1) -> Any:
            try:
                reservation = await quotas.take(key, 0, search=False, cost=Expense(most, least))
            except ApiError as error:
                log.append((error.code, error.message, error.more.get("x-ttc-budget-remaining")))
                return None
            assert reservation.standing is not None
            headers = reservation.standing.headers()
            log.append(
                (reservation.money, headers["x-ttc-budget-remaining"], headers["x-ratelimit-remaining-requests"])
            )
            return reservation

        one, two = await take(400), await take(500)
        await take(200)  # 900 are reserved
        quotas.settle(one, 9, 100)
        quotas.settle(two, 9, 450)
        await asyncio.sleep(0.1)  # Redis hears of it behind our back
        three = await take(600, 450)  # what is left
        quotas.settle(three, 9, 460)  # more than that, as where an upstream server counts otherwise
        await asyncio.sleep(0.1)
        await take(1)
        await asyncio.sleep(1.0)
        quotas.settle(await take(1000), 9, 0)
        await quotas.close()
        return log

    async def both() -> None:
        local = await decisions(LocalQuotas())
        assert local == await decisions(await open_quotas(url, 60))
        assert local[0] == (400, "0.000001", "8")
        assert [row[0] for row in local[1:]] == [500, "budget_reserved", 450, "insufficient_quota", 1000]

    asyncio.run(both())


def test_a_budget_that_was_dated_before_the_clock_went_back_is_renewed_in_its_time(url: str) -> None:
    key = key_from_secret("tina", SECRET, KeyLimits(max_budget=1e-6, budget_duration="1h"))

    async def go() -> None:
        from redis.asyncio import Redis

        other, wall = Redis.from_url(url), Clock()
        await other.hset("ttc:{tina}:budget", mapping={"since": time.time() + 1e6, "money": 1000})
        local = LocalQuotas(wall=wall)
        local.settle(await local.take(key, 0, search=False, cost=Expense(1000, 1)), 1, 1000)
        wall.now -= 50
        for quotas in (local, await open_quotas(url, 60)):
            wait_s = (await refusal(quotas, key, Expense(1, 1))).retry_after_s
            assert wait_s is not None and 3599 < wait_s <= 3600
            await quotas.close()
        await other.aclose()

    asyncio.run(go())


def test_what_a_request_cost_is_booked_once_in_redis_although_its_script_runs_twice(url: str) -> None:
    key = key_from_secret("sven", SECRET, KeyLimits(max_budget=1e-6))

    async def go() -> None:
        quotas = await open_quotas(url, 60)
        reservation = await quotas.take(key, 0, search=False, cost=Expense(500, 1))
        quotas.settle(reservation, 1, 300)
        quotas.settle(reservation, 1, 300)
        await asyncio.sleep(0.1)
        assert (await quotas.take(key, 0, search=False, cost=Expense(700, 1))).money == 700
        await quotas.close()
        again = await open_quotas(url, 60)  # as after a restart
        assert (await refusal(again, key, Expense(701, 701))).code == "insufficient_quota"
        await again.close()

    asyncio.run(go())


def test_a_key_pays_for_what_the_usage_of_its_replies_says_and_is_then_refused() -> None:
    key = poor(max_budget=0.001, requests_per_minute=100, tokens_per_minute=10_000)
    with running(served(scripted({"hi": ["x" * 20]}), **PRICES), keys=[key]) as server:
        first = ask(server, max_tokens=30)
        cost = price(first)
        assert first.headers["x-ratelimit-limit-requests"] == "100"
        assert first.headers["x-ratelimit-remaining-requests"] == "99"
        assert first.headers["x-ratelimit-reset-requests"] == "60s"
        most = first.json()["usage"]["prompt_tokens"] + 30
        assert first.headers["x-ratelimit-remaining-tokens"] == str(10_000 - most)
        assert first.headers["x-ttc-budget-limit"] == "0.001"
        second = ask(server, max_tokens=30, ttc={"strategy": "majority", "n": 3})
        assert second.status_code == 200 and price(second) > 2 * cost
        while (reply := ask(server, max_tokens=30)).status_code == 200:
            cost += price(reply)
        cost += price(second)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["type"]) == (429, "insufficient_quota", "insufficient_quota")
        assert 0.8e6 < cost <= 1e6
        with server.client(headers={"authorization": f"Bearer {SECRET}"}) as client:
            lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("ttc_key_dollars")]
    assert sum(float(line.split()[-1]) for line in lines) == pytest.approx(cost / NANO)


@pytest.mark.parametrize("fields", [{"max_tokens": 4000}, {}])
def test_the_last_request_of_a_budget_draws_as_many_tokens_as_it_pays_for_and_says_so(fields: dict[str, Any]) -> None:
    with running(served(scripted({"hi": ["x" * 400]}), **PRICES), keys=[poor(max_budget=0.001)]) as server:
        reply = ask(server, **fields)
    usage, number = reply.json()["usage"], fields.get("max_tokens")
    assert reply.status_code == 200 and price(reply) <= 1e6
    assert 60 < usage["completion_tokens"] < 100
    assert reply.json()["ttc"]["adjusted"]["max_tokens"] == {"asked": number, "used": usage["completion_tokens"]}
    assert reply.json()["choices"][0]["finish_reason"] == "length"


def test_thirty_requests_at_once_never_pass_a_budget() -> None:
    replies: list[Any] = []
    with running(served(scripted({"hi": ["x" * 50]}, jitter=1), **PRICES), keys=[poor(max_budget=0.003)]) as server:
        threads = [threading.Thread(target=lambda: replies.append(ask(server, max_tokens=60))) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {reply.status_code for reply in replies} == {200, 429}
    assert 0 < sum(price(reply) for reply in replies if reply.status_code == 200) <= 3e6


def test_a_fallback_costs_its_own_price() -> None:
    class Down(ScriptedEngine):
        async def generate(self, *_: Any) -> Any:
            raise EngineError("is down")

    broken = served(Down(think), fallback="cheap", **PRICES)
    cheap = served(scripted({"hi": ["x" * 20]}), "cheap", price_in=0.0, price_out=1.0)
    with running(broken, cheap, keys=[poor(max_budget=0.01)]) as server:
        reply = ask(server, max_tokens=30)
        assert reply.json()["ttc"]["fallback"]["from"] == "m"
        assert until(lambda: server.service.idle)
        left = ask(server, max_tokens=30).headers["x-ttc-budget-remaining"]
    usage = reply.json()["usage"]
    assert float(left) * NANO == pytest.approx(0.01 * NANO - 1000 * usage["completion_tokens"])


def test_keys_that_are_read_again_need_prices_and_a_place_where_their_spending_is_kept(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(served(scripted()), keys=[poor()]) as server:
        take_over_keys(server.service, lambda: (poor(max_budget=1.0),))
        assert "has no prices" in caplog.records[-1].error
        assert server.service.keys.keys[0].limits.max_budget is None
    with running(served(scripted(), **PRICES), keys=[poor()]) as server:
        take_over_keys(server.service, lambda: (poor(max_budget=1.0),))
        assert "the first budget needs a new start" in caplog.text
    quotas = LocalQuotas(spending=Spending(tmp_path / "spend"))
    with running(served(scripted(), **PRICES), keys=[poor(max_budget=1.0)], quotas=quotas) as server:
        take_over_keys(server.service, lambda: (poor(max_budget=2.0),))
        assert server.service.keys.keys[0].limits.max_budget == 2.0


def test_a_key_without_limits_gets_no_headers_about_them() -> None:
    with running(served(scripted()), keys=[poor()]) as server:
        assert not [name for name in ask(server).headers if "ratelimit" in name or "budget" in name]


def test_a_row_is_written_in_less_time_than_a_request_takes(tmp_path: pathlib.Path) -> None:
    rows, begun = Spending(tmp_path / "spend"), time.monotonic()
    for number in range(200):
        rows.write("alice", number, 1.0)
    assert time.monotonic() - begun < 1


def test_a_budget_never_pays_for_a_part_of_a_token() -> None:
    prices = spec(price_in=3.0, price_out=3.0)
    assert [prices.tokens_for(money, 1) for money in (2_999, 5_999, 6_000, 8_999)] == [1, 1, 2, 2]
    assert spec(price_in=0.15, price_out=0.6).tokens_for(150 * 7 + 600 * 3, 7) == 10


def test_tokens_that_were_not_kept_cost_no_more_than_is_reserved() -> None:
    async def book(charges: Sequence[tuple[int, int]]) -> int:
        quotas = LocalQuotas(Clock())
        admission, key = Admission(10, quotas), poor(max_budget=1000 / NANO)
        ticket = await admission.admit(key, 1, search=False, most=1, cost=Expense(100, 1))
        for price, overrun in charges:
            ticket.charge(0, 0, price, overrun)
        ticket.leave()
        standing = (await quotas.take(key, 1, search=False)).standing
        return -1 if standing is None else standing.money

    assert asyncio.run(book([(40, 0), (20, 90)])) == 100
    assert asyncio.run(book([(40, 10)])) == 50
