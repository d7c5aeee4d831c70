"""vLLM's `AsyncLLM`: its core and its workers in processes of their own, on one machine or many.

For GPUs and for every kind of parallelism. Its event loop runs in a thread here, so that an engine may be made
anywhere, outlives the caller's loop and is not held up by it. Cost: one thread hop per request.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ttc.concurrent import new_event_loop
from ttc.engines.vllm.counts import Counts
from ttc.engines.vllm.requests import Request
from ttc.errors import EngineError

__all__ = ["Background"]

T = TypeVar("T")


class Background:
    """Implements `Driver`; `build` makes the `AsyncLLM` inside the loop that will serve it."""

    def __init__(self, build: Callable[[], Any], counts: Counts) -> None:
        self.counts = counts
        self._live: dict[str, Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = new_event_loop()
        started: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(build, started), name="ttc-vllm", daemon=True)
        self._thread.start()
        self._engine: Any = started.result()
        self.max_context = int(self._engine.model_config.max_model_len)

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Driver`."""
        self._post(lambda: self._add(requests), requests)

    def abort(self, requests: Sequence[Request]) -> None:
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

    def _post(self, action: Callable[[], None], requests: Sequence[Request]) -> None:
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

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._live[request.name] = request
            self._spawn(self._serve(request))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request) -> None:
        try:
            outputs = self._engine.generate(request.prompt, request.params, request.name, lora_request=request.lora)
            async for output in outputs:
                request.take(output)
        except Exception as exc:  # whatever broke, nobody may be left waiting
            request.fail(EngineError(f"vllm failed: {type(exc).__name__}: {exc}"))
        finally:
            self._live.pop(request.name, None)

    async def _abort(self, requests: Sequence[Request]) -> None:
        names = [request.name for request in requests if request.name in self._live]
        if names:
            await self._engine.abort(names)


async def _start(build: Callable[[], Any]) -> Any:
    engine = build()
    # Asked once now, so that later a request is registered before anything can be awaited: an abort then finds it.
    await engine.get_supported_tasks()
    return engine
