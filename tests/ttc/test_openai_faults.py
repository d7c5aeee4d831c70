"""The openai engine when servers fail: what is tried again, what is not, what it costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.loops import finished
from tests.ttc import conformance as suite
from tests.ttc.openai_server import Behaviour, Fault, OpenAIServer
from tests.ttc.openai_setup import CHAT, TEACHER, ask, by_ids, essential, free_port, once, talker, teacher_server
from tests.ttc.test_conformance import draw
from ttc.cli.cli import main
from ttc.core import Completion, Engine, Sampling, Usage
from ttc.engines.openai.factory import openai
from ttc.engines.openai.refusals import Access, NoCredit, refuse, status_of
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared import balance
from ttc.engines.shared.balance import Balancer, Retry, Transient, retry_after_s, retrying
from ttc.errors import ConfigError, EngineBusy, EngineError, EngineTimeout, PromptRefused, PromptTooLong, ServerRefused
from ttc.session.solve import solve, spent
from ttc.strategies.direct import direct

pytestmark = pytest.mark.usefixtures("without_matplotlib")


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    with teacher_server() as server:
        yield server


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=503, headers={"Retry-After": "0"}),
        Fault(status=429, headers={"retry-after-ms": "20"}),
        Fault("drop"),
        Fault("drop", after=0),
        Fault("close"),
        Fault("nested", status=503),
        Fault("flat", status=500),
        Fault("garbage"),
        Fault("shape"),
        Fault("ends", finish="abort"),
        Fault("ends", finish="error"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.finish}-{fault.after}",
)
def test_a_passing_failure_is_retried_with_the_same_seed_and_costs_only_overrun(
    server: OpenAIServer, fault: Fault
) -> None:
    (healthy,) = once(by_ids(server))
    engine = by_ids(server)
    before = len(server.requests)
    server.faults.append(fault)
    usages: list[Usage] = []
    (completion,) = once(engine, usages=usages)
    assert essential([completion]) == essential([healthy])
    first, second = server.requests[before:]
    assert first == second
    assert completion.usage.attempts == 2 and completion.usage.calls == 1, engine.failures
    assert (completion.usage.overrun > 0) == (fault.kind != "status" and fault.after > 0)
    assert usages == [completion.usage] and engine.counters() == completion.usage


def test_an_attempt_that_broke_off_is_charged_its_prompt_once_more() -> None:
    with OpenAIServer(talker, CHAT) as server:
        (healthy,) = once(openai(base_url=server.url))
        engine = openai(base_url=server.url)
        server.faults.extend([Fault(status=500), Fault("drop", after=3), Fault("drop", after=1)])
        (retried,) = once(engine)
        assert retried.usage.attempts == 4 and retried.usage.overrun > 0
        assert retried.usage.prompt == 3 * healthy.usage.prompt == engine.counters().prompt
    with teacher_server() as server:
        engine, usages = by_ids(server, attempts=2), list[Usage]()
        server.faults.extend([Fault("drop", after=3)] * 2)
        with pytest.raises(EngineError):
            once(engine, usages=usages)
        (lost,) = usages
        assert lost.prompt == 2 * healthy_prompt(server) and lost.overrun > 0


def healthy_prompt(server: OpenAIServer) -> int:
    (completion,) = once(by_ids(server))
    return completion.usage.prompt


def test_a_failure_that_stays_becomes_an_engine_error_with_its_cause_and_its_attempts(server: OpenAIServer) -> None:
    engine = by_ids(server, attempts=3)
    server.faults.extend([Fault(status=503, message="the queue is full")] * 3)
    usages: list[Usage] = []
    with pytest.raises(EngineError, match=r"503: the queue is full .*gave up after 3 attempts"):
        once(engine, usages=usages)
    assert usages == [engine.counters()] and engine.counters().attempts == 3 and engine.counters().generated == 0


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault(status=400, message="bad field"), EngineError, "400: bad field"),
        (Fault(status=422, message="odd value"), EngineError, "422: odd value"),
        (Fault(status=400, message="'reasoning_effort' does not support 'none'"), EngineError, "--thinking auto"),
        (Fault(status=401, message="who are you"), ConfigError, "api_key_env"),
        (Fault(status=402, message="Insufficient Balance"), NoCredit, "402: Insufficient Balance; the account of this"),
        (Fault(status=400, message="Your credit balance is too low to access"), NoCredit, "no credit left"),
        (Fault(status=404, message="no such model"), ConfigError, "base_url"),
        (Fault(status=400, message="maximum context length is 8 tokens"), PromptTooLong, "maximum context"),
        (Fault(status=400, message="The response was filtered (content_filter)"), PromptRefused, "was filtered"),
        (Fault(status=403, message="Your input was flagged by moderation"), PromptRefused, "403: Your input"),
        (Fault(status=400, message="Content Exists Risk"), PromptRefused, "Risk"),
        (Fault("nested", status=400, message="bad later"), EngineError, "bad later"),
        (Fault("flat", status=400, message="flat later"), EngineError, "flat later"),
        (Fault(status=503, headers={"x-should-retry": "false"}), EngineError, "503"),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else "",
)
def test_a_failure_that_cannot_pass_is_not_tried_again(
    server: OpenAIServer, fault: Fault, error: type[Exception], message: str
) -> None:
    engine = by_ids(server)
    before = len(server.requests)
    server.faults.append(fault)
    with pytest.raises(error, match=message):
        once(engine)
    assert len(server.requests) == before + 1 and engine.counters().attempts == 1


def test_a_server_that_is_busy_at_the_start_is_not_taken_for_one_that_can_do_less(server: OpenAIServer) -> None:
    busy = Fault(status=503, message="the queue is full", headers={"retry-after-ms": "1"})
    server.faults.clear()
    server.faults.extend([busy] * 3)
    with pytest.raises(EngineError, match="the queue is full"):
        openai(base_url=server.url, tokenizer=TEACHER)
    server.faults.extend([busy] * 2)
    assert openai(base_url=server.url, tokenizer=TEACHER).capabilities.token_ids


def test_the_foreign_cause_of_a_failure_that_stays_is_kept(server: OpenAIServer) -> None:
    engine = by_ids(server, attempts=1)
    server.faults.append(Fault("drop"))
    with pytest.raises(EngineError) as caught:
        once(engine)
    assert type(caught.value.__cause__).__module__.startswith("aiohttp")


def test_a_silent_server_is_given_up_after_the_idle_time() -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url, idle_s=0.2, attempts=2, retry_s=5.0)
        server.faults.extend([Fault("hang"), Fault("hang")])
        with pytest.raises(EngineTimeout, match=r"silent for 0\.2 s"):
            once(engine)


def test_a_spent_account_is_not_waited_for_and_another_server_answers() -> None:
    with OpenAIServer(talker, CHAT) as one, OpenAIServer(talker, CHAT) as two:
        for servers in ([one], [one, two]):
            engine = openai(base_url=",".join(server.url for server in servers))
            before = sum(len(server.requests) for server in servers)
            one.faults.append(Fault(status=429, message="no more (insufficient_quota)"))
            if servers == [one]:
                with pytest.raises(NoCredit, match="insufficient_quota"):
                    once(engine)
                assert sum(len(server.requests) for server in servers) == before + 1
            else:
                once(engine)


def test_where_it_is_not_asked_again_a_silent_server_costs_one_silence_and_another_answers() -> None:
    with OpenAIServer(talker, CHAT) as one, OpenAIServer(talker, CHAT) as two:
        for servers in ([one], [one, two]):
            engine = openai(base_url=",".join(server.url for server in servers), idle_s=0.2, silent_again=False)
            before = [len(server.requests) for server in servers]
            for server in servers:
                server.faults.append(Fault("hang"))
            with pytest.raises(EngineTimeout, match=r"silent for 0\.2 s$"):
                once(engine)
            assert [len(server.requests) for server in servers] == [number + 1 for number in before]
        engine = openai(base_url=f"{one.url},{two.url}", idle_s=0.2, silent_again=False)
        one.faults.append(Fault("hang"))
        once(engine)


def test_several_servers_share_the_problems_and_each_problem_stays_on_one() -> None:
    with OpenAIServer(suite.embedded) as one, OpenAIServer(suite.embedded) as two:
        engine = openai(base_url=f"{one.url},{two.url}", tokenizer=TEACHER)
        before = len(one.requests), len(two.requests)
        case, order = suite.THINKING_STRATEGIES["tree under a cap"], suite.problems(4)

        async def go(engine: Engine):
            try:
                return await suite.solve_in_order(engine, case, order, 4)
            finally:
                await engine.close()

        both = asyncio.run(go(engine))
        questions = [
            {tuple(body["prompt"][: body["prompt"].index(348) + 1]) for body in server.requests[start:]}
            for server, start in zip((one, two), before, strict=True)
        ]
        assert questions[0] and questions[1] and not questions[0] & questions[1]
        alone = asyncio.run(go(by_ids(one)))
        assert {k: suite.essence(a) for k, a in both.items()} == {k: suite.essence(a) for k, a in alone.items()}


def test_a_server_that_dies_is_replaced_by_the_other_and_nothing_changes() -> None:
    with OpenAIServer(suite.embedded) as one, OpenAIServer(suite.embedded) as two:
        engine = openai(base_url=f"{one.url}, {two.url}", tokenizer=TEACHER, retry_s=10.0)
        prompts = [engine.render(problem.messages, None) for problem in suite.problems(4)]

        async def go(kill: bool) -> list[Completion]:
            if kill:
                one.kill()
            work = [engine.generate(p, Sampling(seed=1, max_tokens=24), range(2), lambda u: None) for p in prompts]
            return [completion for group in await asyncio.gather(*work) for completion in group]

        before, after = (essential(asyncio.run(go(kill))) for kill in (False, True))
        assert before == after
        assert [state.failures > 0 for state in engine.servers] == [True, False]
        asyncio.run(engine.close())


def test_a_server_that_is_down_at_the_start_is_left_out_and_another_model_is_refused() -> None:
    with OpenAIServer(suite.embedded) as one:
        with pytest.warns(RuntimeWarning, match="going on without it"):
            engine = openai(base_url=f"http://127.0.0.1:{free_port()}/v1,{one.url}", tokenizer=TEACHER)
        assert once(engine)[0].token_ids
        with (
            OpenAIServer(talker, Behaviour(model="else")) as two,
            pytest.raises(ConfigError, match=r"does not serve 'served'; it serves else"),
        ):
            openai(base_url=f"{one.url},{two.url}", tokenizer=TEACHER)


def records(folder) -> dict[str, object]:
    """What a run found, without times and without what retries cost."""
    found = {}
    for line in (folder / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["error"] is None:
            usage = {k: v for k, v in record["answer"]["usage"].items() if k in ("prompt", "generated", "calls")}
            kept = {k: v for k, v in record["answer"].items() if k not in ("seconds", "usage")}
            found[record["problem"]["id"]] = json.dumps([record["target"], kept, usage], sort_keys=True)
    return found


@pytest.mark.long
def test_a_run_whose_server_dies_goes_on_after_its_restart_with_the_same_records(tmp_path, capsys) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"

    def evaluate(out, *more: str) -> int:
        arguments = ["eval", "--engine", "openai", "--strategy", "majority:n=4", "--baseline", "none", "--limit", "16"]
        arguments += ["--level", "1"]
        arguments += ["--set", f"engine.base_url={url}", "--set", f"engine.tokenizer={TEACHER}", "--concurrency", "2"]
        arguments += ["--set", "engine.attempts=2", "--set", "engine.retry_s=1", "--seed", "5", *more]
        return main([*arguments, "--out", str(out)])

    with OpenAIServer(suite.embedded, port=port):
        assert evaluate(tmp_path / "whole") == 0
    with OpenAIServer(suite.embedded, port=port) as server:
        server.die_after = len(server.requests) + 25
        assert evaluate(tmp_path / "cut") == 1
    cut = records(tmp_path / "cut")
    assert 3 < len(cut) < 16
    assert "--retry-errors" in capsys.readouterr().err
    with OpenAIServer(suite.embedded, port=port):
        assert evaluate(tmp_path / "cut", "--retry-errors") == 0
    assert records(tmp_path / "cut") == records(tmp_path / "whole")


def test_a_server_that_comes_back_in_time_is_not_even_noticed() -> None:
    port = free_port()

    async def go() -> Completion:
        with OpenAIServer(suite.embedded, port=port) as first:
            engine = by_ids(first, attempts=40)
        loop = asyncio.get_running_loop()
        late = OpenAIServer(suite.embedded, port=port)
        starting = loop.run_in_executor(None, lambda: (time.sleep(0.3), late.__enter__()))
        try:
            (completion,) = await draw(engine, range(1))
            await starting
            return completion
        finally:
            await engine.close()
            late.kill()

    completion = asyncio.run(go())
    assert completion.usage.attempts > 1 and completion.token_ids


def test_a_problem_that_fails_keeps_what_it_had_cost(server: OpenAIServer) -> None:
    engine = by_ids(server, attempts=1)
    server.faults.append(Fault("drop", after=5))

    with pytest.raises(EngineError) as caught:
        finished(solve(ask("9-2"), engine=engine, strategy=direct, seed=1), engine)
    assert spent(caught.value).overrun > 0 and spent(caught.value) == engine.counters()


def test_a_rate_limit_costs_seconds_and_no_problem() -> None:
    """Forty draws at once where eight are allowed in a tenth of a second: five rounds, and few are sent in vain."""
    limited = replace(CHAT, rate=8, rate_s=0.1)
    with OpenAIServer(lambda: ScriptedEngine(lambda prompt, path, key: "\\boxed{7}"), limited) as server:
        engine = openai("served", base_url=server.url, attempts=3, retry_s=2.0)

        async def go() -> list[str | None]:
            answers = [solve(ask(f"{i}+1"), engine=engine, strategy=direct, seed=0) for i in range(40)]
            try:
                return [answer.final for answer in await asyncio.gather(*answers)]
            finally:
                await engine.close()

        started = time.monotonic()
        assert asyncio.run(go()) == ["7"] * 40
        assert 0.3 < time.monotonic() - started < 10
        assert 0 < server.refused < 120
        assert any("429" in reason for reason in engine.failures)


@pytest.mark.parametrize("now", [0.0, 1.37, 5000.1, 12345.678, 86400.3, 1e7 + 0.1])
def test_a_wish_that_fits_is_waited_for_to_the_last_second(now: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit by the minute asks for up to 60 s, and so long is insisted, whatever the clock rounds to."""
    monkeypatch.setattr(balance, "time", SimpleNamespace(monotonic=lambda: now))
    calls: list[int] = []

    async def attempt() -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            raise Transient(EngineBusy("slow"), retry_after_s=0.05, status=429)
        return len(calls)

    assert asyncio.run(retrying(attempt, Retry(max_attempts=2, max_total_s=0.05))) == 2


