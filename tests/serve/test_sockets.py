"""Raw sockets: what comes before a key is known costs little, is refused cleanly or closed, and the server goes on."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import os
import socket
import time
from collections.abc import Iterator

import httpx2
import pytest

from serve.http.log import LineHandler, configure_logs
from serve.operator.config import HttpSettings, ServeLimits
from serve.operator.keys import key_from_secret
from tests.serve.running import Running, chat, running, scripted, served
from ttc.engines.scripted import ScriptedEngine

SECRET = "a-secret-of-alice"
SETTINGS = HttpSettings(max_header_bytes=8192, header_s=1.0, max_connections=40)
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
KEY = b"Authorization: Bearer " + SECRET.encode() + b"\r\n"
BODY = json.dumps(chat(max_tokens=8)).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    keys = [key_from_secret("alice", SECRET)]
    with running(served(scripted()), keys=keys, http=SETTINGS) as found:
        yield found


def address(server: Running) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)


def sent(server: Running, data: bytes, *, wait_s: float = 4.0, half_close: bool = False) -> bytes:
    """What comes back for `data` until the server closes, is silent after a reply, or `wait_s` is over."""
    reply = b""
    with socket.create_connection(address(server), timeout=wait_s) as client, contextlib.suppress(OSError):
        with contextlib.suppress(OSError):
            client.sendall(data)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        while True:
            part = client.recv(65536)
            reply += part
            if not part:
                break
            client.settimeout(0.15)
    return reply


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else 0


def posted(*lines: bytes, body: bytes = BODY, length: bytes | None = None) -> bytes:
    size = b"Content-Length: " + (str(len(body)).encode() if length is None else length) + b"\r\n"
    return POST + b"".join(line + b"\r\n" for line in lines) + size + b"\r\n" + body


def chunked(*chunks: bytes, lines: bytes = b"") -> bytes:
    return POST + KEY + lines + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"
CONTROL = [bytes([value]) for value in (0, 1, 7, 8, 11, 12, 27, 31, 127)]
METHODS = [b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"HEAD", b"PROPFIND", b"get", b"G@T", b""]
VERSIONS = [b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3", b"HTTP/1.10", b"HTTX/1.1", b"http/1.1", b"HTTP/1,1", b""]
PATHS = [
    b"health",
    b"/..%2f..%2fetc",
    b"/%00",
    b"/%zz",
    b"//",
    b"/\x80",
    b"http://evil/health",
    b"*",
    b"/" + b"a" * 7000,
]
TWICE = [b"Host: localhost", KEY.strip(), b"Content-Type: a", b"X-Api-Key: k"]
ODD = {0, 400, 401, 404, 405, 408, 411, 413, 414, 421, 431, 501, 505}
"""What a refusal may look like; never a 5xx of a defect, never a 200."""

CASES: dict[str, tuple[bytes, set[int]]] = {
    "a plain question": (GET + b"\r\n", {200}),
    "a question with a key": (posted(KEY.strip()), {200}),
    "no key": (posted(), {401}),
    "a wrong key": (posted(b"Authorization: Bearer nothing-of-it"), {401}),
    "an empty key": (posted(b"Authorization: Bearer "), {401}),
    "a key that is not UTF-8": (posted(b"Authorization: Bearer \xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"), {401}),
    "a key with a line break folded in": (posted(b"Authorization: Bearer\r\n " + SECRET.encode()), {400, 401}),
    "nothing": (b"", {408}),
    "blank lines": (b"\r\n" * 50, {408}),
    "half a head": (GET, {408}),
    "half a line": (b"GET /hea", {408}),
    "one long line": (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", {431}),
    "one long header": (GET + b"A: " + b"b" * 9000 + b"\r\n\r\n", {431}),
    "one endless header": (GET + b"A: " + b"b" * 3_000_000, {0, 431}),
    "one endless name": (GET + b"b" * 3_000_000, {0, 400, 431}),
    "many headers": (GET + b"".join(b"A%d: b\r\n" % i for i in range(200)) + b"\r\n", {431}),
    "many small headers": (GET + b"a:b\r\n" * 30000, {0, 431}),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", {400}),
    "a head of HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", {200}),
    "a head of HTTP/0.9": (b"GET /health\r\n\r\n", {400, 505}),
    "a length and chunks": (posted(KEY.strip(), b"Transfer-Encoding: chunked"), {400}),
    "chunks twice": (POST + KEY + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + END, ODD),
    "an unknown coding": (POST + KEY + b"Transfer-Encoding: gzip\r\n\r\nx", ODD),
    "two lengths": (posted(KEY.strip(), b"Content-Length: 3"), {400}),
    "a negative length": (posted(KEY.strip(), length=b"-1"), {400}),
    "a length with a sign": (posted(KEY.strip(), length=b"+5"), {400}),
    "a length in hexadecimal": (posted(KEY.strip(), length=b"0x10"), {400}),
    "a length beyond a machine word": (posted(KEY.strip(), length=b"9" * 40), {400, 413}),
    "a length with a space": (posted(KEY.strip(), length=b"1 0"), {400}),
    "a length that is none": (posted(KEY.strip(), length=b"many"), {400}),
    "a length beyond the limit": (posted(KEY.strip(), length=b"99999999"), {413}),
    "chunks": (chunked(chunk(BODY[:9]), chunk(BODY[9:]), END), {200}),
    "a chunk with an extension": (chunked(b"%x;a=b\r\n%s\r\n" % (len(BODY), BODY), END), {200}),
    "a chunk of a wrong size": (chunked(b"5\r\n" + BODY + b"\r\n", END), {400}),
    "a chunk of a negative size": (chunked(b"-5\r\nabcde\r\n", END), {400}),
    "a chunk of a huge size": (chunked(b"f" * 30 + b"\r\nabc\r\n", END), {400}),
    "a chunk size that is none": (chunked(b"xyz\r\nabc\r\n", END), {400}),
    "a chunk without an end of line": (chunked(b"3\r\nabcX", END), {400}),
    "a body of chunks beyond the limit": (chunked(*[chunk(b"x" * 60000)] * 30), {413}),
    "trailers": (chunked(chunk(BODY), b"0\r\nA: b\r\n\r\n"), {200}),
    "a folded header": (GET + b"A: b\r\n c\r\n\r\n", {200, 400}),
    "a header without a colon": (GET + b"nothing\r\n\r\n", {400}),
    "a header with an empty name": (GET + b": a\r\n\r\n", {400}),
    "a space before the colon": (GET + b"A : b\r\n\r\n", {200, 400}),
    "line feeds alone": (b"GET /health HTTP/1.1\nHost: localhost\n\n", {200, 400}),
    "carriage returns alone": (b"GET /health HTTP/1.1\rHost: localhost\r\r", {0, 400, 408}),
    "a greeting of TLS": (bytes.fromhex("16030100c8010000c4030300") + b"\x00" * 200, {400}),
    "a greeting of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    "a greeting of SSH": (b"SSH-2.0-OpenSSH_9.9\r\n", {400}),
    "a greeting of SMTP": (b"EHLO localhost\r\n", {400}),
    "a command of redis": (b"*1\r\n$4\r\nPING\r\n", {400}),
    "random bytes": (bytes((i * 73 + 41) % 256 for i in range(4096)), {400}),
    "zeros": (b"\0" * 4096, {400}),
    "a WebSocket": (GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: a\r\n\r\n", {200, 400}),
    "an upgrade to HTTP/2": (GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\nHTTP2-Settings: AA\r\n\r\n", {200, 400}),
    "a tunnel": (b"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n", {400, 401, 405}),
    "an expectation": (posted(KEY.strip(), b"Expect: 100-continue"), {100, 200}),
    "another expectation": (posted(KEY.strip(), b"Expect: 200-ok"), {200, 400, 417}),
    "two questions at once": ((GET + b"\r\n") * 2, {200}),
    "twenty questions at once": ((GET + b"\r\n") * 20, {200}),
    "a question and garbage": (GET + b"\r\n" + b"\0\0\0", {200, 400}),
    "a question smuggled behind a body": (posted(KEY.strip(), body=BODY + b"GET /metrics", length=b"5"), {400}),
    "no body": (POST + KEY + b"\r\n", {400}),
    "an empty body": (posted(KEY.strip(), body=b""), {400}),
    "a body that is not JSON": (posted(KEY.strip(), body=b"hello"), {400}),
    "a body that is a number": (posted(KEY.strip(), body=b"1"), {400}),
    "a body that is not UTF-8": (posted(KEY.strip(), body=b'"\xff"'), {400}),
    "a body with a byte-order mark": (posted(KEY.strip(), body=b"\xef\xbb\xbf" + BODY), {200, 400}),
    "a body nested deep": (posted(KEY.strip(), body=b"[" * 100_000), {400}),
    "a number of many digits": (posted(KEY.strip(), body=b'{"model": ' + b"9" * 900_000 + b"}"), {400}),
    "a field twice": (posted(KEY.strip(), body=BODY[:-1] + b',"model":"m"}'), {400}),
    "a field twice further in": (posted(KEY.strip(), body=BODY.replace(b'{"role"', b'{"role":"user","role"')), {400}),
    "a compressed body": (posted(KEY.strip(), b"Content-Encoding: gzip", body=gzip.compress(BODY)), {415}),
    "half a body": (posted(KEY.strip(), length=b"500"), {0, 408}),
    "a body without a question": (BODY, {400}),
    "a very long query": (b"GET /health?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {431}),
    "a page that asks first": (
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://e\r\n\r\n",
        {401, 405},
    ),
    **{
        f"the control character {byte!r} in a header": (GET + b"A: " + byte + b"b\r\n\r\n", ODD | {200})
        for byte in CONTROL
    },
    **{f"the control character {byte!r} in a name": (GET + b"A" + byte + b": b\r\n\r\n", ODD) for byte in CONTROL},
    **{
        f"the control character {byte!r} in a path": (b"GET /" + byte + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", ODD)
        for byte in CONTROL
    },
    **{f"the method {name!r}": (name + b" /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", ODD) for name in METHODS},
    **{f"the version {name!r}": (b"GET /v1/models " + name + b"\r\nHost: localhost\r\n\r\n", ODD) for name in VERSIONS},
    **{
        f"the path {name[:20]!r}": (b"GET " + name + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", ODD | {200})
        for name in PATHS
    },
    **{f"the header {line[:12]!r} twice": (posted(KEY.strip(), line, line), {400}) for line in TWICE},
}


def test_there_are_at_least_a_hundred_cases() -> None:
    assert len(CASES) >= 100


@pytest.mark.long
def test_each_case_is_refused_cleanly_and_the_server_goes_on(server: Running) -> None:
    wrong: dict[str, bytes] = {}
    begun = time.process_time()
    for name, (data, expected) in CASES.items():
        reply = sent(server, data)
        if status(reply) not in expected:
            wrong[name] = reply[:200]
        if status(reply) >= 400 and b" HEAD" not in data[:5]:
            assert b"application/json" in reply, (name, reply[:300])
    assert not wrong
    spent = time.process_time() - begun  # of both sides
    assert spent < 0.1 * len(CASES), f"{spent:.1f} s of processor time for {len(CASES)} cases"
    assert status(sent(server, GET + b"\r\n")) == 200 and server.service.idle


def test_half_heads_end_in_time_and_no_more_connections_are_held_than_allowed(server: Running) -> None:
    clients = [socket.create_connection(address(server)) for _ in range(SETTINGS.max_connections + 10)]
    try:
        begun = time.monotonic()
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /health HTTP/1.1\r\nA: b\r\n")
        ends = []
        for client in clients:
            client.settimeout(20)
            with contextlib.suppress(OSError):
                ends.append(status(client.recv(4096)))
        assert time.monotonic() - begun < 20
        assert set(ends) <= {0, 408, 503} and ends.count(503) <= 10 and ends.count(408) >= 30
    finally:
        for client in clients:
            client.close()
    assert status(sent(server, GET + b"\r\n")) == 200


def test_the_drip_of_a_head_ends_at_its_time(server: Running) -> None:
    with socket.create_connection(address(server)) as client:
        client.settimeout(0.2)
        begun, reply = time.monotonic(), b""
        while not reply and time.monotonic() - begun < 15:
            with contextlib.suppress(TimeoutError):
                client.sendall(b"\r\n" if time.monotonic() - begun < 0.5 else b"G")
                reply = client.recv(4096)
        assert status(reply) in (400, 408)


def test_a_body_after_a_refusal_is_read_only_so_far(server: Running) -> None:
    with socket.create_connection(address(server), timeout=10) as client:
        client.sendall(POST + b"Content-Length: 900000000\r\n\r\n")
        assert status(client.recv(4096)) == 401
        with pytest.raises(OSError):
            for _ in range(4000):
                client.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    "line", [b"A: bbbbbbbb\r\n", b"a" * 64, b"1;aaaaaaaa\r\nx\r\n"], ids=["trailers", "a line", "chunks"]
)
@pytest.mark.parametrize("key", [b"", KEY])
def test_what_stands_beside_a_body_is_read_only_so_far(server: Running, key: bytes, line: bytes) -> None:
    begin = b"" if line.startswith(b"1;") else b"0\r\n"
    with socket.create_connection(address(server), timeout=10) as client:
        client.sendall(POST + key + b"Transfer-Encoding: chunked\r\n\r\n" + begin)
        with pytest.raises(OSError):
            for _ in range(1000):
                client.sendall(line * 1000)


def test_a_drip_behind_a_refused_body_ends_at_its_time(server: Running) -> None:
    with socket.create_connection(address(server), timeout=10) as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
        assert status(client.recv(4096)) == 401
        with pytest.raises(OSError):
            for _ in range(50):
                client.sendall(b"A: b\r\n")
                time.sleep(0.1)


def test_lines_behind_a_body_are_no_headers() -> None:
    with running(served(scripted())) as server:
        for host, behind, expected in ((b"localhost", b"evil.example", 200), (b"evil.example", b"localhost", 421)):
            head = POST.replace(b"localhost", host) + b"Transfer-Encoding: chunked\r\n\r\n"
            assert status(sent(server, head + chunk(BODY) + b"0\r\nHost: " + behind + b"\r\n\r\n")) == expected


def test_a_client_that_takes_nothing_of_a_reply_is_let_go_in_time() -> None:
    num, length = 16, 500_000
    limits = ServeLimits(stall_s=0.3, max_tokens=1 << 20, default_max_tokens=1 << 20, max_total_tokens=1 << 26)
    engine = ScriptedEngine(lambda prompt, path, key: "x" * length)
    with running(served(engine), limits=limits) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(address(server))
        body = json.dumps(chat(n=num)).encode()
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(9) == b"HTTP/1.1 "
        time.sleep(1.5)
        taken = 0
        with contextlib.suppress(OSError):
            while part := client.recv(1 << 20):
                taken += len(part)
        assert 0 < taken < num * length, "the rest waited for it"


def test_only_so_many_requests_of_a_connection_wait_for_the_reply_to_an_earlier_one(server: Running) -> None:
    few, many = (sent(server, (GET + b"\r\n") * num) for num in (20, 2000))
    assert few.count(b"HTTP/1.1 200") == 20
    assert many.count(b"HTTP/1.1 200") < 100
    assert status(sent(server, GET + b"\r\n")) == 200


@pytest.mark.parametrize("parts", [1, 2], ids=["one packet", "two packets"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_request_that_asks_for_another_protocol_is_answered_in_this_one(
    server: Running, protocol: bytes, parts: int
) -> None:
    ask = (KEY.strip(), b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + protocol, b"HTTP2-Settings: AAEAAEAA")
    head, end, body = posted(*ask, body=json.dumps(chat("hi") | {"user": "\nupgrade: x"}).encode()).partition(b"{")
    with socket.create_connection(address(server), timeout=10) as client:
        for _ in range(2):
            for part in (head, end + body) if parts == 2 else (head + end + body,):
                client.sendall(part)
                time.sleep(0.05)
            reply = b""
            while b"hello there" not in reply:
                part = client.recv(65536)  # head and body may come apart
                assert part, reply
                reply += part


KEYLESS = [
    ({"host": "evil.example"}, 421),
    ({"host": "localhost.evil.example"}, 421),
    ({"host": "127.0.0.1.evil.example:80"}, 421),
    ({"host": "10.0.0.7"}, 421),
    ({"host": "localhost:1"}, 200),
    ({"host": "[::1]:8000"}, 200),
    ({"host": "app.localhost"}, 200),
    ({"host": "desk.lan"}, 200),
    ({"origin": "https://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://localhost:3000"}, 200),
    ({"origin": "https://app.example"}, 200),
]


def test_a_server_without_keys_answers_this_machine_and_named_pages_only() -> None:
    settings = HttpSettings(hosts=("desk.lan",), cors_origins=("https://app.example",))
    with running(served(scripted()), http=settings) as server:
        for headers, expected in KEYLESS:
            assert server.ask(chat(), **headers).status_code == expected, headers
        with server.client() as client:
            asking = {"origin": "https://app.example", "access-control-request-method": "POST"}
            before = client.options("/v1/chat/completions", headers=asking)
            assert before.headers["access-control-allow-origin"] == "https://app.example"
            other = client.options("/v1/chat/completions", headers={**asking, "origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers


def preflight(server: Running, origin: str, **headers: str) -> httpx2.Response:
    """What a browser asks before a page's request."""
    asking = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    with server.client() as client:
        return client.options("/v1/chat/completions", headers={**asking, **headers})


