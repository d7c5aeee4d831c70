"""A faithful fake of SGLang 0.5.23: its HTTP surface on loopback, and its Python surface, over the embedded engine.

Field names, statuses, shapes of errors and the order of events were read off SGLang's source and checked against the
real engine (`benchmarks/sglang_cpu`). Sampling is keyed by (sampling_seed, absolute position), as there.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
import sys
import threading
import types
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ttc import nano
from ttc.core import Completion, ExtraCompletion, ExtraSampling, Prompt, Sampling, Usage
from ttc.engines.embedded.engine import EmbeddedEngine, embedded

CONTEXT_TEXT = "The input ({} tokens) is longer than the model's context length ({} tokens)."


@dataclass
class Faults:
    """What goes wrong; each is used up by the next `/generate`, except those that say otherwise."""

    statuses: deque[int] = field(default_factory=deque)
    die_after: deque[int] = field(default_factory=deque)
    """Close the connection after so many tokens."""
    stream_errors: deque[int] = field(default_factory=deque)
    """An error event with this code in place of the first token."""
    finish: deque[dict[str, Any]] = field(default_factory=deque)
    late_stop: int = 0
    """Notice stop strings so many tokens late (stays)."""
    lost_prompt: int = 0
    """Truncate prompts silently by so many tokens (stays)."""
    slow_s: float = 0.0
    """Wait before every answer (stays)."""


class Machine:
    """What is behind both surfaces: one model, requests by id, a bracket for weights, faults."""

    def __init__(
        self,
        *,
        deterministic: bool = True,
        raw_logprobs: bool = True,
        incremental: bool = False,
        api_key: str | None = None,
        admin_key: str | None = None,
        max_input: int | None = None,
        grammar_backend: str = "llguidance",
    ) -> None:
        self.grammar_backend = grammar_backend
        self.engine: EmbeddedEngine = embedded(batch_invariant=True)  # type: ignore[assignment]
        self.deterministic, self.raw_logprobs, self.incremental = deterministic, raw_logprobs, incremental
        self.api_key, self.admin_key = api_key, admin_key
        self.max_input = max_input or self.engine.capabilities.max_context - 6
        self.model_path = str(nano.path("teacher"))
        self.faults = Faults()
        self.running: dict[str, asyncio.Task[Any]] = {}
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.updates: list[str] = []
        self.session_open = False

    def model_info(self) -> dict[str, Any]:
        config = json.loads((nano.path("teacher") / "config.json").read_text())
        return {
            "model_path": self.model_path,
            "tokenizer_path": self.model_path,
            "is_generation": True,
            "model_type": config["model_type"],
        }

    def server_info(self) -> dict[str, Any]:
        return {
            "version": "0.5.23",
            "enable_deterministic_inference": self.deterministic,
            "max_req_input_len": self.max_input,
            "max_running_requests": 2048,
            "grammar_backend": self.grammar_backend,
        }

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)
        for known, task in self.running.items():
            if rid and known.startswith(rid):
                task.cancel()

    async def generate(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream; the last one is the answer. Raises ValueError for what SGLang refuses."""
        self.requests.append(body)
        ids = body["input_ids"]
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise ValueError("input_ids cannot be empty.")
        if len(ids) >= self.max_input:
            raise ValueError(CONTEXT_TEXT.format(len(ids), self.max_input))
        if body["sampling_params"]["max_new_tokens"] == 0:
            yield await self._score(body)
            return
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        task = asyncio.get_running_loop().create_task(self._draw(body, events.put_nowait))
        self.running[body["rid"]] = task
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            if not task.cancelled():
                task.result()
        finally:
            self.running.pop(body["rid"], None)
            task.cancel()
            await asyncio.wait({task})

    async def _score(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, start = body["input_ids"], body["logprob_start_len"]
        usages: list[Usage] = []
        k = body["top_logprobs_num"]
        values = await self.engine.logprobs(ids, start + 1, usages.append)
        rows = await self.engine.top_logprobs(ids, start + 1, k, lambda usage: None) if k else ()
        tops = [None, *(_entries(sorted(row.items(), key=lambda pair: -pair[1])[:k]) for row in rows)] if k else []
        pairs = [[None, ids[start], None], *([v, i, None] for v, i in zip(values, ids[start + 1 :], strict=True))]
        meta = self._meta(body, 0, {"type": "length", "length": 0}, usages[0].cached)
        return {
            "text": "",
            "output_ids": [],
            "meta_info": {**meta, "input_token_logprobs": pairs, "input_top_logprobs": tops},
        }

    async def _draw(self, body: dict[str, Any], put: Callable[[dict[str, Any]], None]) -> None:
        sampling, prompt = self._sampling(body), Prompt(text="", token_ids=tuple(body["input_ids"]))
        seen: list[int] = []
        usages: list[Usage] = []

        def on_tokens(new: tuple[int, ...]) -> None:
            seen.extend(new)
            shown = list(new) if self.incremental else list(seen)
            put({"text": "", "output_ids": shown, "meta_info": self._meta(body, len(seen), None, 0)})

        try:
            await asyncio.sleep(self.faults.slow_s)
            done = await self.engine.stream(prompt, sampling, 0, usages.append, on_tokens)
        except asyncio.CancelledError:
            # What was decoded is told; so it is on the real one, unless the request never left the queue.
            total = sum(usages, Usage())
            assert total.overrun == len(seen), (total, len(seen))
            meta = self._meta(body, len(seen), {"type": "abort", "message": "Aborted"}, total.cached)
            if not total.prompt:
                del meta["prompt_tokens"], meta["cached_tokens"]
            put({"text": "", "output_ids": seen[-1:] if self.incremental else seen, "meta_info": meta})
            return
        put(self._answer(body, done, usages[0], sampling))

    def _answer(self, body: dict[str, Any], done: Completion, usage: Usage, sampling: Sampling) -> dict[str, Any]:
        ids, finish = list(done.token_ids), _finish(done)
        if self.faults.late_stop and body["sampling_params"]["stop"]:
            finish, ids = self._late(body["sampling_params"]["stop"], ids)
        meta = self._meta(body, len(ids), self.faults.finish.popleft() if self.faults.finish else finish, usage.cached)
        if body.get("return_logprob"):
            scale = 1.0 if self.raw_logprobs else 1 / sampling.temperature
            assert done.logprobs is not None
            pairs = [[scale * (lp or 0.0), i, None] for lp, i in zip(done.logprobs, ids, strict=False)]
            meta["output_token_logprobs"] = pairs[-1:] if self.incremental and body["stream"] else pairs
            tops = [_entries(top) for top in done.top_logprobs] if isinstance(done, ExtraCompletion) else []
            meta["output_top_logprobs"] = tops[-1:] if self.incremental and body["stream"] else tops
        shown = ids[-1:] if self.incremental and body["stream"] else ids
        return {"text": self.engine.decode(ids), "output_ids": shown, "meta_info": meta}

    def _late(self, stops: list[str], ids: list[int]) -> tuple[dict[str, Any], list[int]]:
        for end in range(1, len(ids) + 1):
            text = self.engine.decode(ids[:end])
            found = next((stop for stop in stops if stop in text), None)
            if found is not None and end + self.faults.late_stop <= len(ids):
                return {"type": "stop", "matched": found}, ids[: end + self.faults.late_stop]
        return {"type": "length", "length": len(ids)}, ids

    def _sampling(self, body: dict[str, Any]) -> Sampling:
        given = body["sampling_params"]
        late = bool(self.faults.late_stop)
        assert "ebnf" not in given or self.grammar_backend == "llguidance", "no other backend reads our grammars"
        return ExtraSampling(
            grammar=given.get("ebnf"),
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=None if given["top_k"] == -1 else given["top_k"],
            min_p=given["min_p"],
            max_tokens=given["max_new_tokens"],
            stop=() if late else tuple(given["stop"]),
            stop_token_ids=tuple(given["stop_token_ids"]),
            seed=given.get("sampling_seed", 42) if self.deterministic else random.getrandbits(62),
            logprobs=bool(body.get("return_logprob")),
            top_logprobs=body.get("top_logprobs_num", 0),
        )

    def _meta(self, body: dict[str, Any], count: int, finish: dict[str, Any] | None, cached: int) -> dict[str, Any]:
        return {
            "id": body["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]) - self.faults.lost_prompt,
            "completion_tokens": count,
            "cached_tokens": cached,
        }

    async def load(self, state: dict[str, Any], how: str) -> tuple[bool, str]:
        if how == "tensor" and not self.session_open:
            return False, "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()"
        await self.engine.load_weights(state)
        self.updates.append(how)
        return True, "Success"

    def bracket(self, begin: bool) -> tuple[bool, str]:
        if self.session_open == begin:
            return False, "a weight-update session is already open" if begin else "no weight-update session is open"
        self.session_open = begin
        return True, "Success"


def _entries(top: Iterable[tuple[int, float]]) -> list[list[Any]]:
    return [[logprob, token, None] for token, logprob in top]


def _finish(done: Completion) -> dict[str, Any]:
    if done.finish_reason == "length":
        return {"type": "length", "length": len(done.token_ids)}
    return {"type": "stop", "matched": done.token_ids[-1] if done.stop_reason == "eos" else done.stop_reason}


# -- over HTTP -------------------------------------------------------------------------------------------------------


class Front:
    """One HTTP/1.1 server over a machine; keep-alive, chunked streams, aborts on disconnect."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                body = json.loads(raw) if raw else None
                await self.answer(method, path.partition("?")[0], headers, body, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    async def answer(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        machine = self.machine
        admin = path in ("/abort_request", "/flush_cache", "/update_weights_from_disk")
        wanted = (machine.admin_key or machine.api_key) if admin else machine.api_key
        if wanted and headers.get("authorization") != f"Bearer {wanted}":
            return _reply(writer, 401, {"error": "Unauthorized"})
        if path == "/generate":
            return await self.generate(body, reader, writer)
        plain: dict[str, Callable[[], Any]] = {
            "/model_info": machine.model_info,
            "/get_model_info": machine.model_info,
            "/server_info": machine.server_info,
            "/get_server_info": machine.server_info,
        }
        if path in plain:
            return _reply(writer, 200, plain[path]())
        if path == "/abort_request":
            machine.abort(body["rid"])
            return _reply(writer, 200, None)
        if path == "/flush_cache":
            machine.updates.append("flush")
            return _reply(writer, 400 if machine.running else 200, "Cache flushed.")
        if path == "/update_weights_from_disk":
            from safetensors.torch import load_file

            folder = pathlib.Path(body["model_path"])
            known = {file.name for file in folder.iterdir()}
            assert {"config.json", "model.safetensors", "tokenizer.json"} <= known, known
            await machine.load(load_file(folder / "model.safetensors"), "disk")
            return _reply(writer, 200, {"success": True, "message": "Succeeded.", "num_paused_requests": 0})
        return _reply(writer, 404, {"detail": "Not Found"})

    async def generate(self, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        faults, body = self.machine.faults, {"rid": uuid.uuid4().hex, "stream": False, **body}
        if faults.statuses:
            status = faults.statuses.popleft()
            return _reply(writer, status, {"object": "error", "message": "out of luck", "code": status})
        die_after = faults.die_after.popleft() if faults.die_after else None
        gone = asyncio.create_task(_until_gone(reader, lambda: self.machine.abort(body["rid"])))
        last: dict[str, Any] = {}
        try:
            if body["stream"]:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
                if faults.stream_errors:
                    code = faults.stream_errors.popleft()
                    _chunk(writer, {"error": {"message": "no longer", "code": code, "retryable": False}})
                    return
            async for event in self.machine.generate(body):
                last = event
                if die_after is not None and event["meta_info"]["completion_tokens"] >= die_after:
                    writer.transport.abort()
                    raise ConnectionResetError("on purpose")
                if body["stream"]:
                    _chunk(writer, event)
            if not body["stream"]:
                _reply(writer, 200, last)
        except ValueError as exc:
            if not body["stream"]:
                return _reply(writer, 400, {"error": {"message": str(exc)}})
            _chunk(writer, {"error": {"message": str(exc), "type": "invalid_request_error", "code": 400}})
        finally:
            gone.cancel()
            if body["stream"] and not writer.is_closing():
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def _until_gone(reader: asyncio.StreamReader, abort: Callable[[], None]) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.05)
    abort()


def _chunk(writer: asyncio.StreamWriter, event: Any) -> None:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _reply(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


@contextmanager
def serving(machine: Machine, port: int = 0) -> Iterator[str]:
    """Serve `machine` from a thread with its own event loop; gives the base URL."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    front, url = Front(machine), ""

    async def start() -> asyncio.Server:
        return await asyncio.start_server(front.serve, "127.0.0.1", port)

    async def stop() -> None:
        server.close()
        for task in (*front.tasks, *machine.running.values()):
            task.cancel()
        await asyncio.sleep(0.05)
        await machine.engine.close()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set)
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# -- in process ------------------------------------------------------------------------------------------------------


def python_surface(machine: Machine, child_pids: list[int], options: dict[str, Any]) -> dict[str, types.ModuleType]:
    """Modules that look like the parts of `sglang` that are used; `options` becomes what the engine was given."""

    class Manager:
        def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
            machine.abort(rid)

        async def begin_weight_update(self, obj: Any, request: Any) -> tuple[bool, str]:
            return machine.bracket(True)

        async def end_weight_update(self, obj: Any, request: Any) -> tuple[bool, str]:
            return machine.bracket(False)

        async def update_weights_from_tensor(self, obj: Any, request: Any) -> tuple[bool, str]:
            assert obj.flush_cache
            return await machine.load(dict(obj.serialized_named_tensors[0]), "tensor")

    class Engine:
        def __init__(self, **kwargs: Any) -> None:
            if kwargs.get("quantization") == "nonsense":
                raise ValueError("Unknown quantization method: nonsense.")
            options.update(kwargs)
            self.tokenizer_manager = Manager()

        def get_model_info(self) -> dict[str, Any]:
            return {"model_path": options["model_path"], "is_generation": True}

        def get_server_info(self) -> dict[str, Any]:
            return machine.server_info()

        def get_all_child_pids(self) -> list[int]:
            return child_pids

        def shutdown(self) -> None:
            raise AssertionError("this kills every child of the process")

        def _serialize_tensors_per_rank(self, tensors: Any, load_format: str | None) -> list[Any]:
            return [tensors]

        async def async_generate(self, **body: Any) -> Any:
            body = {"rid": uuid.uuid4().hex, "stream": False, **body}
            if not body["stream"]:
                last = None
                async for event in machine.generate(body):
                    last = event
                return last
            return machine.generate(body)

    words = types.ModuleType("sglang.srt.managers.io_struct")
    for name in ("BeginWeightUpdateReqInput", "EndWeightUpdateReqInput", "UpdateWeightsFromTensorReqInput"):
        setattr(words, name, types.SimpleNamespace)
    entry = types.ModuleType("sglang.srt.entrypoints.engine")
    entry.Engine = Engine  # type: ignore[attr-defined]
    packages = ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.entrypoints")
    return {name: types.ModuleType(name) for name in packages} | {m.__name__: m for m in (words, entry)}


def install(modules: dict[str, types.ModuleType], setitem: Callable[[Any, str, Any], None]) -> None:
    """Put the modules where imports find them, by pytest's `monkeypatch.setitem`."""
    for name, module in modules.items():
        setitem(sys.modules, name, module)