def test_nobody_waits_in_silence_for_a_server_that_asks_for_hours(server: OpenAIServer) -> None:
    engine = openai("served", base_url=server.url, tokenizer="none", attempts=3, retry_s=1.0)
    server.faults.append(Fault(status=429, headers={"retry-after": "7200"}, message="daily limit"))
    with pytest.raises(EngineBusy, match=r"daily limit \(gave up after 1 attempt: it asks .* again in 7200 s\)"):
        once(engine)
    with pytest.raises(EngineBusy, match=r"again in 7200 s: resume later, or set engine\.retry_s=7201") as caught:
        once(engine)
    assert caught.value.retry_after_s == pytest.approx(7200, abs=60)


def test_the_wait_that_a_failing_server_asks_for_is_in_the_error_that_ends_the_request(server: OpenAIServer) -> None:
    engine = openai("served", base_url=server.url, tokenizer="none", attempts=1)
    server.faults.append(Fault(status=503, headers={"retry-after": "7"}, message="starting"))
    with pytest.raises(EngineError, match="starting") as caught:
        once(engine)
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Rate limit reached for gpt-x. Please try again in 7.66s. Visit", 7.66),
        ("Please try again in 1m12.5s.", 72.5),
        ("Please try again in 120ms", 0.12),
        ("Requests have exceeded the rate. Please retry after 26 seconds.", 26.0),
        ("You exceeded your current quota. Please retry in 45.8s.", 45.8),
        ("Please try again later", None),
        ("Rate limit of 3 requests a minute", None),
    ],
)
def test_a_wish_that_only_the_message_tells_is_read_there(words: str, seconds: float | None) -> None:
    with pytest.raises(Transient) as caught:
        refuse("http://x", Access("", 1.0, 1.0), 429, words, {})
    assert caught.value.retry_after_s == seconds == caught.value.error.retry_after_s


