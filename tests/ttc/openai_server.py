"""A small real OpenAI-compatible server on loopback, over any of our engines, with switches and faults.

It speaks HTTP/1.1 over sockets from a thread of its own, streams server-sent events, notices when a client hangs up and
aborts in its engine, and keeps what it was asked. `Behaviour` says what it can do (like vLLM, like a plain chat
service), `faults` what goes wrong with the next requests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from ttc.core import Completion, Engine, ExtraSampling, LogprobEngine, Message, Prompt, Sampling, StreamingEngine, Usage
from ttc.errors import PromptTooLong, TTCError

KNOWN = {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"}
KNOWN |= {"stream", "stream_options", "logprobs", "n", "reasoning_effort"}


@dataclass
class Behaviour:
    """What the server can do; the defaults are those of `vllm serve`."""

    model: str = "served"
    completions: bool = True
    chat: bool = True
    ids: bool = True
    scores: bool = True
    grammars: bool = True
    prefill: bool = True
    forgets_think: bool = False
    """A continued message is shown without the think block that the template opens for a new one."""
    strict: bool = False
    """Refuses fields that OpenAI's API has not."""
    refuses: tuple[str, ...] = ()
    """Fields that are answered by 400; `stream` where it is true, `temperature` where it is not 1."""
    whole: bool = False
    """Answers by one JSON object, also where a stream was asked for."""
    parts: bool = False
    """The content of a chunk is a list of parts, as Mistral's models that think send it."""
    finish: str | None = None
    """The finish reason of every answer."""
    page: bool = False
    """Answers every completion by a page."""
    tells: Mapping[str, Any] | None = None
    """Answers every completion by this object."""
    usage: bool = True
    tells_stops: bool = True
    heeds_stop_ids: bool = True
    reasoning: str | None = None
    """Name of the field that carries what stands before the end-of-thinking marker."""
    limit_field: str = "max_tokens"
    default_limit: int | None = None
    """Of a request without a limit; with one the field may have either name."""
    max_model_len: int | None = None
    key: str | None = None
    root: str | None = None
    """The folder that the model was loaded from, by its card; one that says so has vLLM's routes beside its API."""
    version: str = "0.32.0"
    most_choices: int = 128
    """Of one request that does not stream; a server that ignores `n` gives 1."""
    miscount: int = 0
    """Added to the completion tokens that are reported."""
    pause_s: float = 0.0
    """Between two chunks."""
    pricing: Mapping[str, str] | None = None
    """What the model's card says of prices."""
    updates: bool = False
    """Has vLLM's routes for its developers, and takes new weights."""
    rate: int | None = None
    """Requests for text in `rate_s` seconds; further ones are told to come again after as long, with 429."""
    rate_s: float = 1.0
    lists: bool | None = False
    """`/models` is a bare list, as Together's is; None: a plain 500, as of `transformers serve` without a cache."""
    largest_seed: int | None = None
    """Larger ones are answered by 400, as Gemini does, in a list."""
    fewest: int = 0
    """Requests that allow fewer tokens are answered by 400, as by a model that must have thought before it is cut."""
    slots: int | None = None
    """As llama.cpp's own server with so many slots: ids only in the `__verbose` of whole answers, stops by text."""
    whole_usage: bool = False
    """As llama-cpp-python's: counts whole answers only, and refuses a top_k below 0 by 500."""
    deaf: bool = False
    """Ignores the switch of the template, and heeds the effort, as Ollama does."""


@dataclass
class Fault:
    """What goes wrong with one request: `status` before the stream, or `kind` after so many chunks."""

    kind: str = "status"
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "something broke"
    after: int = 2
    finish: str = "stop"


