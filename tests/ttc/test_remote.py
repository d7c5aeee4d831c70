"""Retries and balancing: what is tried again, how often, where, and what is given up."""

from __future__ import annotations

import asyncio
import email.utils
import time

import pytest

from ttc.engines.shared.balance import MAX_REASONS, Balancer, Retry, Transient, is_transient, retry_after_s, retrying
from ttc.errors import ConfigError, EngineError, EngineTimeout

QUICK = Retry(max_attempts=4, max_total_s=5.0, base_s=0.001)


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, retry_after_s: float | None = None) -> None:
        self.left, self.calls, self.retry_after_s = failures, 0, retry_after_s

    async def __call__(self, url: str = "") -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise Transient(EngineTimeout("too slow"), retry_after_s=self.retry_after_s)
        return f"fine {url}".strip()


def test_a_transient_failure_is_tried_again_until_it_passes() -> None:
    flaky = Flaky(3)
    assert asyncio.run(retrying(flaky, QUICK)) == "fine"
    assert flaky.calls == 4


def test_the_last_failure_is_raised_with_its_own_type_and_the_number_of_attempts() -> None:
    flaky = Flaky(9)
    with pytest.raises(EngineTimeout, match=r"too slow \(gave up after 4 attempts\)"):
        asyncio.run(retrying(flaky, QUICK))
    assert flaky.calls == 4


def test_a_failure_that_cannot_pass_is_not_tried_again() -> None:
    calls = []

    async def refuse() -> None:
        calls.append(1)
        raise EngineError("bad request")

    with pytest.raises(EngineError, match=r"^bad request$"):
        asyncio.run(retrying(refuse, QUICK))
    assert len(calls) == 1


def test_a_server_that_asks_for_a_pause_gets_it_but_not_beyond_the_cap() -> None:
    policy = Retry(base_s=0.0, max_wish_s=2.0)
    assert policy.pause_s(1, 1.5) == 1.5
    assert policy.pause_s(1, 3600.0) == 2.0
    started = time.monotonic()
    asyncio.run(retrying(Flaky(1, retry_after_s=0.05), QUICK))
    assert time.monotonic() - started >= 0.05


def test_no_attempt_starts_after_the_total_is_spent() -> None:
    flaky = Flaky(9, retry_after_s=1.0)
    started = time.monotonic()
    with pytest.raises(EngineTimeout, match="1 attempt"):
        asyncio.run(retrying(flaky, Retry(max_total_s=0.5)))
    assert flaky.calls == 1 and time.monotonic() - started < 0.4


def test_pauses_grow_are_capped_and_are_fully_jittered() -> None:
    policy = Retry(base_s=1.0, max_pause_s=4.0)
    for failures, most in ((1, 1.0), (2, 2.0), (3, 4.0), (9, 4.0)):
        pauses = [policy.pause_s(failures, None) for _ in range(400)]
        assert 0 <= min(pauses) < 0.1 * most and 0.9 * most < max(pauses) <= most


def test_bad_limits_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="max_attempts"):
        Retry(max_attempts=0)
    with pytest.raises(ConfigError, match="base_s"):
        Retry(base_s=-1.0)


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (408, {}, True),
        (409, {}, True),
        (429, {}, True),
        (500, {}, True),
        (503, {}, True),
        (400, {}, False),
        (401, {}, False),
        (404, {}, False),
        (422, {}, False),
        (501, {}, False),
        (503, {"x-should-retry": "false"}, False),
        (400, {"x-should-retry": "true"}, True),
    ],
)
def test_which_statuses_may_pass(status: int, headers: dict[str, str], expected: bool) -> None:
    assert is_transient(status, headers) is expected


def test_a_wished_pause_is_read_from_milliseconds_seconds_and_dates() -> None:
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after_s({"retry-after": "3"}) == 3.0
    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < (retry_after_s({"retry-after": soon}) or 0) <= 30
    assert retry_after_s({"retry-after": "-5"}) == 0.0
    assert retry_after_s({"retry-after": "soon"}) is None and retry_after_s({}) is None


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_new_keys_go_to_the_server_with_the_fewest_outstanding_requests() -> None:
    balancer = Balancer(["a", "b"])
    with balancer.lease("p1") as one, balancer.lease("p1") as again, balancer.lease("p2") as two:
        assert (one, again, two) == ("a", "a", "b")
        with balancer.lease("p3") as three:
            assert three == "b"
    assert [server.outstanding for server in balancer.servers] == [0, 0]


def test_keys_spread_evenly_over_idle_servers() -> None:
    balancer = Balancer(["a", "b", "c"])
    for i in range(30):
        with balancer.lease(f"p{i}"):
            pass
    assert [server.keys for server in balancer.servers] == [10, 10, 10]