def test_without_keys_a_page_of_this_machine_may_read_the_answer_and_with_keys_it_must_be_named(
    server: Running,
) -> None:
    pages = ("http://localhost:3000", "http://127.0.0.1:5173", "http://[::1]:8080", "http://app.localhost")
    with running(served(scripted())) as keyless:
        for page in pages:
            for reply in (preflight(keyless, page), keyless.ask(chat(), origin=page)):
                assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, page)
        for page in ("https://evil.example", "http://localhost.evil.example", "null"):
            assert "access-control-allow-origin" not in preflight(keyless, page).headers
    assert "access-control-allow-origin" not in preflight(server, pages[0]).headers


def test_a_page_of_the_internet_that_is_named_may_ask_a_server_of_this_network() -> None:
    with running(served(scripted()), http=HttpSettings(cors_origins=("https://app.example",))) as server:
        reply = preflight(server, "https://app.example", **{"access-control-request-private-network": "true"})
        assert (reply.status_code, reply.headers["access-control-allow-private-network"]) == (200, "true")
        other = preflight(server, "https://evil.example", **{"access-control-request-private-network": "true"})
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


def test_with_keys_any_name_will_do_and_no_page_is_allowed_unasked(server: Running) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "host": "public.example", "origin": "https://evil.example"}
    reply = server.ask(chat(), **headers)
    assert reply.status_code == 200 and "access-control-allow-origin" not in reply.headers