def test_a_limit_without_a_wish_is_waited_out_in_any_number_of_attempts() -> None:
    calls: list[int] = []

    async def attempt() -> int:
        calls.append(len(calls))
        if len(calls) <= 5:
            raise Transient(EngineBusy("full"), status=429)
        return len(calls)

    assert asyncio.run(retrying(attempt, Retry(max_attempts=2, base_s=0.001))) == 6
    calls.clear()
    with pytest.raises(EngineBusy, match=r"full \(gave up after"):
        asyncio.run(retrying(attempt, Retry(max_attempts=2, max_total_s=0.0)))


def test_the_probe_waits_out_a_rate_limit_that_it_reaches_by_itself() -> None:
    busy = Fault(status=429, message="full", headers={"retry-after-ms": "1"})
    with OpenAIServer(talker, CHAT) as server:
        server.faults.extend([busy] * 4)  # of which the SDK takes three
        with pytest.warns(RuntimeWarning, match=r"429: full: asking again for 60 s"):
            assert openai(base_url=server.url).capabilities.model == "served"
        server.faults.extend([busy] * 3)
        with pytest.raises(EngineError, match="429: full"):
            openai(base_url=server.url, attempts=1)
        server.faults.extend([replace(busy, headers={"retry-after": "7200"})] * 3)
        with pytest.raises(EngineError, match=r"429: full: it asks to be called again in 7200 s"):
            openai(base_url=server.url)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (402, "This request requires more credits"),
        (429, "You exceeded your current quota, please check your plan. (insufficient_quota)"),
    ],
)
def test_an_account_without_credit_is_named_and_never_waited_for(status: int, words: str) -> None:
    with pytest.raises(NoCredit, match="no credit left"):
        refuse("http://x", Access("", 1.0, 1.0), status, words, {})


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_server_that_refuses_us_in_the_middle_ends_no_run_that_another_can_finish(status: int) -> None:
    with OpenAIServer(talker, CHAT) as one, OpenAIServer(talker, CHAT) as two:
        engine = openai(base_url=f"{one.url},{two.url}", attempts=1)
        before = len(one.requests)
        one.faults.extend(Fault(status=status, message=f"no, see request {number}") for number in range(100))

        async def go() -> list[str]:
            answers = [solve(ask(f"{i}+1"), engine=engine, strategy=direct, seed=0) for i in range(12)]
            try:
                first = await asyncio.gather(*answers)
                rest = [await solve(ask(f"{i}+2"), engine=engine, strategy=direct, seed=0) for i in range(4)]
            finally:
                await engine.close()
            return [answer.text for answer in (*first, *rest)]

        assert all(asyncio.run(go()))
        assert len(one.requests) - before <= 6, "those that were there when it first refused"
        ((reason, count),) = engine.failures.items()
        assert str(status) in reason and one.url in reason and count == len(one.requests) - before


