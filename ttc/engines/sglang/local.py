"""SGLang's engine in this process: `sglang.Engine` on a thread with its own event loop; the only file importing sglang.

`Engine` is bound to the first event loop that uses it and cannot be called from a running one, so it has a loop of its
own for its whole life; requests are passed to it thread-safely. Its scheduler and detokenizer are child processes of
this one. New weights go through `update_weights_from_tensor` inside the begin / end calls that SGLang 0.5.23 requires.

Workarounds: `Engine.shutdown` kills every child of this process, a verifier's workers included (here only its own are
killed), and a dying scheduler sends this process SIGQUIT, which would end it silently (here it becomes an EngineError,
if the engine was made on the main thread). `SGLANG_RETURN_ORIGINAL_LOGPROB` is set for the children: without it,
log-probabilities are those of the sampling temperature. Left out: several nodes, speculative decoding, adapters; a
server at `base_url` can have them all.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from ttc.core import Json
from ttc.engines.sglang.wire import PendingCall, ServerInfo, until_done
from ttc.errors import ConfigError, EngineError, MissingExtra

T = TypeVar("T")

_RAW_LOGPROBS = "SGLANG_RETURN_ORIGINAL_LOGPROB"
_DIED = "sglang's scheduler process died; its output is above"
_CLOSED = "the engine was closed"


class LocalServer:
    """Implements `SGLangServer` over one `sglang.Engine`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Start the engine with these `ServerArgs`.

        Raises:
            MissingExtra: SGLang is not installed.
            ConfigError: SGLang does not run here, or refuses an option.
        """
        os.environ.setdefault(_RAW_LOGPROBS, "1")
        make = _engine_class()
        self._loop = asyncio.new_event_loop()
        self._closed = self._dead = False
        self._waiting: set[asyncio.Future[None]] = set()
        started: Future[tuple[Any, Json]] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(make, dict(options), started), name="sglang", daemon=True
        )
        self._restore = _on_sigquit(self._died)
        others = _children()
        self._thread.start()
        try:
            self._engine, described = self._wait(started)
        except Exception as exc:  # a third-party start-up may raise anything
            self._restore()
            _kill(_children() - others)
            raise ConfigError(f"sglang does not start: {type(exc).__name__}: {exc}") from exc
        self._info = ServerInfo.read(self._engine.get_model_info(), described, "the engine in this process")

    @property
    def info(self) -> ServerInfo:
        """See `SGLangServer`."""
        return self._info

    @property
    def served(self) -> Mapping[str, str]:
        """See `SGLangServer`."""
        return {}

    @property
    def senders(self) -> tuple[Callable[[Mapping[str, Json]], Json], ...]:
        """See `SGLangServer`."""
        return (lambda body: self._wait(self._submit(self._engine.async_generate(**body))),)

    async def send(self, call: PendingCall) -> None:
        """See `SGLangServer`; nothing is retried: a failure in this process would repeat."""
        if self._dead or self._closed:
            raise EngineError(_DIED if self._dead else _CLOSED)
        call.begin()
        rid, stream = uuid.uuid4().hex, call.on_ids is not None
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()
        self._waiting.add(broken)

        def take(raw: Json) -> None:
            try:
                call.take(raw)
            except Exception as exc:  # including the caller's callback: it fails this request only
                _break(broken, exc)

        def pass_on(raw: Json) -> None:
            loop.call_soon_threadsafe(take, raw)

        body = {**call.body, "rid": rid, "stream": stream}
        work = asyncio.wrap_future(self._submit(self._consume(body, pass_on)))
        try:
            await until_done(call, asyncio.ensure_future(_first(work, broken)), lambda: self._abort(rid))
        finally:
            self._waiting.discard(broken)
            if not (work.done() or self._dead or self._closed):
                await self._abort(rid)
            broken.cancel()

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `SGLangServer`."""
        words = importlib.import_module("sglang.srt.managers.io_struct")
        tensors = [(name, value.detach()) for name, value in state.items()]
        payload = self._engine._serialize_tensors_per_rank(tensors, None)

        async def update() -> None:
            manager = self._engine.tokenizer_manager
            _succeed(await manager.begin_weight_update(words.BeginWeightUpdateReqInput(), None))
            try:
                update = words.UpdateWeightsFromTensorReqInput(serialized_named_tensors=payload, flush_cache=True)
                _succeed(await manager.update_weights_from_tensor(update, None))
            finally:
                _succeed(await manager.end_weight_update(words.EndWeightUpdateReqInput(), None))

        await asyncio.shield(asyncio.wrap_future(self._submit(update())))

    async def close(self) -> None:
        """See `SGLangServer`."""
        if not self._closed:
            self._closed = True
            self._break_all(_CLOSED)
            self._restore()
            await asyncio.get_running_loop().run_in_executor(None, self._stop)

    # -- the engine's thread -----------------------------------------------------------------------------------------

    def _serve(self, make: Callable[..., Any], options: dict[str, Any], started: Future[tuple[Any, Json]]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            engine = make(**options)
            started.set_result((engine, engine.get_server_info()))
        except BaseException as exc:  # including SystemExit, since the waiting thread must be notified
            started.set_exception(exc if isinstance(exc, Exception) else EngineError(repr(exc)))
        else:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_others())
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, future: Future[T]) -> T:
        """Wait for a result, or for the death of the scheduler that would produce it."""
        while True:
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if future.done():
                    raise
                if self._dead:
                    raise EngineError(_DIED) from None

    async def _abort(self, rid: str) -> None:
        async def act() -> None:
            self._engine.tokenizer_manager.abort_request(rid=rid)

        # limited, since the engine may be closing at this moment
        await asyncio.wait({asyncio.wrap_future(self._submit(act()))}, timeout=1)

    async def _consume(self, body: Mapping[str, Json], take: Callable[[Json], None]) -> None:
        """Run one request in the engine's loop, passing on its answers in order."""
        try:
            answer = await self._engine.async_generate(**body)
            if body["stream"]:
                async for raw in answer:
                    take(_frozen(raw))
            else:
                take(answer)
        except Exception as exc:  # SGLang raises ValueError, fastapi.HTTPException and more
            raise EngineError(f"sglang failed: {type(exc).__name__}: {exc}") from exc

    def _died(self) -> None:
        """Handle SIGQUIT; runs in a signal handler."""
        self._dead = True
        self._break_all(_DIED)

    def _break_all(self, why: str) -> None:
        """Fail all running requests."""
        for broken in tuple(self._waiting):
            broken.get_loop().call_soon_threadsafe(_break, broken, EngineError(why))

    def _stop(self) -> None:
        atexit.unregister(self._engine.shutdown)
        watchdog = getattr(self._engine.tokenizer_manager, "_subprocess_watchdog", None)
        if watchdog is not None:
            watchdog.stop()
        _kill(set(self._engine.get_all_child_pids()))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)


