"""The two drivers of vLLM: its engine core stepped by a thread of this process, or `AsyncLLM` with its own processes.

`InProcess` is the default on a CPU: it starts four times faster than `AsyncLLM` and needs no traffic between processes.
One thread owns vLLM; actions reach it through a queue and run between two steps, so an abort is exact: the tokens of
the last step are the last. It supports one worker only.

`Background` is for GPUs and for every kind of parallelism, on one machine or many. Its event loop runs in a thread of
this process, so that an engine can be created anywhere, outlives the caller's loop and is not delayed by it. Cost: one
thread switch per request.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ttc.concurrent import new_event_loop
from ttc.engines.vllm.requests import Counts, SequenceRequest
from ttc.errors import EngineError

T = TypeVar("T")


class Background:
    """Implements `Driver`; `build` makes the `AsyncLLM` inside the loop that will run it."""

    def __init__(self, build: Callable[[], Any], counts: Counts) -> None:
        self.counts = counts
        self._live: dict[str, SequenceRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = new_event_loop()
        started: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(build, started), name="ttc-vllm", daemon=True)
        self._thread.start()
        self._engine: Any = started.result()
        self.max_context = int(self._engine.model_config.max_model_len)
        self.cache_block = int(self._engine.vllm_config.cache_config.block_size)

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Driver`."""
        self._post(lambda: self._add(requests), requests)

    def abort(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Driver`."""
        self._post(lambda: self._spawn(self._abort(requests)), ())

    async def call_workers(self, method: str, arguments: Mapping[str, Any]) -> list[Any]:
        """See `Driver`."""
        return list(await self._await(self._engine.collective_rpc(method, kwargs=dict(arguments))))

    async def reset_prefix_cache(self) -> bool:
        """See `Driver`."""
        return bool(await self._await(self._engine.reset_prefix_cache()))

    def close(self) -> None:
        """See `Driver`; may be called twice."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _post(self, action: Callable[[], None], requests: Sequence[SequenceRequest]) -> None:
        if not self._closed:
            self._loop.call_soon_threadsafe(action)
            return
        for request in requests:
            request.fail(EngineError("the engine was closed"))

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop)))
        except Exception as exc:
            raise EngineError(f"vllm failed: {type(exc).__name__}: {exc}") from exc

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self, build: Callable[[], Any], started: concurrent.futures.Future[Any]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._engine = self._loop.run_until_complete(_start(build))
        except BaseException as exc:
            started.set_exception(exc)
            self._loop.close()
            return
        started.set_result(self._engine)
        self._loop.run_forever()
        for request in list(self._live.values()):
            request.fail(EngineError("the engine was closed"))
        self._engine.shutdown()
        self._engine = None
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _add(self, requests: Sequence[SequenceRequest]) -> None:
        for request in requests:
            self._live[request.name] = request
            self._spawn(self._serve(request))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: SequenceRequest) -> None:
        try:
            outputs = self._engine.generate(request.prompt, request.params, request.name, lora_request=request.lora)
            async for output in outputs:
                request.take(output)
        except Exception as exc:  # whatever failed, every waiting request must be answered
            request.fail(EngineError(f"vllm failed: {type(exc).__name__}: {exc}"))
        finally:
            self._live.pop(request.name, None)

    async def _abort(self, requests: Sequence[SequenceRequest]) -> None:
        names = [request.name for request in requests if request.name in self._live]
        if names:
            await self._engine.abort(names)


async def _start(build: Callable[[], Any]) -> Any:
    engine = build()
    # Requested once now, so that a later request is registered before its first await and an abort finds it.
    await engine.get_supported_tasks()
    return engine


class InProcess:
    """Implements `Driver`; `build` makes the `LLMEngine` inside the thread that will step it."""

    def __init__(self, build: Callable[[], Any], counts: Counts) -> None:
        self.counts = counts
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._live: dict[str, SequenceRequest] = {}
        self._dead: EngineError | None = None
        self._engine: Any = None
        started: concurrent.futures.Future[tuple[int, int]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(build, started), name="ttc-vllm", daemon=True)
        self._thread.start()
        self.max_context, self.cache_block = started.result()

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Driver`."""
        self._put(lambda: self._add(requests))

    def abort(self, requests: Sequence[SequenceRequest]) -> None:
        """See `Driver`."""
        self._put(lambda: self._abort(requests))

    async def call_workers(self, method: str, arguments: Mapping[str, Any]) -> list[Any]:
        """See `Driver`."""
        results: list[Any] = await self._call(lambda: self._engine.collective_rpc(method, kwargs=dict(arguments)))
        return results

    async def reset_prefix_cache(self) -> bool:
        """See `Driver`."""
        return bool(await self._call(lambda: self._engine.reset_prefix_cache()))

    def close(self) -> None:
        """See `Driver`; may be called twice."""
        self._inbox.put(None)
        self._thread.join()

    async def _call(self, function: Callable[[], Any]) -> Any:
        """Run `function` in the thread, between two steps."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def action() -> None:
            if self._dead is not None:
                future.set_exception(self._dead)
                return
            try:
                future.set_result(function())
            except Exception as exc:
                future.set_exception(EngineError(f"vllm failed: {type(exc).__name__}: {exc}"))

        self._put(action)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _put(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)
        if self._dead is not None:  # the thread may have drained the queue for the last time
            self._drain_dead()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self, build: Callable[[], Any], started: concurrent.futures.Future[tuple[int, int]]) -> None:
        try:
            self._engine = build()
        except BaseException as exc:
            started.set_exception(exc)
            return
        config = self._engine.vllm_config
        started.set_result((int(config.model_config.max_model_len), int(config.cache_config.block_size)))
        try:
            while self._drain():
                if self._engine.has_unfinished_requests():
                    self._engine.step()  # outputs arrive in the sinks
        except Exception as exc:  # whatever failed, every waiting request must be answered
            self._dead = EngineError(f"vllm failed: {type(exc).__name__}: {exc}")
        self._dead = self._dead or EngineError("the engine was closed")
        for request in list(self._live.values()):
            request.fail(self._dead)
        self._live.clear()
        with contextlib.suppress(Exception):  # a failed core may fail again when it is shut down
            _shut_down(self._engine.engine_core)
        self._engine = None
        self._drain_dead()

    def _drain(self) -> bool:
        """Run queued actions, waiting for one when idle; False when it is time to stop."""
        if not self._engine.has_unfinished_requests():
            action = self._inbox.get()
            if action is None:
                return False
            action()
        with contextlib.suppress(queue.Empty):
            while True:
                action = self._inbox.get_nowait()
                if action is None:
                    return False
                action()
        return True

    def _drain_dead(self) -> None:
        """Run actions that arrive after the end; adding a request then fails it."""
        with contextlib.suppress(queue.Empty):
            while True:
                action = self._inbox.get_nowait()
                if action is not None:
                    action()

    def _add(self, requests: Sequence[SequenceRequest]) -> None:
        for request in requests:
            if self._dead is not None:
                request.fail(self._dead)
                continue
            try:
                name = self._engine.add_request(request.name, request.prompt, request.params, lora_request=request.lora)
            except Exception as exc:  # only this request failed: the core continues
                request.fail(EngineError(f"vllm refuses the request: {type(exc).__name__}: {exc}"))
                self._engine.abort_request([request.name])
                continue
            self._live[request.name] = request
            # Outputs go to a sink instead of the result of step(), so that an abort returns its partial output too.
            self._engine.output_processor.request_states[name].queue = _Sink(request, self._live)

    def _abort(self, requests: Sequence[SequenceRequest]) -> None:
        names = [request.name for request in requests if request.name in self._live]
        if names and self._engine is not None:
            self._engine.abort_request(names)


def _shut_down(client: Any) -> None:
    """Free the model and its cache.

    The core's own shutdown would also destroy vLLM's process groups, which all vLLM engines in this process share.
    """
    client._finalizer.detach()
    client.engine_core.model_executor.shutdown()
    client.engine_core.scheduler.shutdown()


class _Sink:
    """Replaces vLLM's output queue of one request."""

    def __init__(self, request: SequenceRequest, live: dict[str, SequenceRequest]) -> None:
        self._request, self._live = request, live

    def put(self, output: Any) -> None:
        """Pass on an output; called while vLLM processes the outputs of a step, or an abort.

        A request that fails after `add_request` has an exception in place of an output.
        """
        if isinstance(output, Exception):
            self._live.pop(self._request.name, None)
            self._request.fail(EngineError(f"vllm failed: {type(output).__name__}: {output}"))
            return
        if output.finished:
            self._live.pop(self._request.name, None)
        self._request.take(output)