def test_a_server_that_has_refused_us_is_asked_again_a_minute_later_by_one_request() -> None:
    now = [0.0]
    pool = Balancer(("http://a", "http://b"), clock=lambda: now[0])
    asked: list[str] = []

    async def attempt(url: str) -> str:
        asked.append(url)
        if url == "http://a" and now[0] < 100:
            raise NoCredit("spent")
        return url

    def send(key: str) -> str:
        return asyncio.run(pool.send(key, attempt, Retry(1)))

    assert [send(key) for key in "uvw"] == ["http://b"] * 3 and asked.count("http://a") == 1
    now[0] = 61.0
    assert [send(key) for key in "xyz"] == ["http://b"] * 3 and asked.count("http://a") == 2
    now[0] = 130.0
    assert send("again") == "http://a" and not any(server.refusal for server in pool.servers)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_server_that_refuses_us_at_the_start_is_left_out_where_another_takes_us(status: int) -> None:
    with OpenAIServer(talker, CHAT) as one, OpenAIServer(talker, CHAT) as two:
        one.faults.extend(Fault(status=status, message="no") for _ in range(100))
        with pytest.warns(RuntimeWarning, match=rf"{one.url} answered {status}: no.*going on without it"):
            engine = openai(base_url=f"{one.url},{two.url}", attempts=1)
        assert [once(engine) for _ in range(2)]
        one.faults.extend(Fault(status=status, message="no") for _ in range(100))
        with pytest.raises(ServerRefused, match=f"answered {status}"):
            openai("served", base_url=one.url)


