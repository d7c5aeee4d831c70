"""Continuous batching in one worker thread: an inbox of requests, one tick after another, and replies.

A tick drains the inbox, admits prompts while rows are free, prefills what the prefix cache lacks (equal prompts in one
tick share one job, prompts with a long common start wait for the first of them), and decodes one token for every row
(`ttc.engines.embedded.core.batch`). This module handles how requests come in, when a draw ends, what it has cost and
how results return. An abort takes effect before the next step.

Everything here runs in the worker thread except `submit`, `post` and the callbacks, which run in the caller's loop.

While a scheduler runs, all objects that existed at its start are excluded from Python's cyclic garbage collector
(`gc.freeze`), as in vLLM: torch and its dependencies are hundreds of thousands of objects that never become garbage,
and each collection that visits them stops all threads for a while.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import torch

from ttc.core import FinishReason, Path, Usage
from ttc.engines.embedded.core.batch import Batch, BatchLimits
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.prefill import Reader, memory_errors, score
from ttc.engines.embedded.core.requests import (
    Failed,
    Finished,
    GenerateRequest,
    LiveDraw,
    Outbox,
    Reported,
    StreamedTokens,
)
from ttc.errors import EngineError

T = TypeVar("T")

MakeBatch: TypeAlias = Callable[[Any, Callable[[Any], Any], BatchLimits, Callable[[LiveDraw], None]], Batch]
"""Makes a batch from a body, a factory of its decoder, limits, and the callback of a new token."""

_GATHER_S = 0.0005
"""An idle worker waits this long after the first request, so that requests sent together are batched together."""


class Scheduler:
    """Owns the model, the cache and the worker thread."""

    def __init__(
        self,
        body: Body,
        make_decoder: Callable[[Any], Any],
        decode_text: Callable[[list[int]], str],
        *,
        limits: BatchLimits,
        threads: int,
        make_batch: MakeBatch = Batch,
    ) -> None:
        """`make_batch` fits the decoder: `Batch`, or `DeviceBatch` where rows are kept on the device."""
        self.body = body
        self._decode_text, self._threads = decode_text, threads
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outbox = Outbox()
        self._requests: set[GenerateRequest] = set()
        self._batch = make_batch(body, make_decoder, limits, self._check_end)
        self._total = Usage()
        self._lock = threading.Lock()
        self._closed = False
        self._flops = self.body.dims.model_shape(self.body.dims.vocab).flops
        self._thread = threading.Thread(target=self._run, name="ttc-embedded", daemon=True)
        self._thread.start()
        gc.freeze()

    @property
    def extras(self) -> frozenset[str]:
        """See `Batch.extras`."""
        return self._batch.extras

    # -- called from event loops -------------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` in the worker thread before its next step; raises EngineError after `close` and in a fork."""
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            if not self._thread.is_alive():
                raise EngineError("this process is a fork of the engine's, without its thread: make an engine here")
            self._inbox.put(action)

    def call(self, action: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Run `action` in the worker thread between two steps; the future carries its result or its error."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(action())
            except Exception as exc:
                future.set_exception(exc)

        self.post(run)
        return future

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request; its future is resolved in its own loop."""
        self.post(lambda: self._enqueue(request))

    def abort(self, request: GenerateRequest) -> None:
        """Stop a request before the next step; its future is then resolved with what is done."""
        with contextlib.suppress(EngineError):
            self.post(lambda: self._abort(request))

    def prune(self, problem_id: str, path: Path) -> None:
        """Drop what a problem has drawn at `path` and below, before the next step."""
        with contextlib.suppress(EngineError):
            self.post(lambda: self._batch.tenants.prune(problem_id, path))

    def release(self, problem_id: str) -> None:
        """End a problem, before the next step."""
        with contextlib.suppress(EngineError):
            self.post(lambda: self._batch.tenants.release(problem_id))

    def counters(self) -> Usage:
        """Totals of every report so far."""
        with self._lock:
            return self._total

    def close(self) -> None:
        """Stop the thread; waiting requests fail with EngineError. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        gc.unfreeze()  # weights may be freed from here on; another running engine only becomes a little slower

    # -- for `call`: these run in the worker thread -------------------------------------------------------------------

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights and drop every cached key and value; raises EngineError while requests run."""
        if self._requests:
            raise EngineError(
                f"weights can be replaced only while the engine is idle: {len(self._requests)} requests run"
            )
        self.body.swap(state)
        self._batch.forget()

    def score(self, ids: tuple[int, ...], start: int, read: Reader[T]) -> tuple[list[T], Usage]:
        """Apply `read` to the predictions of ids[start:]; returns its values and the usage."""
        values, usage = score(ids, start, self.body, self._batch.tree, read)
        with self._lock:
            self._total += usage
        return values, usage

    # -- the worker --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode(), self.body.place():
            running = True
            while running:
                try:
                    running = self._drain()
                    with memory_errors():
                        self._batch.tick()
                except MemoryError as exc:
                    if not self._batch.shrink():
                        self._give_up(EngineError(f"out of memory with a single sequence: {exc}"), exc)
                except Exception as exc:  # whatever failed, every waiting request must be answered
                    self._fail(EngineError(f"the embedded engine failed: {type(exc).__name__}: {exc}"), exc)
                self._outbox.flush()
            self._fail(EngineError("the engine was closed"), None)
            self._outbox.flush()
        # the batch refers back to this object: without the cycle, weights are freed with their last reference
        del self._batch

    def _drain(self) -> bool:
        """Run queued actions, waiting for one when idle; False when it is time to stop."""
        if self._batch.idle:
            action = self._inbox.get()
            if action is None:
                return False
            action()
            time.sleep(_GATHER_S)
        with contextlib.suppress(queue.Empty):
            while True:
                action = self._inbox.get_nowait()
                if action is None:
                    return False
                action()
        return True

    def _enqueue(self, request: GenerateRequest) -> None:
        self._requests.add(request)
        self._batch.add(request)
        if not request.draws:
            self._resolve(request)

    # -- how a draw ends ---------------------------------------------------------------------------------------------

    def _check_end(self, draw: LiveDraw) -> None:
        """Stream the newest token of a draw, and end the draw if it is the last."""
        request, token = draw.request, draw.ids[-1]
        if draw.fault is not None:
            self._fault(draw, draw.fault)
            return
        if request.on_tokens is not None:
            self._outbox.send(StreamedTokens(request, (token,)))
        if token in request.rule.watch:
            reason = request.rule.reason(draw.ids)
            if reason is not None:
                self._finish(draw, "stop", reason)
                return
        if len(draw.ids) >= request.sampling.max_tokens:
            self._finish(draw, "length", None)

    def _finish(self, draw: LiveDraw, finish: FinishReason, reason: str | int | None) -> None:
        usage = draw.usage(self._flops, aborted=False)
        visible = draw.ids[:-1] if reason == "eos" else draw.ids
        draw.ended, draw.final = True, reason == "eos"
        draw.request.done[draw.number] = draw.completion(self._decode_text(visible), finish, reason, usage)
        self._report(draw.request, usage)
        if len(draw.request.done) == len(draw.request.keys):
            self._resolve(draw.request)

    def _abort(self, request: GenerateRequest) -> None:
        if request not in self._requests:
            return
        for draw in self._batch.remove(request):
            self._cancel(draw)
        self._resolve(request)

    def _cancel(self, draw: LiveDraw) -> None:
        draw.ended = True
        self._report(draw.request, draw.usage(self._flops, aborted=True))

    def _fault(self, draw: LiveDraw, error: EngineError) -> None:
        """End a draw that cannot continue, and fail its request before the next step.

        Only then can the other rows of the request be removed.
        """
        self._cancel(draw)
        with contextlib.suppress(EngineError):  # `close` fails the request instead
            self.post(lambda: self._refuse(draw.request, error))

    def _refuse(self, request: GenerateRequest, error: EngineError) -> None:
        """Fail one request; the others continue."""
        if request not in self._requests:
            return
        for draw in self._batch.remove(request):
            self._cancel(draw)
        self._requests.discard(request)
        self._outbox.send(Failed(request, error))

    def _fail(self, error: EngineError, cause: Exception | None) -> None:
        """Fail every request and start from an empty state."""
        error.__cause__ = cause
        for draw in self._batch.clear():
            self._cancel(draw)
        for request in list(self._requests):
            self._requests.discard(request)
            self._outbox.send(Failed(request, error))

    def _give_up(self, error: EngineError, cause: Exception) -> None:
        """Fail the requests of the only running sequence, for which memory is too short; the others continue."""
        requests = self._batch.stuck()
        if not requests:
            self._fail(error, cause)
        error.__cause__ = cause
        for request in requests:
            self._refuse(request, error)

    def _report(self, request: GenerateRequest, usage: Usage) -> None:
        with self._lock:
            self._total += usage
        self._outbox.send(Reported(request, usage))

    def _resolve(self, request: GenerateRequest) -> None:
        self._requests.discard(request)
        self._outbox.send(Finished(request))
