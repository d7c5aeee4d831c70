"""Keys, request ids, metrics, logs and spans."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import logging
import pathlib
import threading
import time
import traceback

import pytest

from serve.http.guard import check_neighbour
from serve.http.log import JsonLines
from serve.operator.config import HttpSettings, load_config
from serve.operator.keys import KeyLimits, find_key, key_from_secret
from serve.operator.metrics import RequestRecord, RequestSpan, SpentRecord, end_tracing
from serve.requests.errors import ApiError
from tests.serve.running import chat, running, scripted, served
from tests.serve.slow import SlowEngine, until
from tests.serve.streams import chunks_of
from ttc.core import Usage
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError

ALICE, BOB = "alice-secret-1", "bob-secret-22"
CODE = "f00dCafe12345678"


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


GUARDED = [
    *("/v1/models", "/metrics", "/version", "/openapi.json", "/v1/models/m", "/nothing", "//health", "/health/"),
    *("/health/..%2fmetrics", "/%68ealth", "/HEALTH", "/v1/models/../../health", "/health;x", "/health%00"),
]


def test_every_path_but_the_open_ones_needs_a_key_however_it_is_spelled() -> None:
    with running(served(scripted()), keys=[key_from_secret("alice", ALICE)]) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        statuses = {}
        for path in [*GUARDED, "/health", "/ready", "/ready?x=1"]:
            connection = http.client.HTTPConnection(host, int(port))  # sends a path as it is
            connection.request("GET", path)
            statuses[path] = connection.getresponse().status
            connection.close()
    assert {path for path, status in statuses.items() if status == 401} == set(GUARDED)
    assert {path for path, status in statuses.items() if status == 200} == {"/health", "/ready", "/ready?x=1"}


def test_a_slash_too_many_is_no_other_address() -> None:
    with running(served(scripted())) as server:
        for path in ("/v1/chat/completions/", "/v1//chat/completions", "/v1/chat//completions//"):
            reply = server.ask(chat(), path)
            assert (reply.status_code, reply.json()["object"]) == (200, "chat.completion"), path
        refused = server.ask({"model": "m"}, "/v1/messages/")
        assert (refused.status_code, refused.json()["type"]) == (400, "error")  # in the words of that address
        with server.client() as client:
            assert client.get("/v1/models/").json() == client.get("/v1/models").json()
            assert client.get("/v1/models/m/").json()["id"] == "m"
            assert client.get("/").status_code == 200 and client.get("/nothing/").status_code == 404


def test_a_key_opens_as_bearer_or_as_x_api_key_and_a_wrong_one_does_not() -> None:
    with running(served(scripted()), keys=[key_from_secret("alice", ALICE)]) as server:
        assert server.ask(chat()).status_code == 401
        for headers, status in (
            (bearer(ALICE), 200),
            ({"x-api-key": ALICE}, 200),
            (bearer(ALICE + "x"), 401),
            ({"Authorization": ALICE}, 401),
            ({"Authorization": f"Basic {ALICE}"}, 401),
        ):
            assert server.ask(chat(), **headers).status_code == status, headers


def test_keys_are_kept_as_digests_and_read_from_environment_file_or_hash(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", ALICE)
    secret = tmp_path / "bob"
    secret.write_text(BOB + "\n")
    config = tmp_path / "serve.toml"
    config.write_text(
        '[models.m]\nengine = "simulated"\n[keys.alice]\nenv = "ALICE_KEY"\nrequests_per_minute = 5\n'
        f'[keys.bob]\nfile = "{secret}"\n[keys.carol]\nsha256 = "{hashlib.sha256(b"carol").hexdigest()}"\n'
    )
    keys = load_config(config).keys
    assert [getattr(find_key(text, keys), "name", None) for text in (ALICE, BOB, "carol", "x")] == [
        "alice",
        "bob",
        "carol",
        None,
    ]
    assert keys[0].limits.requests_per_minute == 5
    assert ALICE not in repr(keys)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "needs one of"),
        ('env = "NO_SUCH_KEY"', "NO_SUCH_KEY is not set"),
        ('file = "/no/such/file"', "keys.alice.file must be the path .* can be read: No such file"),
        ('sha256 = "abc"', "64 hexadecimal"),
        (f'sha256 = "{"0" * 64}"\nrequests = 3', "unknown key"),
        (f'sha256 = "{"0" * 64}"\nmax_searches = 0', "keys.alice: max_searches"),
        (f'key = "{ALICE}"', "needs one of env, file or sha256, and no secret in the file"),
        (f'sha256 = "{"0" * 64}"\n[keys.bob]\nsha256 = "{"0" * 64}"', "alice and bob have one secret"),
    ],
)
def test_a_key_that_cannot_be_used_stops_the_start(tmp_path: pathlib.Path, table: str, message: str) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f'[models.m]\nengine = "simulated"\n[keys.alice]\n{table}\n')
    with pytest.raises(ConfigError, match=message):
        load_config(config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f'[keys]\nalice = "{ALICE}"', r"must be a table \[keys.alice\]"),
        (f'keys = "{ALICE}"', r"keys must be tables \[keys.NAME\]"),
        (f'[keys.alice]\nenv = "{ALICE}"', r"keys.alice.env must be the name of an environment variable"),
        (f'[keys.alice]\nenv = "{CODE}"', r"keys.alice.env: the environment variable that it names is not set"),
        (f'[keys.alice]\nfile = "{ALICE}"', r"keys.alice.file must be the path of a file"),
        (f'[keys.alice]\nfile = "{ALICE}\\u0000"', r"keys.alice.file must be the path of a file"),
        (f'[keys.alice]\nfile = "~{ALICE}/x"', r"keys.alice.file must be the path of a file"),
    ],
)
def test_a_secret_that_stands_in_the_file_is_not_shown(tmp_path: pathlib.Path, keys: str, message: str) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f'{keys}\n[models.m]\nengine = "simulated"\n')
    with pytest.raises(ConfigError, match=message) as refusal:
        load_config(config)
    shown = "".join(traceback.format_exception(refusal.value))
    assert ALICE not in shown and CODE not in shown


def test_the_limits_of_a_table_that_names_the_usual_variable_hold(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTC_SERVE_KEY", ALICE)
    config = tmp_path / "serve.toml"
    config.write_text('[models.m]\nengine = "simulated"\n[keys.alice]\nenv = "TTC_SERVE_KEY"\nmax_searches = 1\n')
    keys = load_config(config).keys
    key = find_key(ALICE, keys)
    assert key is not None and (key.name, key.limits.max_searches, len(keys)) == ("alice", 1, 1)


def test_each_key_has_limits_of_its_own() -> None:
    keys = [
        key_from_secret("alice", ALICE, KeyLimits(requests_per_minute=2)),
        key_from_secret("bob", BOB, KeyLimits(tokens_per_minute=25, max_total_tokens=3000)),
    ]
    with running(served(scripted()), keys=keys) as server:
        assert [server.ask(chat(), **bearer(ALICE)).status_code for _ in range(3)] == [200, 200, 429]
        assert server.ask(chat(max_tokens=100), **bearer(BOB)).status_code == 200
        spent = server.ask(chat(max_tokens=100), **bearer(BOB))
        assert (spent.status_code, spent.json()["error"]["code"]) == (429, "token_limit_exceeded")
        assert 1 <= int(spent.headers["retry-after"]) <= 60
        large = server.ask(chat("hi " * 10), **bearer(BOB))
        assert (large.status_code, large.json()["error"]["code"]) == (400, "token_limit_exceeded")
        dear = server.ask(chat(ttc={"max_total_tokens": 4000}), **bearer(BOB))
        assert (dear.status_code, dear.json()["error"]["param"]) == (400, "ttc.max_total_tokens")


@pytest.mark.long
def test_a_key_may_run_so_many_searches_at_once_and_still_chat() -> None:
    key = key_from_secret("alice", ALICE, KeyLimits(max_searches=1))
    search = chat(ttc={"strategy": "majority", "n": 2})
    with running(served(SlowEngine(3.0)), keys=[key]) as server:
        thread = threading.Thread(target=server.ask, args=(search,), kwargs=bearer(ALICE))
        thread.start()
        assert until(lambda: not server.service.idle)
        assert server.ask(search, **bearer(ALICE)).json()["error"]["code"] == "too_many_searches"
        assert server.ask(chat(), **bearer(ALICE)).status_code == 200
        thread.join()


def test_request_ids_come_back_and_strange_ones_are_replaced() -> None:
    with running(served(scripted())) as server, server.client() as client:
        assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
        for strange in ("a b", "x" * 65, '{"a"}'):
            given = client.get("/health", headers={"X-Request-Id": strange}).headers["x-request-id"]
            assert given != strange and len(given) == 24
        assert client.get("/nothing").headers["x-request-id"]


def test_metrics_count_what_the_replies_say() -> None:
    with running(served(scripted())) as server, server.client() as client:
        replies = [server.ask(chat()).json(), server.ask(chat(ttc={"strategy": "majority", "n": 3})).json()]
        server.ask(chat(foo=1))
        lines = dict(
            line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#")
        )
    direct, vote = replies
    generated = 'ttc_generation_tokens_total{{model="m",strategy="{}"}}'
    assert int(lines[generated.format("direct")]) == direct["ttc"]["usage"]["generated"]
    assert int(lines[generated.format("majority")]) == vote["ttc"]["usage"]["generated"]
    assert lines['ttc_request_success_total{model="m",strategy="direct",finished_reason="stop"}'] == "1"
    assert lines['ttc_requests_refused_total{code="unknown_parameter"}'] == "1"
    assert lines['ttc_candidates_total{model="m",strategy="majority"}'] == "3"
    assert lines['ttc_e2e_request_latency_seconds_count{model="m",strategy="direct"}'] == "1"
    assert lines['ttc_e2e_request_latency_seconds_bucket{model="m",strategy="direct",le="+Inf"}'] == "1"
    assert lines["ttc_num_requests_running"] == lines['ttc_num_sequences_running{model="m"}'] == "0"


def test_every_choice_and_every_key_that_is_refused_is_counted() -> None:
    with running(served(scripted()), keys=[key_from_secret("alice", ALICE)]) as server:
        server.ask(chat(n=3), **bearer(ALICE))
        server.ask(chat())
        server.ask(chat(), **bearer("a wrong key of somebody"))
        with server.client(headers=bearer(ALICE)) as client:
            lines = client.get("/metrics").text.splitlines()
    assert 'ttc_thinking_enforced_total{model="m",strategy="direct",how="none"} 3' in lines
    assert 'ttc_candidates_total{model="m",strategy="direct"} 3' in lines
    assert 'ttc_requests_refused_total{code="missing_api_key"} 1' in lines
    assert 'ttc_requests_refused_total{code="invalid_api_key"} 1' in lines


def test_gaps_are_those_within_a_choice() -> None:
    with running(served(scripted())) as server, server.client() as client:
        text = server.ask(chat(stream=True, n=2)).text
        lines = client.get("/metrics").text.splitlines()
    pieces = [chunk for chunk in chunks_of(text) if chunk["choices"][0]["delta"].get("content")]
    assert f'ttc_inter_token_latency_seconds_count{{model="m",strategy="direct"}} {len(pieces) - 2}' in lines


def test_a_log_line_names_the_reply_by_its_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "serve.access"), running(served(scripted())) as server:
        reply = server.ask(chat()).json()
    (line,) = (record.__dict__ for record in caplog.records if record.name == "serve.access")
    assert reply["id"] == f"chatcmpl-{line['reply_id']}"


def test_the_log_says_why_a_request_was_refused_and_whose_it_was(caplog: pytest.LogCaptureFixture) -> None:
    keys = [key_from_secret("alice", ALICE, KeyLimits(requests_per_minute=1))]
    with caplog.at_level(logging.INFO, "serve.access"), running(served(scripted()), keys=keys) as server:
        for secret in (ALICE, ALICE, BOB):
            server.ask(chat(), **bearer(secret))
        server.ask(chat(), "/v1/nothing", **bearer(ALICE))
    lines = [record.__dict__ for record in caplog.records if record.name == "serve.access"]
    told = [(line["status"], line.get("error"), line.get("key")) for line in lines]
    assert told == [
        (200, None, "alice"),
        (429, "rate_limit_exceeded", "alice"),
        (401, "invalid_api_key", None),
        (404, "not_found", "alice"),
    ]


def test_a_log_line_is_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("serve", logging.INFO, "", 0, "a\nb", (), None)
    record.path = '/x\n{"level": "forged"}'
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["path"] == record.path


def test_what_was_asked_is_logged_where_the_operator_wants_it_of_raw_prompts_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ScriptedEngine(lambda prompt, path, key: "yes")
    with caplog.at_level(logging.INFO, "serve.access"), running(served(engine), log_prompts=True) as server:
        server.ask(chat("a question"))
        server.ask({"model": "m", "prompt": "a beginning", "max_tokens": 3}, "/v1/completions")
    told, raw = (record.__dict__ for record in caplog.records if record.name == "serve.access")
    assert told["messages"][0]["content"] == "a question" and "prompts" not in told
    assert raw["prompts"] == ("a beginning",)


def test_a_span_tells_what_a_request_cost_and_belongs_to_the_clients_trace() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = "0af7651916cd43dd8448eb211c80319c"
    for outcome in ("done", "deadline_exceeded"):
        span = RequestSpan("m", "tree", {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}, provider)
        usage = Usage(prompt=5, generated=7, thinking=3)
        span.end(RequestRecord("m", "tree", outcome, (SpentRecord("m", "tree", usage),), 0.1, finish_reasons=("stop",)))
    good, bad = exporter.get_finished_spans()
    assert good.context is not None and f"{good.context.trace_id:032x}" == trace
    assert good.attributes is not None and good.attributes["gen_ai.usage.output_tokens"] == 7
    assert good.attributes["ttc.strategy"] == "tree" and good.status.is_ok
    assert not bad.status.is_ok
    provider.shutdown()


def test_the_end_of_a_server_does_not_wait_for_a_collector_that_takes_no_traces() -> None:
    taken, begun = threading.Event(), time.monotonic()
    asyncio.run(end_tracing(lambda: taken.wait(30), 0.05))
    assert time.monotonic() - begun < 10
    taken.set()


def test_metrics_say_how_long_draws_waited_what_each_key_spent_and_the_gaps_of_streams() -> None:
    with running(served(scripted(max_concurrency=1)), keys=[key_from_secret("alice", ALICE)]) as server:
        body = chat(ttc={"strategy": "majority", "n": 3})
        vote = server.ask(body, **bearer(ALICE)).json()["usage"]
        plain = server.ask(chat(), **bearer(ALICE)).json()["usage"]
        assert server.ask(chat(stream=True), **bearer(ALICE)).status_code == 200
        with server.client(headers=bearer(ALICE)) as client:
            text = client.get("/metrics").text
    assert 'ttc_queue_time_seconds_count{model="m"} 5' in text
    assert vote["completion_tokens"] == 36 and vote["prompt_tokens"] == plain["prompt_tokens"] > 0
    spent = {"majority": vote["total_tokens"], "direct": 2 * plain["total_tokens"]}
    for strategy, num_tokens in spent.items():
        assert f'ttc_key_tokens_total{{key="alice",model="m",strategy="{strategy}"}} {num_tokens}' in text
    assert 'ttc_inter_token_latency_seconds_count{model="m",strategy="direct"} ' in text
    assert 'ttc_inter_token_latency_seconds_count{model="m",strategy="majority"}' not in text


@pytest.mark.parametrize(
    ("server", "host", "passes"),
    [
        ("127.0.0.1", b"evil.example", False),
        ("::ffff:127.0.0.1", b"evil.example", False),
        ("::ffff:127.0.0.1", b"localhost:8000", True),
        ("::ffff:10.0.0.7", b"desk.lan", True),
    ],
)
def test_a_page_of_elsewhere_reaches_this_machine_no_more_over_a_socket_for_both_kinds_of_address(
    server: str, host: bytes, passes: bool
) -> None:
    scope = {"server": (server, 8000), "headers": [(b"host", host)]}
    with contextlib.nullcontext() if passes else pytest.raises(ApiError, match="host"):
        check_neighbour(scope, HttpSettings())