def test_every_line_of_the_log_is_json() -> None:
    stream = io.StringIO()
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level
    try:
        configure_logs(stream)
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.\nforged")
        logging.getLogger("asyncio").error("task", exc_info=ValueError("two\nlines"))
        logging.getLogger("py.warnings").warning("coroutine 'x' was never awaited")
        logging.getLogger("serve").info("listening on %s", "http://127.0.0.1:1")
        logging.getLogger("other").warning("%d apples", "two")
        root.handlers[0].flush()
    finally:
        root.handlers = before
        root.setLevel(level)
        logging.captureWarnings(False)
    every = [json.loads(line) for line in stream.getvalue().splitlines()]
    # A server of an earlier test may write that it ends.
    lines = [line for line in every if line["level"] != "info" or line["message"].endswith("http://127.0.0.1:1")]
    assert [line["level"] for line in lines] == ["warning", "error", "warning", "info", "warning"]
    assert lines[-1]["line"] == "'%d apples'"


def test_a_log_that_nobody_reads_holds_nothing_up_and_tells_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.http.log.MAX_UNWRITTEN", 1000)
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as pipe, open(writer, "w") as stream:
        handler = LineHandler(stream)
        record = logging.makeLogRecord({"name": "serve", "msg": "x" * 100})
        num = 2000  # ten times what a pipe holds
        began = time.monotonic()
        for _ in range(num):
            handler.handle(record)
        assert time.monotonic() - began < 1
        num_lines = num_lost = 0
        tail = b""
        while num_lines + num_lost < num:
            *whole, tail = (tail + pipe.read(65536)).split(b"\n")
            losses = [value for line in whole if (value := json.loads(line).get("lost"))]
            num_lines, num_lost = num_lines + len(whole) - len(losses), num_lost + sum(losses)
        assert num_lines + num_lost == num and num_lost > num // 2


