"""An upstream server that answers chat completions by a script, with tool calls, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

Script = Callable[[int, dict[str, Any]], dict[str, Any]]
"""(number of the request, its body) -> {"content", "reasoning", "tool_calls", "finish"}"""


@dataclass
class Upstream:
    """Where it listens and what it was asked."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def upstream(script: Script, pause_s: float = 0.0) -> Iterator[Upstream]:
    """Serve until the block ends; `pause_s` stands before every chunk."""
    found = Upstream()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = json.loads(raw)
        found.asked.append(body)
        reply = script(len(found.asked) - 1, body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for chunk in _chunks(reply):
            await asyncio.sleep(pause_s)
            text = chunk if isinstance(chunk, str) else json.dumps(chunk)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


def _chunks(reply: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for name in ("reasoning", "content"):
        for letter in reply.get(name, ""):
            yield chunk({name: letter})
    for index, (name, arguments) in enumerate(reply.get("tool_calls", ())):
        head = {"index": index, "id": f"call{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [head]})
        for part in (arguments[:3], arguments[3:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, reply.get("finish") or ("tool_calls" if reply.get("tool_calls") else "stop"))
    yield {"id": "x", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}}
    yield "[DONE]"
