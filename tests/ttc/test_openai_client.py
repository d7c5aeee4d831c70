"""The HTTP client of runs and of the gateway against servers on loopback: any framing, kept connections, bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ttc.engines.openai import client as module
from ttc.engines.openai.client import Client
from ttc.engines.openai.refusals import Access
from ttc.engines.shared import connections
from ttc.engines.shared.balance import Balancer, Retry, Transient
from ttc.errors import ServerRefused

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
EVENTS = b'data: {"n": 1}\n\n: note\n\nevent: x\ndata: {"n":\ndata:  2}\n\ndata: {"n": 3}\r\n\r\ndata: [DONE]\n\n'
NUMBERS = [{"n": 1}, {"n": 2}, {"n": 3}]


def chunked(*parts: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return OK + b"transfer-encoding: chunked\r\n\r\n" + framed


def sized(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    head = b"".join(line + b"\r\n" for line in headers)
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, head, len(body), body)


def asked(reply: Write | bytes, use: Callable[[Client], Awaitable[Any]], **access: Any) -> tuple[Any, list[Any]]:
    """What `use` makes of a client of a server that answers everything by `reply`; and its requests, by connection."""
    seen: list[list[Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[Any] = []
        seen.append(mine)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                mine.append((head, await reader.readexactly(size)))
                if isinstance(reply, bytes):
                    writer.write(reply)
                else:
                    await reply(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> Any:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", Access("secret", 5, 5))
        try:
            return await use(client)
        finally:
            await client.close()
            server.close()

    return asyncio.run(main()), seen


async def chunks_of(client: Client) -> list[Any]:
    async with client.stream("/chat/completions", {"a": "\ud800"}) as chunks:
        return [chunk async for chunk in chunks]


async def piecemeal(writer: asyncio.StreamWriter) -> None:
    """A stream whose bytes come one by one."""
    for byte in chunked(EVENTS) + b"0\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()


async def ending(writer: asyncio.StreamWriter) -> None:
    """A reply without a length."""
    writer.write(OK + b"\r\n" + EVENTS)
    writer.close()


async def interim(writer: asyncio.StreamWriter) -> None:
    """A reply that another one announces."""
    writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + sized(EVENTS))


@pytest.mark.parametrize("reply", [chunked(EVENTS) + b"0\r\n\r\n", sized(EVENTS), piecemeal, ending, interim])
def test_a_stream_of_any_framing_is_read(reply: Any) -> None:
    told, ((request, *_),) = asked(reply, chunks_of)
    assert told == NUMBERS
    assert request[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"authorization: bearer secret\r\n" in request[0].lower() and json.loads(request[1]) == {"a": "\ud800"}


WHOLE = b'{"choices": [], "n": 1}'


@pytest.mark.parametrize(
    ("reply", "chunks"),
    [
        (chunked(b"\xef", b"\xbb\xbf" + EVENTS) + b"0\r\n\r\n", NUMBERS),
        (sized(b"\xef\xbb\xbf\n" + EVENTS), NUMBERS),
        (sized(b"\xef\xbb\xbf" + WHOLE), [json.loads(WHOLE)]),
    ],
)
def test_a_byte_order_mark_before_a_stream_or_an_object_is_no_part_of_it(reply: bytes, chunks: list[Any]) -> None:
    assert asked(reply, chunks_of)[0] == chunks


def test_a_connection_is_used_again_also_when_its_end_follows_the_last_event() -> None:
    async def late(writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(EVENTS))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")

    async def thrice(client: Client) -> Any:
        told = []
        for _ in range(3):
            told.append(await chunks_of(client))
            await asyncio.sleep(0.15)
        return told

    for reply in (sized(EVENTS), late):
        told, seen = asked(reply, thrice)
        assert told == [NUMBERS] * 3 and [len(mine) for mine in seen] == [3]


def test_requests_at_once_have_connections_of_their_own() -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(sized(EVENTS))

    async def three(client: Client) -> Any:
        return await asyncio.gather(*(chunks_of(client) for _ in range(3)))

    told, seen = asked(slow, three)
    assert told == [NUMBERS] * 3 and [len(mine) for mine in seen] == [1, 1, 1]


def test_a_connection_that_was_free_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.KEEP_S < 5, "uvicorn closes after 5 s; a request on its way then would fail for nothing"
    monkeypatch.setattr(connections, "KEEP_S", 0.01)

    async def twice(client: Client) -> Any:
        await chunks_of(client)
        await asyncio.sleep(0.05)
        return await chunks_of(client)

    told, seen = asked(sized(EVENTS), twice)
    assert told == NUMBERS and [len(mine) for mine in seen] == [1, 1]


def test_a_request_that_meets_the_close_of_a_kept_connection_is_sent_again_to_the_same_server_at_once() -> None:
    answered: set[asyncio.StreamWriter] = set()

    async def once(writer: asyncio.StreamWriter) -> None:
        if writer in answered:
            writer.close()  # as a server does that had closed it when the request came
        else:
            answered.add(writer)
            writer.write(sized(EVENTS))

    async def thrice(client: Client) -> Any:
        balancer = Balancer(["it", "a server that would be asked if it had failed"], clock=lambda: 0.0)
        told = [await balancer.send("x", lambda _: chunks_of(client), Retry(base_s=1e9)) for _ in range(3)]
        return told, balancer.servers[0].failures, balancer.failures

    (told, rests, failures), seen = asked(once, thrice)
    assert told == [NUMBERS] * 3 and [len(mine) for mine in seen] == [2, 2, 1]
    assert rests == 0 and [("kept connection" in words, n) for words, n in failures.items()] == [(True, 2)]


def test_leaving_a_stream_early_ends_its_connection() -> None:
    ends = []

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        part = b'data: {"n": 1}\n\n'
        try:
            while True:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            ends.append("closed")
            raise

    async def leave(client: Client) -> Any:
        async with client.stream("/chat/completions", {}) as chunks:
            first = await anext(chunks)
        await asyncio.sleep(0.1)
        return first, list(ends)

    told, _ = asked(endless, leave)
    assert told == ({"n": 1}, ["closed"])


def test_what_nobody_takes_waits_in_the_kernel() -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        part = b'data: {"n": 1}\n\n' * 4096
        for _ in range(400):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await asyncio.wait_for(writer.drain(), 1)
            sent += len(part)

    async def slow(client: Client) -> Any:
        async with client.stream("/chat/completions", {}) as chunks:
            await anext(chunks)
            await asyncio.sleep(0.5)
        return sent

    told, _ = asked(flood, slow)
    assert told < 400 * 65536 / 2, "the server was not held back"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "Bad status line"),
        (OK + b"content-length: 5\r\n\r\ndata", "4 of 5 bytes"),
        (sized(b"data: {\n\n"), "unreadable"),
        (sized(b"data: [1]\n\n"), "unreadable"),
        (sized(b"data: " + b"[" * 100_000 + b"\n\n"), "unreadable"),
        (OK + b"a: " + b"b" * (1 << 17), "more than 32768 bytes"),
        (sized(b"data: " + b"x" * (1 << 17)), "too long"),
        (sized(b'{"error": {"message": "no, secret"}}', b"503 X"), "503: no, [key]"),
        (sized(b'{"choices": null, "base_resp": {"msg": "no, secret"}}'), 'without choices: {"choices": null'),
    ],
)
def test_what_a_server_may_do_wrong_is_a_failure_that_may_pass(
    reply: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_EVENT", 1 << 16 if "too long" in words else module.MAX_EVENT)

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        await writer.drain()
        if b"5\r\n\r\ndata" in reply:
            writer.close()

    async def fail(client: Client) -> str:
        with pytest.raises(Transient) as failure:
            await chunks_of(client)
        return str(failure.value)

    told, _ = asked(play, fail)
    assert words in told and "secret" not in told


def test_half_a_character_in_an_event_is_no_failure() -> None:
    told, _ = asked(sized(b'data: {"n": "\\ud83d"}\n\n'), chunks_of)
    assert told == [{"n": "\ud83d"}]


def test_a_redirect_is_the_operators_affair() -> None:
    async def follow(client: Client) -> None:
        with pytest.raises(ServerRefused, match="redirects"):
            await client.get("/models")

    asked(sized(b"", b"307 X", b"location: http://elsewhere/"), follow)


def test_an_address_with_a_proxy_is_asked_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def ask(proxy: Client) -> Any:
        monkeypatch.setenv("http_proxy", proxy._url.removesuffix("/v1"))
        client = Client("http://gpu.invalid:8000/v1", Access("", 1, 1))
        try:
            return await client.get("/models")
        finally:
            await client.close()

    told, ((request, *_),) = asked(sized(b'{"n": 1}'), ask)
    assert told == {"n": 1} and request[0].startswith(b"GET http://gpu.invalid:8000/v1/models HTTP/1.1\r\n")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_server_with_tls_is_asked_where_its_certificate_is_trusted_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, own = tmp_path / "key.pem", tmp_path / "own.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(own)]
    subprocess.run([*make, *names], check=True, capture_output=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sized(b'{"n": 1}'))
            await writer.drain()
        writer.close()

    async def ask() -> Any:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(own, key)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
        client = Client(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1", Access("", 5, 5))
        try:
            return await client.get("/models")
        finally:
            await client.close()
            server.close()

    with pytest.raises(Transient, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask())
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert asyncio.run(ask()) == {"n": 1}


def test_a_reply_that_breaks_off_is_told_in_our_words() -> None:
    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata"
        )
        await writer.drain()
        writer.close()

    with pytest.raises(Transient, match=r"^http://[^ ]+ broke the connection in the middle of its reply$"):
        asked(broken, chunks_of)