def test_a_key_stays_where_its_prefix_is_however_busy_that_server_is() -> None:
    balancer = Balancer(["a", "b"])
    with balancer.lease("p") as home:
        for _ in range(5):
            with balancer.lease("p") as url:
                assert url == home


def test_a_key_moves_when_its_server_rests_and_stays_where_it_went() -> None:
    clock = Clock()
    balancer = Balancer(["a", "b"], clock=clock, rest_s=1.0)
    with pytest.raises(Transient), balancer.lease("p") as home:
        raise Transient(EngineError("down"))
    with balancer.lease("p") as url:
        assert url != home
    clock.now += 10
    with balancer.lease("p") as later:
        assert later == url


def test_a_rested_server_is_tried_by_one_request_before_the_others_follow() -> None:
    clock = Clock()
    balancer = Balancer(["a", "b"], clock=clock)
    with pytest.raises(Transient), balancer.lease("x"):
        raise Transient(EngineError("down"))
    with balancer.lease("y1") as busy, balancer.lease("y2"):
        assert busy == "b"
        clock.now += 1.5
        with balancer.lease("z1") as probe, balancer.lease("z2") as other:
            assert (probe, other) == ("a", "b")
        with balancer.lease("z3") as after, balancer.lease("z4") as too:
            assert (after, too) == ("a", "a")


def test_a_rest_doubles_with_every_failure_but_not_with_requests_that_fail_together() -> None:
    clock = Clock()
    balancer = Balancer(["a"], clock=clock, rest_s=1.0, max_rest_s=3.0)

    def fail_together() -> float:
        with pytest.raises(Transient), balancer.lease("p"), balancer.lease("q"):
            raise Transient(EngineError("down"))
        (server,) = balancer.servers
        return server.rests_until - clock.now

    rests = []
    for _ in range(4):
        rests.append(fail_together())
        clock.now += 5
    assert rests == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("status", [503, 429])
def test_the_pause_that_one_server_asks_for_holds_back_nobody_whom_another_can_answer(status: int) -> None:
    asked: list[str] = []

    async def attempt(url: str) -> str:
        asked.append(url)
        if url == "a":
            raise Transient(EngineError("it goes"), retry_after_s=30.0, status=status)
        return url

    balancer, retry = Balancer(["a", "b"]), Retry(base_s=0.001)
    assert asyncio.run(asyncio.wait_for(balancer.send("key", attempt, retry), 5)) == "b"
    assert asked == ["a", "b"]
    with pytest.raises(EngineError, match="it asks to be called again in 30 s"):
        asyncio.run(Balancer(["a"]).send("key", attempt, Retry(max_total_s=10)))


def test_what_is_sent_again_is_counted_by_why_and_what_is_given_up_is_not() -> None:
    balancer = Balancer(["a", "b"], rest_s=0.0)
    failures = iter([Transient(EngineError("down"), status=503), Transient(EngineError("reset"))])

    async def attempt(url: str) -> str:
        for failure in failures:
            raise failure
        return url

    asyncio.run(balancer.send("p", attempt, QUICK))
    assert balancer.retried.counts == {"503": 1, "connection": 1}

    async def never(url: str) -> str:
        raise Transient(EngineError("down"), status=500)

    with pytest.raises(EngineError):
        asyncio.run(balancer.send("p", never, Retry(max_attempts=2, base_s=0.001)))
    assert balancer.retried.counts["500"] == 1


def test_a_cancelled_request_is_no_longer_outstanding_and_does_no_harm_to_its_server() -> None:
    balancer = Balancer(["a"])

    async def go() -> None:
        task = asyncio.create_task(balancer.send("p", lambda url: asyncio.sleep(60), QUICK))
        await asyncio.sleep(0)
        assert balancer.servers[0].outstanding == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert balancer.servers[0].outstanding == 0 and balancer.servers[0].failures == 0


def test_no_url_and_the_same_url_twice_are_refused() -> None:
    for urls in ([], ["a", "a"]):
        with pytest.raises(ConfigError, match="base_url"):
            Balancer(urls)


def test_failed_attempts_are_counted_by_reason_however_many_reasons_there_are() -> None:
    async def fails(url: str) -> str:
        raise Transient(EngineError(f"broken {next(numbers)}"))

    balancer, numbers = Balancer(["a"]), iter(range(100))
    for _ in range(100):
        with pytest.raises(EngineError):
            asyncio.run(balancer.send("key", fails, Retry(max_attempts=1)))
    assert balancer.failures["broken 0"] == 1
    assert len(balancer.failures) == MAX_REASONS + 1 and sum(balancer.failures.values()) == 100