def test_refusals_at_the_door_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    settings = HttpSettings(max_header_bytes=8192, header_s=0.2, max_connections=4)
    with caplog.at_level(logging.INFO, "serve.access"), running(served(scripted()), http=settings) as server:
        heads = (GET, GET + b"A: " + b"b" * 9000 + b"\r\n\r\n", b"G@T\r\n\r\n")
        assert status(sent(server, b"")) == 408, "who says nothing has asked nothing"
        replies = [sent(server, head) for head in heads]
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection(address(server)))
            replies.append(sent(server, GET + b"\r\n"))
        with server.client() as client:
            counted = client.get("/metrics").text
    codes = ["headers_too_slow", "headers_too_large", "invalid_http", "too_many_connections"]
    lines = [record.__dict__ for record in caplog.records if record.__dict__.get("error") in codes]
    assert [line["error"] for line in lines[:4]] == codes
    assert [line["status"] for line in lines[:4]] == [408, 431, 400, 503]
    for reply, line in zip(replies, lines, strict=False):
        assert f"x-request-id: {line['request_id']}\r\n".encode() in reply
    for code in codes:
        assert f'ttc_requests_refused_total{{code="{code}"}} 1\n' in counted


def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_the_connection(server: Running) -> None:
    stream = posted(KEY.strip(), b"Connection: keep-alive", body=json.dumps(chat(max_tokens=8, stream=True)).encode())
    head, _, text = sent(server, stream.replace(b"/1.1", b"/1.0")).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
    assert text.startswith(b"data: {") and text.endswith(b"data: [DONE]\n\n")
    head, _, text = sent(server, posted(KEY.strip()).replace(b"/1.1", b"/1.0")).partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(text) in head and json.loads(text)["object"] == "chat.completion"
    assert b"transfer-encoding: chunked" in sent(server, stream), "as ever for HTTP/1.1"