def test_of_a_gateways_page_only_the_title_is_told() -> None:
    page = "<!DOCTYPE html>\n<html><head><title>api.example.com |\n 524: A timeout&nbsp;occurred</title></head><body>x"
    with pytest.raises(Transient, match=r"^http://x answered 524: api.example.com \| 524: A timeout occurred$"):
        refuse("http://x", Access("", 1.0, 1.0), 524, page, {})
    with pytest.raises(Transient, match="502: a page without a title"):
        refuse("http://x", Access("", 1.0, 1.0), 502, "<html>", {})


TOO_MUCH = [
    "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
    "`context_window` for this model",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude",
    "it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 65537 (exclusive)",
]


@pytest.mark.parametrize("words", TOO_MUCH)
def test_a_length_that_no_answer_may_have_is_told_from_a_full_context(words: str) -> None:
    with pytest.raises(EngineError, match="give a smaller --max-tokens") as caught:
        refuse("http://x", Access("", 1.0, 1.0), 400, words, {})
    assert not isinstance(caught.value, PromptTooLong)


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "soon"])
def test_a_wish_that_is_no_time_is_none(value: str) -> None:
    assert retry_after_s({"retry-after": value}) is None


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "Invalid request: Your request exceeded model token limit: 8192 (requested: 10000)",
    "Please reduce the length of the messages or completion.",
    "the request exceeds the available context size, try increasing it",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "Input length 5000 exceeds maximum allowed token size 4096",
    "the maximum supported sequence length is just 8192!",
]