def _engine_class() -> Callable[..., Any]:
    """Import lazily: SGLang takes seconds and many GB of dependencies."""
    try:
        importlib.import_module("sglang")
    except ModuleNotFoundError as exc:
        if exc.name != "sglang":
            raise ConfigError(f"sglang is installed but cannot be imported: {exc}") from exc
        raise MissingExtra("sglang", "sglang") from exc
    try:
        engine: Callable[..., Any] = importlib.import_module("sglang.srt.entrypoints.engine").Engine
    except (ImportError, OSError, RuntimeError) as exc:
        raise ConfigError(
            f"sglang is installed but cannot be loaded here ({type(exc).__name__}: {exc}); its wheels need an NVIDIA "
            "GPU: start it where there is one and set engine.base_url=http://HOST:30000"
        ) from exc
    return engine


def _on_sigquit(died: Callable[[], None]) -> Callable[[], None]:
    """Call `died` at SIGQUIT, on the main thread only; returns a function that undoes this."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def handle(number: int, frame: FrameType | None) -> None:
        died()

    before = signal.signal(signal.SIGQUIT, handle)

    def restore() -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, before)

    return restore


def _break(broken: asyncio.Future[None], exc: Exception) -> None:
    if not broken.done():
        broken.set_exception(exc)


async def _first(work: asyncio.Future[None], broken: asyncio.Future[None]) -> None:
    """The result of `work`, unless `broken` fails first."""
    await asyncio.wait({work, broken}, return_when=asyncio.FIRST_COMPLETED)
    await (broken if broken.done() else work)


async def _cancel_others() -> None:
    """Cancel the other tasks of this loop: SGLang's own, and requests that a dead scheduler will never answer."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=5)


def _frozen(raw: Mapping[str, Json]) -> Json:
    """A copy of one stream event: SGLang continues to append to the lists inside it."""
    meta = dict(raw["meta_info"])
    pairs = meta.get("output_token_logprobs")
    if pairs is not None:
        meta["output_token_logprobs"] = list(pairs)
    return {**raw, "output_ids": list(raw["output_ids"]), "meta_info": meta}


def _children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def _kill(pids: set[int]) -> None:
    """Kill these processes and wait for those that are children of this one."""
    children = [child for child in multiprocessing.active_children() if child.pid in pids]
    for pid in pids:
        with suppress(ProcessLookupError):  # with several copies, schedulers are children of a child
            os.kill(pid, signal.SIGKILL)
    for child in children:
        child.join(timeout=30)


def _succeed(result: tuple[bool, str]) -> None:
    success, message = result
    if not success:
        raise EngineError(f"sglang did not take the new weights: {message}")