class OpenAIServer:
    """A context manager; `url` is its base URL. Everything after the start is safe to read from the test's thread."""

    def __init__(self, make_engine: Callable[[], Engine], behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.faults: deque[Fault] = deque()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.port, self.live, self.most_live, self.connections = port, 0, 0, 0
        self.die_after: int | None = None
        self.weight_version = "default"
        self.refused = 0
        self._taken: deque[float] = deque()
        self._make_engine, self._unseeded = make_engine, itertools.count(1000)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def generations(self) -> list[dict[str, Any]]:
        """The bodies of what was asked, oldest first."""
        return [body for body in self.requests if body]

    def counters(self) -> Usage:
        """The engine's own totals."""
        return self.engine.counters()

    def kill(self) -> None:
        """Close everything at once, streams included; may be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)

    async def _serve(self) -> None:
        self.engine = self._make_engine()
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is done."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        self.headers.append(headers)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw) if raw else {}
        self.requests.append(body)
        if self.die_after is not None and len(self.requests) >= self.die_after:
            self._stop.set()
            await asyncio.sleep(60)
        if path == "/models" and self.behaviour.slots is not None:
            path = "/v1/models"
        key = self.behaviour.key
        if key is not None and headers.get("authorization") != f"Bearer {key}":
            return self._json(writer, 401, _error(f"Incorrect API key provided: {headers.get('authorization')}"))
        if path == "/v1/models" and self.behaviour.lists is None:
            return self._json(writer, 500, "Internal Server Error", {"content-type": "text/plain"})
        if path == "/v1/models" and method == "GET":
            card = {"id": self.behaviour.model, "object": "model", "max_model_len": self.behaviour.max_model_len}
            card |= {} if self.behaviour.root is None else {"root": self.behaviour.root, "owned_by": "vllm"}
            card |= {} if self.behaviour.pricing is None else {"pricing": self.behaviour.pricing}
            card |= {} if self.behaviour.slots is None else {"owned_by": "llamacpp", "max_model_len": None}
            return self._json(writer, 200, [card] if self.behaviour.lists else {"object": "list", "data": [card]})
        if path.startswith("/props") and self.behaviour.slots is not None:
            is_named = path == f"/props?model={self.behaviour.model}"  # else a server of several models tells of none
            settings = {"n_ctx": self.behaviour.max_model_len if is_named else 0, "params": {}}
            props = {"default_generation_settings": settings, "total_slots": self.behaviour.slots}
            return self._json(writer, 200, props | {"model_path": "served.gguf", "build_info": "b6000-abc"})
        if path == "/version" and method == "GET" and self.behaviour.root is not None:
            return self._json(writer, 200, {"version": self.behaviour.version})
        if path == "/tokenize" and self.behaviour.root is not None:
            return self._json(writer, 200, {"tokens": self._chat_prompt(body).token_ids})  # type: ignore[union-attr]
        if path == "/detokenize" and self.behaviour.root is not None:
            return self._json(writer, 200, {"prompt": self.engine.decode(body["tokens"])})
        if self.behaviour.updates and path in _UPDATES:
            return self._json(writer, 200, await self._update(path, body))
        routes = {
            "/v1/completions": (self.behaviour.completions, self._completion_prompt),
            "/v1/chat/completions": (self.behaviour.chat, self._chat_prompt),
        }
        served, read = routes.get(path, (False, self._chat_prompt))
        if not served:
            return self._json(writer, 404, {"detail": "Not Found"})
        if self._is_too_many():
            self.refused += 1
            wish = {"retry-after-ms": str(1000 * self.behaviour.rate_s)}
            return self._json(writer, 429, _error("Rate limit reached for requests"), wish)
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and fault.kind == "status":
            return self._json(writer, fault.status, _error(fault.message), fault.headers)
        if fault is not None and fault.kind == "hang":
            await asyncio.sleep(60)
        unknown = sorted(set(body) - KNOWN)
        if self.behaviour.strict and unknown:
            return self._json(writer, 400, _error(f"Unrecognized request argument supplied: {unknown[0]}"))
        if self.behaviour.page:
            return self._json(writer, 200, "<html>log in</html>", {"content-type": "text/html"})
        if self.behaviour.tells is not None:
            return self._json(writer, 200, self.behaviour.tells)
        bad = [name for name in self.behaviour.refuses if body.get(name, _FREE[name]) != _FREE[name]]
        if bad:
            return self._json(writer, 400, _error(f"{bad[0]} is not supported with this model"))
        if body.get("seed", 0) > (self.behaviour.largest_seed or body.get("seed", 0)):
            return self._json(writer, 400, [_error(f"Invalid value at 'seed' (TYPE_INT32), {body['seed']}")])
        if self.behaviour.whole_usage and body.get("top_k", 0) < 0:
            return self._json(writer, 500, _error("Input should be greater than or equal to 0"))
        if self.behaviour.slots is not None and body.get("n", 1) > self.behaviour.slots:
            most, asked = self.behaviour.slots, body["n"]
            text = f"Field 'n': Value must be between 1 <= value <= {most}, but got {asked}"
            return self._json(writer, 400, _error(text))
        if body.get(self.behaviour.limit_field, self.behaviour.fewest) < self.behaviour.fewest:
            return self._json(writer, 400, _error("Could not finish. Please try again with higher max_tokens."))
        limits = sorted({"max_tokens", "max_completion_tokens"} & set(body))
        if self.behaviour.default_limit is not None:
            body[self.behaviour.limit_field] = body[limits[0]] if limits else self.behaviour.default_limit
        elif limits != [self.behaviour.limit_field]:
            return self._json(writer, 400, _error(f"Use {self.behaviour.limit_field!r} instead."))
        prompt = read(body)
        if prompt is None:
            return self._json(writer, 400, _error("prompt: a string is expected"))
        return await self._stream(reader, writer, body, prompt, fault, chat="messages" in body)

    def _is_too_many(self) -> bool:
        """Whether the last `rate_s` hold as many requests as are allowed; one that is refused does not count."""
        if self.behaviour.rate is None:
            return False
        now = time.monotonic()
        while self._taken and self._taken[0] <= now - self.behaviour.rate_s:
            self._taken.popleft()
        if len(self._taken) >= self.behaviour.rate:
            return True
        self._taken.append(now)
        return False

    async def _update(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What vLLM answers where its weights are replaced."""
        if path == "/collective_rpc":
            from safetensors.torch import load_file

            assert body["method"] == "ttc_load_weights"
            await self.engine.load_weights(load_file(f"{body['kwargs']['path']}/model.safetensors"))  # type: ignore[attr-defined]
            return {"results": ["0.0"]}
        self.weight_version = body.get("new_version", self.weight_version)
        return {"weight_version": self.weight_version, "success": True}

    def _completion_prompt(self, body: Mapping[str, Any]) -> Prompt | None:
        given = body["prompt"]
        if isinstance(given, str):
            ids = self.engine.encode(given)
            return Prompt(text=given, token_ids=ids, rendered_len=len(ids), rendered_chars=len(given))
        if not self.behaviour.ids:
            return None
        ids = tuple(given)
        return Prompt(text=self.engine.decode(ids), token_ids=ids, rendered_len=len(ids))

    def _chat_prompt(self, body: Mapping[str, Any]) -> Prompt | None:
        thinking = None if self.behaviour.deaf else body.get("chat_template_kwargs", {}).get("enable_thinking")
        thinking = {None: thinking, "none": False}.get(body.get("reasoning_effort"), True)
        turns = [Message(turn["role"], turn["content"]) for turn in body["messages"]]
        if not (self.behaviour.prefill and body.get("continue_final_message")):
            return self.engine.render(turns, thinking)
        said = turns.pop().content
        prompt = self.engine.render(turns, thinking)
        if self.behaviour.forgets_think:
            bare = prompt.text.removesuffix("<think></think>").removesuffix("<think>")
            ids = self.engine.encode(bare)
            prompt = replace(prompt, text=bare, token_ids=ids, rendered_len=len(ids), rendered_chars=len(bare))
        return prompt.extend(self.engine.encode(said), said)

    async def _stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        body: Mapping[str, Any],
        prompt: Prompt,
        fault: Fault | None,
        *,
        chat: bool,
    ) -> bool:
        """Send the answer as events; a client that hangs up cancels the draw."""
        limit = body[self.behaviour.limit_field]
        longest = self.behaviour.max_model_len
        if longest is not None and len(prompt.token_ids or ()) + limit > longest:
            text = f"This model's maximum context length is {longest} tokens. However, you requested more."
            return self._json(writer, 400, _error(text))
        if "prompt_logprobs" in body:
            return await self._score(writer, prompt, int(body["prompt_logprobs"]))
        send = self._send if body.get("stream") and not self.behaviour.whole else self._send_whole

        async def live() -> bool:
            self.live += 1
            self.most_live = max(self.most_live, self.live)
            try:
                return await send(writer, body, prompt, fault, chat)
            finally:
                self.live -= 1

        work = asyncio.ensure_future(live())
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and gone.done() and not gone.result():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        return not work.cancelled() and work.exception() is None and work.result()

    async def _score(self, writer: asyncio.StreamWriter, prompt: Prompt, k: int) -> bool:
        """The log-probabilities of a prompt, in vLLM's shape."""
        if not (self.behaviour.scores and isinstance(self.engine, LogprobEngine)):
            return self._json(writer, 400, _error("only streams here"))
        ids = prompt.token_ids or ()
        values = await self.engine.logprobs(ids, 1, _ignore)
        known = [{str(token): {"logprob": value}} for token, value in zip(ids[1:], values, strict=True)]
        if k:
            tops = await self.engine.top_logprobs(ids, 1, k, _ignore)  # type: ignore[attr-defined]
            for entry, top in zip(known, tops, strict=True):
                entry.update({str(token): {"logprob": value} for token, value in top.items()})
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": [None, *known]}
        return self._json(writer, 200, {"choices": [choice]})

    async def _send(
        self, writer: asyncio.StreamWriter, body: Mapping[str, Any], prompt: Prompt, fault: Fault | None, chat: bool
    ) -> bool:
        started, sent = False, 0
        try:
            events = _Events(self.behaviour, body, prompt, self.engine, chat)
            async with aclosing(_draw(self.engine, prompt, _sampling(body, self.behaviour))) as tokens:
                async for item in tokens:
                    if not started:
                        head = (
                            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                        )
                        writer.write(head.encode())
                        started = True
                    for event in events.of(item, fault):
                        if fault is not None and sent >= fault.after and not self._fault(writer, fault):
                            return False
                        _event(writer, json.dumps(event))
                        sent += 1
                        await writer.drain()
                        await asyncio.sleep(self.behaviour.pause_s)
        except PromptTooLong as exc:
            return self._json(writer, 400, _error(f"maximum context length: {exc}"))
        except TTCError as exc:
            if started:
                raise
            return self._json(writer, 400, _error(str(exc)))
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _send_whole(
        self, writer: asyncio.StreamWriter, body: Mapping[str, Any], prompt: Prompt, fault: Fault | None, chat: bool
    ) -> bool:
        """All choices at once; without a seed no two requests draw the same."""
        sampling = _sampling({"seed": next(self._unseeded), **body}, self.behaviour)
        await asyncio.sleep(self.behaviour.pause_s)
        draws = range(min(int(body.get("n", 1)), self.behaviour.most_choices))
        choices, total = [], 0
        for item in await self.engine.generate(prompt, sampling, draws, _ignore):
            events = _Events(self.behaviour, body, prompt, self.engine, chat)
            events.of(Piece(item.token_ids, item.logprobs or (None,) * len(item.token_ids)), fault)
            (choice,) = events.of(item, fault)[0]["choices"]
            if "delta" in choice:
                choice["message"] = choice.pop("delta")
            choices.append(choice | {"index": len(choices)})
            total += len(item.token_ids)
        details = {"cached_tokens": 0}
        read, written = len(prompt.token_ids or ()), total + self.behaviour.miscount
        usage: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        usage["prompt_tokens_details"] = details
        counts: dict[str, Any] = {"usage": usage} if self.behaviour.usage else {}
        if self.behaviour.slots is not None and body.get("verbose"):
            counts["__verbose"] = _native(item, body)
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": "cmpl-1", "object": kind, "created": 0, "model": self.behaviour.model}
        return self._json(writer, 200, head | {"choices": choices[::-1], **counts})

    def _fault(self, writer: asyncio.StreamWriter, fault: Fault) -> bool:
        """Do what the fault says; whether to go on with the stream."""
        if fault.kind == "drop":
            writer.transport.abort()
        elif fault.kind == "close":
            writer.write(b"0\r\n\r\n")
        elif fault.kind == "nested":
            _event(writer, json.dumps(_error(fault.message, fault.status)))
        elif fault.kind == "flat":
            _event(writer, json.dumps({"object": "error", "message": fault.message, "code": fault.status}))
        elif fault.kind == "ends":
            _event(writer, json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": fault.finish}]}))
            _event(writer, "[DONE]")
        elif fault.kind == "shape":
            _event(writer, '{"choices": 7}')
        elif fault.kind == "garbage":
            _event(writer, '{"choices": [')
        else:
            return True
        return False

    def _json(
        self, writer: asyncio.StreamWriter, status: int, value: object, headers: Mapping[str, str] | None = None
    ) -> bool:
        text = json.dumps(value).encode()
        named = {"content-type": "application/json", "content-length": len(text), **(headers or {})}
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {content}" for name, content in named.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + text)
        return True


_FREE = {"stream": False, "temperature": 1.0, "seed": None, "stream_options": None, "reasoning_effort": None}
"""What the fields that a server may refuse have where they say nothing."""
_UPDATES = ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/weight_info")


def _native(done: Completion, body: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp says of an answer in its own words."""
    kind = "eos" if done.num_eos else {"stop": "word", "length": "limit"}.get(done.finish_reason, "none")
    return {
        "tokens": list(done.token_ids) if body.get("return_tokens") else [],
        "tokens_predicted": len(done.token_ids),
        "stop_type": kind,
        "stopping_word": done.stop_reason if kind == "word" else "",
    }


def _error(message: str, code: int = 400) -> dict[str, Any]:
    return {"error": {"message": message, "type": "error", "param": None, "code": code}}


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    raw = f"data: {data}\n\n".encode()
    writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")


def _sampling(body: Mapping[str, Any], behaviour: Behaviour) -> Sampling:
    top_k = body.get("top_k")
    return ExtraSampling(
        grammar=body.get("structured_outputs", {}).get("grammar") if behaviour.grammars else None,
        temperature=body.get("temperature", 1.0),
        top_p=body.get("top_p", 1.0),
        top_k=top_k if top_k is not None and top_k > 0 else None,
        min_p=body.get("min_p", 0.0),
        max_tokens=body[behaviour.limit_field],
        stop=tuple(body.get("stop") or ()),
        stop_token_ids=tuple(body.get("stop_token_ids") or ()) if behaviour.heeds_stop_ids else (),
        seed=body.get("seed", 0),
        logprobs=body.get("logprobs") is not None,
    )


@dataclass(frozen=True)
class Piece:
    """Some new ids of a draw and their log-probabilities."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()


async def _draw(engine: Engine, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Piece | Completion]:
    """The pieces as they come, then the completion; closing it aborts the draw.

    Log-probabilities are known only with the whole draw, so with them the pieces come at the end.
    """
    queue: asyncio.Queue[Piece | Completion | BaseException] = asyncio.Queue()

    async def work() -> None:
        try:
            if isinstance(engine, StreamingEngine) and not sampling.logprobs:
                done = await engine.stream(prompt, sampling, 0, _ignore, lambda ids: queue.put_nowait(Piece(ids)))
            else:
                (done,) = await engine.generate(prompt, sampling, range(1), _ignore)
                values = done.logprobs or (None,) * len(done.token_ids)
                for token, value in zip(done.token_ids, values, strict=True):
                    queue.put_nowait(Piece((token,), (value,)))
            queue.put_nowait(done)
        except Exception as exc:
            queue.put_nowait(exc)

    task = asyncio.create_task(work())
    try:
        while True:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, Completion):
                return
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _ignore(usage: Usage) -> None:
    """The engine keeps its own totals."""


class _Events:
    """From ids to the chunks of one of the two APIs. The newest ids are held back for the chunk that ends the draw."""

    def __init__(
        self, behaviour: Behaviour, body: Mapping[str, Any], prompt: Prompt, engine: Engine, chat: bool
    ) -> None:
        self._behaviour, self._body, self._prompt, self._chat = behaviour, body, prompt, chat
        self._decode, self._encode = engine.decode, engine.encode
        self._held = Piece()
        self._ids: tuple[int, ...] = ()
        self._text = ""

    def of(self, item: Piece | Completion, fault: Fault | None) -> list[dict[str, Any]]:
        if not isinstance(item, Completion):
            held, self._held = self._held, item
            return [self._chunk(held, None, None)] if held.ids else []
        stop = item.stop_reason if item.stop_reason != "eos" and self._behaviour.tells_stops else None
        finish = item.finish_reason if self._behaviour.finish is None else self._behaviour.finish
        finish = fault.finish if fault is not None and fault.kind == "finish" else finish
        assert item.token_ids[len(self._ids) :] == self._held.ids
        last = self._chunk(self._held, finish, stop, item)
        if self._behaviour.slots is not None and self._body.get("verbose") and self._body.get("stream"):
            last["__verbose"] = _native(item, {})
        if fault is not None and fault.kind == "null":
            last["choices"] = [{"index": 0, "delta": {"content": None}, "finish_reason": "stop"}]
        if fault is not None and fault.kind == "no_choice":
            last["choices"] = []
        return [last] if fault is not None and fault.kind == "no_usage" else [last, *self._usage(item)]

    def _chunk(
        self, piece: Piece, finish: str | None, stop: str | int | None, whole: Completion | None = None
    ) -> dict[str, Any]:
        ids, said = piece.ids, self._text
        self._ids += ids
        kept = self._ids[:-1] if whole is not None and whole.num_eos else self._ids
        text = self._cut(self._decode(kept), whole)
        new, self._text = text[len(said) :], text
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "stop_reason": stop}
        if self._chat:
            choice["delta"] = {"role": "assistant", **self._delta(said, new)}
        else:
            choice["text"] = new
        if self._behaviour.slots is not None:
            choice.pop("stop_reason")
            choice["logprobs"] = self._rows(piece, whole)
            return {"id": "x", "model": self._behaviour.model, "choices": [choice]}
        if self._behaviour.ids and self._body.get("return_token_ids"):
            choice["token_ids"] = list(ids)
        if self._body.get("logprobs") is not None and not self._chat:
            tokens = [self._decode([i]) for i in ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(piece.logprobs)}
        return {"id": "x", "model": self._behaviour.model, "choices": [choice]}

    def _rows(self, piece: Piece, whole: Completion | None) -> dict[str, Any] | None:
        """Log-probabilities as llama.cpp gives them: without the tokens that completed a stop string."""
        ids = piece.ids
        if whole is not None and whole.stop_reason in (self._body.get("stop") or ()):
            ids = ids[: -len(self._encode(str(whole.stop_reason)))]
        rows = [{"id": token, "logprob": value} for token, value in zip(ids, piece.logprobs, strict=False)]
        return {"content": rows} if rows and self._body.get("logprobs") else None

    def _cut(self, text: str, whole: Completion | None) -> str:
        """Hold back what may become a stop string, and take that off again, as OpenAI's own servers do."""
        stops = self._body.get("stop") or ()
        if self._body.get("include_stop_str_in_output") and not self._behaviour.strict:
            return text
        if whole is None:
            return text[: max(len(self._text), len(text) - max(map(len, stops), default=0))]
        return text[: text.index(str(whole.stop_reason))] if whole.stop_reason in stops else text

    def _delta(self, said: str, new: str) -> dict[str, Any]:
        """Reasoning in its field until the end of thinking, the rest in content."""
        name = self._behaviour.reasoning
        if self._behaviour.parts:
            thought, answer = self._halves(said, new)
            thinking = {"type": "thinking", "thinking": [{"type": "text", "text": thought}]}
            return {"content": [*([thinking] if thought else []), {"type": "text", "text": answer}]}
        if name is None or self._prompt.think_state != "open":
            return {"content": new}
        thought, answer = self._halves(said, new)
        return {name: thought or None, "content": answer or None}

    def _halves(self, said: str, new: str) -> tuple[str, str]:
        """What is new of the thought and of the answer."""
        if self._prompt.think_state != "open":
            return "", new
        thought_before, _, answer_before = said.partition("</think>")
        thought, _, answer = (said + new).partition("</think>")
        return thought[len(thought_before) :], answer[len(answer_before) :]

    def _usage(self, item: Completion) -> list[dict[str, Any]]:
        if (
            not self._behaviour.usage
            or self._behaviour.whole_usage
            or not (self._body.get("stream_options") or {}).get("include_usage")
        ):
            return []
        inside = self._prompt.think_state == "open"
        thinking = len(self._text.partition("</think>")[0]) if inside and self._behaviour.reasoning else None
        usage = {
            "prompt_tokens": len(self._prompt.token_ids or ()),
            "completion_tokens": len(item.token_ids) + self._behaviour.miscount,
            "prompt_tokens_details": {"cached_tokens": item.usage.cached},
            "completion_tokens_details": None if thinking is None else {"reasoning_tokens": thinking},
        }
        return [{"id": "x", "model": self._behaviour.model, "choices": [], "usage": usage}]