@pytest.mark.parametrize("words", TOO_LONG)
def test_a_full_context_is_told_from_other_refusals_in_the_words_of_many_servers(words: str) -> None:
    with pytest.raises(PromptTooLong):
        refuse("http://x", Access("", 1.0, 1.0), 400, words, {})


def test_a_full_context_is_not_tried_again_where_a_server_takes_it_for_its_own_fault() -> None:
    access = Access("", 1.0, 1.0)
    with pytest.raises(PromptTooLong):
        refuse("http://x", access, status_of("context_length_exceeded"), "too much (context_length_exceeded)", {})
    with pytest.raises(Transient):
        refuse("http://x", access, 500, "the request took too long", {})


def test_a_server_that_never_has_room_is_given_up(server: OpenAIServer) -> None:
    engine = by_ids(server, attempts=3)
    server.faults.extend([Fault(status=429, headers={"retry-after-ms": "10"})] * 3)
    with pytest.raises(EngineError, match=r"answered 429: something broke \(gave up after 3 attempts\)"):
        once(engine)


CUT = (
    "Could not finish the message because max_tokens or model output limit was reached. "
    "Please try again with higher max_tokens."
)
"""As OpenAI's models say it that think where nobody sees it."""


@pytest.mark.parametrize("fault", [Fault(status=400, message=CUT), Fault("nested", status=400, message=CUT, after=1)])
def test_an_answer_that_spent_its_length_on_thought_is_cut_and_no_failure(fault: Fault) -> None:
    with OpenAIServer(talker, CHAT) as server:
        (whole,) = once(openai(base_url=server.url), max_tokens=9)
        engine, usages = openai(base_url=server.url), list[Usage]()
        before = len(server.requests)
        server.faults.append(fault)
        with pytest.warns(RuntimeWarning, match="came without usage"):
            (cut,) = once(engine, usages=usages, max_tokens=9)
    assert cut.finish_reason == "length" and cut.path == whole.path and whole.text.startswith(cut.text)
    assert bool(cut.text) == (fault.kind == "nested")
    assert (cut.usage.generated, cut.usage.thinking, cut.usage.overrun) == ((9, 9, 0) if not cut.text else (1, 0, 0))
    assert len(server.requests) == before + 1 and usages == [cut.usage] == [engine.counters()]
