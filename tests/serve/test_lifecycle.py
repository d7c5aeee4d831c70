"""Clients that leave, deadlines, heartbeats, shares of the engine, drain."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from serve.http.app import DIALECTS
from serve.http.guard import AccessGuard
from serve.http.posts import add_posts
from serve.operator.config import ServeConfig, ServeLimits
from serve.running.admission import FairGate
from serve.running.catalogue import Catalogue
from serve.running.service import InferenceService
from tests.serve.running import Running, chat, running, scripted, served
from tests.serve.slow import GatedEngine, SlowEngine, until
from tests.serve.streams import chunks_of
from ttc.core import Message, Prompt
from ttc.engines.embedded.engine import EmbeddedEngine, embedded
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.errors import EngineError


def leave(server: Running, body: dict[str, object], after_s: float) -> None:
    """Send a request and close the connection before it is answered."""
    with pytest.raises(httpx2.TimeoutException), server.client() as client:
        client.post("/v1/chat/completions", json=body, timeout=after_s)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("search", [{}, {"ttc": {"strategy": "majority", "n": 20}}])
def test_a_client_that_leaves_frees_the_engine_within_a_second(stream: bool, search: dict[str, object]) -> None:
    engine = SlowEngine(30)
    with running(served(engine)) as server:
        leave(server, chat(stream=stream, **search), 0.3)
        assert until(lambda: engine.num_live == 0 and server.service.idle)
        gate = next(iter(server.service.catalogue)).gate
        assert (gate.held, gate.num_waiting, server.service.admission.sequences) == (0, 0, 0)
        assert engine.counters().overrun > 0


def test_a_client_that_leaves_with_requests_behind_the_first_frees_the_engine_too() -> None:
    engine = SlowEngine(30)
    with running(served(engine)) as server:
        place = httpx2.URL(server.url)
        body = json.dumps(chat()).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection((place.host, place.port or 80)) as connection:
            connection.sendall((head + body) * 3)
            assert until(lambda: engine.num_live == 1)
        assert until(lambda: engine.num_live == 0 and server.service.idle)


def test_a_client_that_leaves_a_real_model_frees_every_branch_of_it() -> None:
    engine = embedded()
    assert isinstance(engine, EmbeddedEngine)
    body = chat("12+30*2", min_thinking_tokens=400, max_tokens=1200, ttc={"strategy": "majority", "n": 12})
    with running(served(engine)) as server:
        seen: list[bool] = []
        watch = threading.Thread(target=lambda: seen.append(until(lambda: len(engine._scheduler._batch.rows) > 0, 10)))
        watch.start()  # before the request, which a busy machine may end before it lets us look
        post = {"method": "POST", "url": "/v1/chat/completions", "json": {**body, "stream": True}}
        with server.client() as client, client.stream(**post) as response:
            assert response.status_code == 200
            watch.join()
            assert seen == [True]
        assert until(lambda: server.service.idle and not engine._scheduler._batch.rows)
        before = engine.counters()
        time.sleep(0.2)
        assert engine.counters() == before


def test_a_shutdown_under_load_frees_every_branch_of_a_real_model_within_a_second() -> None:
    engine = embedded()
    assert isinstance(engine, EmbeddedEngine)
    long = {"min_thinking_tokens": 400, "max_tokens": 1200, "stream": True}
    bodies = [chat("12+30*2", **long, ttc={"strategy": "majority", "n": 12}) for _ in range(4)]
    bodies += [chat("7*8+1", **long) for _ in range(12)]
    with running(served(engine), limits=ServeLimits(drain_s=0.3)) as server:
        texts: list[str] = []
        asking = [threading.Thread(target=lambda body=body: texts.append(server.ask(body).text)) for body in bodies]
        for thread in asking:
            thread.start()
        assert until(lambda: server.service.admission.sequences == 60 and bool(engine._scheduler._batch.rows), 20)
        drained = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
        assert until(lambda: server.service.idle and not engine._scheduler._batch.rows, 0.3 + 1)
        drained.result(5)
        for thread in asking:
            thread.join()
    assert len(texts) == 16 and all("shutting_down" in text for text in texts)


def test_a_request_past_the_deadline_is_a_504_that_is_not_worth_retrying() -> None:
    engine = SlowEngine(30)
    with running(served(engine), limits=ServeLimits(request_timeout_s=0.2)) as server:
        response = server.ask(chat())
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        assert response.headers["x-should-retry"] == "false"
        assert until(lambda: engine.num_live == 0)


def test_silence_is_filled_with_comments_and_a_late_failure_ends_the_stream_properly() -> None:
    with running(served(SlowEngine(30)), limits=ServeLimits(request_timeout_s=0.5, heartbeat_s=0.1)) as server:
        response = server.ask(chat(stream=True))
    assert response.status_code == 200
    assert response.text.count(": keep-alive") >= 2
    assert chunks_of(response.text)[-1]["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize(("search", "taken"), [({}, 1), ({"wave": 3}, 3), ({"rule": "window"}, 5), ({"n": 2}, 1)])
def test_a_vote_that_draws_in_waves_takes_the_places_of_one_wave(search: dict[str, Any], taken: int) -> None:
    engine = GatedEngine(max_concurrency=64)
    with running(served(engine), limits=ServeLimits(max_sequences=8)) as server, ThreadPoolExecutor() as pool:
        asking = pool.submit(server.ask, chat(ttc={"strategy": "adaptive", **search}))
        assert until(lambda: engine.num_live == taken, 5)
        assert server.service.admission.sequences == taken
        engine.let_through(server.loop, 64)
        assert asking.result(10).status_code == 200


@pytest.mark.parametrize("chats", [1, 5])
def test_a_search_of_64_does_not_starve_chats(chats: int) -> None:
    """Counted in draws, so that it does not depend on how busy the machine is."""
    engine = GatedEngine(max_concurrency=10)
    with running(served(engine)) as server:
        gate = next(iter(server.service.catalogue)).gate
        replies: list[int] = []
        wide = threading.Thread(target=server.ask, args=(chat(ttc={"strategy": "majority", "n": 64}),))
        wide.start()
        assert until(lambda: engine.num_live + gate.num_waiting == 64, 10)
        assert engine.num_live == 8, "a search leaves room"
        asking = [threading.Thread(target=lambda: replies.append(server.ask(chat()).status_code)) for _ in range(chats)]
        for thread in asking:
            thread.start()
        assert until(lambda: engine.num_live + gate.num_waiting == 64 + chats, 10)
        engine.let_through(server.loop, 8 + chats)  # the search's first draws, which began before, and one of each chat
        for thread in asking:
            thread.join(10)
        assert replies == [200] * chats
        assert wide.is_alive(), "the search was over before the chats"
        engine.let_through(server.loop, 64)
        wide.join(10)
    assert engine.max_live <= 10


def test_two_searches_share_an_engine_evenly() -> None:
    engine = SlowEngine(0.05, max_concurrency=12)
    finished: list[tuple[str, float]] = []

    def ask(server: Running, name: str, n: int) -> None:
        server.ask(chat(ttc={"strategy": "majority", "n": n}))
        finished.append((name, time.monotonic()))

    with running(served(engine)) as server:
        threads = [threading.Thread(target=ask, args=(server, name, n)) for name, n in (("wide", 96), ("narrow", 24))]
        for thread in threads:
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join()
    assert [name for name, _ in finished] == ["narrow", "wide"]


def test_too_much_at_once_is_a_429_that_says_when_to_come_back() -> None:
    with running(served(SlowEngine(0.5)), limits=ServeLimits(max_sequences=4)) as server:
        first = threading.Thread(target=server.ask, args=(chat(n=4),))
        first.start()
        assert until(lambda: server.service.admission.sequences == 4)
        refused = server.ask(chat())
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        wrong = server.ask(chat(n=0))
        assert wrong.status_code == 400, "validation comes before admission"
        first.join()
        assert server.ask(chat()).status_code == 200


def test_draining_refuses_new_requests_lets_running_ones_finish_and_aborts_at_the_deadline() -> None:
    engine = SlowEngine(0.6)
    with running(served(engine), limits=ServeLimits(drain_s=2)) as server:
        replies: list[int] = []
        asking = threading.Thread(target=lambda: replies.append(server.ask(chat()).status_code))
        asking.start()
        assert until(lambda: engine.num_live == 1)
        drained = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
        assert until(lambda: server.service.draining)
        with server.client() as client:
            assert client.get("/ready").status_code == 503
            assert client.get("/health").status_code == 200
        refused = server.ask(chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        drained.result(5)
        asking.join()
        assert replies == [200]

    with running(served(SlowEngine(30)), limits=ServeLimits(drain_s=0.2)) as server:
        answers: dict[bool, httpx2.Response] = {}

        def ask(stream: bool) -> None:
            answers[stream] = server.ask(chat(stream=stream))

        asking = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for thread in asking:
            thread.start()
        assert until(lambda: len(server.service._jobs) == 2)
        asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop).result(5)
        for thread in asking:
            thread.join()
    assert all("shutting_down" in answer.text for answer in answers.values())
    assert (answers[False].status_code, answers[False].headers["retry-after"]) == (503, "5")


def test_a_server_that_goes_says_so_and_takes_what_comes_until_balancers_have_heard_of_it() -> None:
    engine = GatedEngine(max_concurrency=8)
    limits = ServeLimits(drain_s=20)
    with running(served(engine), limits=limits) as server, server.client() as client, ThreadPoolExecutor() as pool:
        assert "connection" not in client.get("/health").headers
        before = pool.submit(server.ask, chat())
        assert until(lambda: engine.num_live == 1)
        drained = asyncio.run_coroutine_threadsafe(server.service.drain(notice_s=0.5), server.loop)
        assert until(lambda: server.service.leaving)
        assert client.get("/ready").status_code == 503
        meanwhile = pool.submit(server.ask, chat())
        assert until(lambda: engine.num_live == 2)
        assert until(lambda: server.service.draining)
        late = server.ask(chat())
        engine.let_through(server.loop, 2)
        drained.result(5)
        replies = [before.result(), meanwhile.result(), late]
    assert [reply.status_code for reply in replies] == [200, 200, 503]
    assert {reply.headers["connection"] for reply in replies} == {"close"}
    assert int(late.headers["retry-after"]) in (18, 19)


@pytest.mark.long
def test_the_command_serves_the_packaged_model_and_a_second_signal_ends_it_cleanly_at_once() -> None:
    command = [sys.executable, "-m", "ttc", "serve", "--port", "0", "--set", "limits.drain_s=60"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stderr is not None
    try:
        lines = (json.loads(line)["message"] for line in process.stderr)
        url = next(text.split()[-1] for text in lines if text.startswith("listening on"))
        body = {**chat("12+30*2"), "model": "nano-teacher", "max_tokens": 200}
        reply = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert reply["choices"][0]["finish_reason"] == "stop"
        long = {**body, "min_thinking_tokens": 1400, "max_tokens": 1900, "n": 8, "stream": True}
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json=long, timeout=60) as response:
            process.send_signal(signal.SIGINT)
            assert until(lambda: httpx2.get(f"{url}/ready").status_code == 503, 5)
            process.send_signal(signal.SIGTERM)
            assert "shutting_down" in response.read().decode()
        logged = process.stderr.read()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    line, *others = map(json.loads, logged.splitlines())
    ends = [other for other in others if other["message"] != "request"]
    assert [end["message"] for end in ends] == ["shutting down", "stopped"] and ends[0]["running"] == 1
    assert (line["status"], line["model"], line["strategy"]) == (200, "nano-teacher", "direct")
    assert "12+30*2" not in logged


def test_new_keys_asked_for_while_the_models_load_are_read_once_the_server_listens(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("[models.m]\nengine = 'simulated'\n[keys.alice]\nenv = 'ALICE_KEY'\n")
    command = [sys.executable, "-m", "ttc", "serve", "--port", "0", "--config", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ALICE_KEY": "alice-secret"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        messages = (json.loads(line)["message"] for line in process.stderr)
        assert next(messages).startswith("loading")
        process.send_signal(signal.SIGHUP)
        assert {next(messages), next(messages)} > {"keys were read again"}
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_why_an_engine_failed_stands_in_the_log_and_its_address_in_no_reply(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(ScriptedEngine):
        async def generate(self, *_: Any) -> Any:
            raise EngineError("http://gpu-7:8000/v1 cannot be reached: Cannot connect to host gpu-7:8000")

    with caplog.at_level("WARNING", "serve"), running(served(Gone(replies({})))) as server:
        response = server.ask(chat())
    assert response.status_code == 503 and "gpu-7" not in response.text
    assert any("gpu-7:8000" in getattr(record, "error", "") for record in caplog.records)


def test_a_client_that_reads_nothing_is_let_go() -> None:
    engine = SlowEngine(0, text="x" * 60_000)
    limits = ServeLimits(stall_s=0.3, max_tokens=70_000)
    with running(served(engine), limits=limits) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        body = json.dumps(chat(stream=True, max_tokens=65_000, enable_thinking=False)).encode()
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            assert until(lambda: not server.service.idle, 5)
            assert until(lambda: server.service.idle, 20)
        assert server.ask(chat(enable_thinking=False, max_tokens=5)).status_code == 200


def test_a_body_that_trickles_in_is_refused() -> None:
    with running(served(SlowEngine(0)), limits=ServeLimits(stall_s=0.2)) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            client.settimeout(5)
            assert b"408" in client.recv(200)


def test_wide_searches_together_run_no_more_draws_than_they_may() -> None:
    engine = scripted(jitter=3)
    model = dataclasses.replace(served(engine), gate=FairGate(64, max_wide=4))
    statuses: list[int] = []

    def ask(**fields: Any) -> None:
        statuses.append(server.ask(chat(**fields)).status_code)

    with running(model) as server:
        wide = {"ttc": {"strategy": "majority", "n": 16}}
        threads = [threading.Thread(target=ask, kwargs=wide) for _ in range(4)]
        threads.append(threading.Thread(target=ask))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 5 and engine.max_live <= 5 and model.gate.held == 0


MANY_TURNS = [{"role": "user", "content": "1"}] * 300


@pytest.mark.parametrize(
    "fields",
    [{}, {"ttc": {"strategy": "majority", "n": 3}}, {"enable_thinking": False}, {"messages": MANY_TURNS}],
    ids=["direct", "vote", "off", "turns"],
)
def test_a_long_prompt_is_rendered_once_and_beside_the_event_loop(fields: dict[str, Any]) -> None:
    threads: list[str] = []

    class Noting(SlowEngine):
        def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
            threads.append(threading.current_thread().name)
            return super().render(messages, thinking)

    with running(served(Noting(0))) as server:
        loop = asyncio.run_coroutine_threadsafe(_name_of_thread(), server.loop).result(5)
        assert server.ask({**chat("long " * 5000, max_tokens=4), **fields}).status_code == 200
    assert len(threads) == 1 and loop not in threads


async def _name_of_thread() -> str:
    return threading.current_thread().name


def test_a_long_body_is_read_beside_the_event_loop() -> None:
    threads: list[int] = []

    def parse(body: Any) -> Any:
        threads.append(threading.get_ident())
        return DIALECTS[0].parse(body)

    model, app = served(scripted()), FastAPI()
    config = ServeConfig(models=(model.spec,), default=model.name)
    service = InferenceService(config, Catalogue(config, {model.name: model}))
    add_posts(app, service, [dataclasses.replace(DIALECTS[0], parse=parse)])
    transport = httpx2.ASGITransport(app=AccessGuard(app, service.keys))

    async def ask() -> None:
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for size in (10, 1 << 17):
                reply = await client.post("/v1/chat/completions", json=chat(metadata={"note": "x" * size}))
                assert reply.json()["choices"][0]["message"]["content"] == "hello there"

    asyncio.run(ask())
    assert threads[0] == threading.get_ident() != threads[1]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize(("hard", "soft_after"), [(400, 300), (100, 100)])
def test_a_server_may_open_as_many_files_as_its_connections_need_where_the_system_lets_it(
    hard: int, soft_after: int
) -> None:
    program = f"""
import resource
from serve.http.process import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, (80, {hard}))
allow_files(300)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == soft_after
    assert ("lower http.max_connections" in done.stderr) == (soft_after < 300)
