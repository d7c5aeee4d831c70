"""An upstream server over a raw socket, which fails in a way of the test's choice and counts what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Play = Callable[["Wire"], None]
WORDS = ("The", " answer", " is", " 7.")


@dataclass
class Wire:
    """One request that came in: its connection, and words for the usual replies."""

    connection: socket.socket
    stop: threading.Event

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def plain(self, status: str, body: bytes, *headers: str, kind: str = "application/json") -> None:
        lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\nconnection: close\r\n\r\n" + body)

    def error(self, status: str, text: str = "boom", *headers: str) -> None:
        self.plain(status, json.dumps({"error": {"message": text, "type": "x", "code": None}}).encode(), *headers)

    def begin(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def event(self, value: Any) -> None:
        data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> None:
        self.event({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def words(self, count: int = len(WORDS)) -> None:
        for word in WORDS[:count]:
            self.chunk({"content": word})

    def end(self) -> None:
        self.chunk({}, "stop")
        self.event({"id": "x", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}})
        self.event(b"[DONE]")
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def wait(self, seconds: float = 30) -> None:
        self.stop.wait(seconds)


def well(wire: Wire) -> None:
    """The usual reply."""
    wire.begin()
    wire.words()
    wire.end()


@dataclass
class Faulty:
    """Where it listens, what it plays, and how often it was asked."""

    play: Play = well
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    checked: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def serve(self, listener: socket.socket) -> None:
        while not self.stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            data = b""
            while b"\r\n\r\n" not in data:
                part = connection.recv(65536)
                if not part:
                    return
                data += part
            head, _, body = data.partition(b"\r\n\r\n")
            wire = Wire(connection, self.stop)
            if head.startswith(b"GET "):
                self.checked += 1
                wire.plain("200 OK", b'{"object": "list", "data": [{"id": "up"}]}')
                return
            size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            while len(body) < size:
                body += connection.recv(65536)
            self.asked.append(json.loads(body))
            self.play(wire)


@contextlib.contextmanager
def faulty(play: Play = well) -> Iterator[Faulty]:
    """Serve until the block ends."""
    server = Faulty(play)
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
