"""A reward server over loopback: vLLM's `/v1/models`, `/metrics`, `/pooling`, `/classify`, `/v1/completions`, or JSON.

The shapes are those of vLLM 0.32, seen on a real server; the numbers come from the tiny model, by one whole pass.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


class Refused(Exception):
    """An answer with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@contextlib.contextmanager
def reward_server(routes: dict[str, Answer]) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Serve `routes` (path -> answer to a body); gives the address and the list of requests as they come."""
    seen: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: dict[str, Any]) -> None:
            seen.append((self.path, body))
            try:
                status, answer = 200, routes[self.path](body)
            except KeyError:
                status, answer = 404, {"error": {"message": f"no route {self.path}"}}
            except Refused as refusal:
                status, answer = refusal.status, {"error": {"message": str(refusal)}}
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def models(*names: str) -> Answer:
    return lambda body: {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


def pooling(logits: Callable[[list[int]], list[list[float]]], tag: int | None) -> Answer:
    """Rows of every token, or with `tag` of those tokens (step pooling)."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        ids, rows = body["input"], logits(body["input"])
        kept = [row for token, row in zip(ids, rows, strict=True) if tag is None or token == tag]
        usage = {"prompt_tokens": len(ids), "total_tokens": len(ids), "completion_tokens": 0}
        return {"object": "list", "data": [{"index": 0, "object": "pooling", "data": kept}], "usage": usage}

    return answer


def classify(logits: Callable[[list[int]], list[float]], cache: Callable[[list[int]], int] = len) -> Answer:
    """The outputs of a classifier at the last token."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        row = logits(body["input"])
        cache(body["input"])
        data = {"index": 0, "label": None, "probs": row, "num_classes": len(row)}
        return {"object": "list", "data": [data], "usage": {"prompt_tokens": len(body["input"])}}

    return answer


class PrefixCache:
    """Whole blocks that were seen count as cached, but for the last token; `computed` counts all others."""

    def __init__(self, block: int = 32) -> None:
        self._block, self._seen, self._lock = block, set[tuple[int, ...]](), threading.Lock()
        self.computed = 0

    def __call__(self, ids: list[int]) -> int:
        ends = range(self._block, len(ids) + 1, self._block)
        with self._lock:
            cached = max((end for end in ends if end < len(ids) and tuple(ids[:end]) in self._seen), default=0)
            self._seen.update(tuple(ids[:end]) for end in ends)
            self.computed += len(ids) - cached
        return cached


def metrics(block: int) -> Answer:
    """What vLLM tells of its cache."""
    return lambda body: f'vllm:cache_config_info{{block_size="{block}",enable_prefix_caching="True",engine="0"}} 1.0\n'


def spans(logits: Callable[[list[int]], list[list[float]]], cache: PrefixCache) -> Answer:
    """The plugin `ttc_steps`: rows behind the cached part."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        ids = body["data"]["ids"]
        cached = cache(ids)
        return {"request_id": "r", "created_at": 0, "data": {"rows": logits(ids)[cached:], "cached": cached}}

    return answer


def completions(logits: Callable[[list[int]], list[list[float]]], cache: PrefixCache | None = None) -> Answer:
    """The last position's log-probabilities of the asked tokens."""
    find = cache or PrefixCache()

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        ids, row = body["prompt"], logits(body["prompt"])[-1]
        told = {f"token_id:{token}": row[token] for token in body["logprob_token_ids"]}
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": {"top_logprobs": [told]}}
        usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": find(ids)}}
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    return answer
