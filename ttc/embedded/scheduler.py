"""Continuous batching in one worker thread: admit, prefill, decode, finish.

A tick drains the inbox, admits prompts while rows are free, prefills what no earlier prompt left in the prefix cache
(equal prompts in one tick share one job, prompts with a long common start wait for the first of them), and decodes one
token for every row. A draw that ends gives its row back at once and leaves its keys and values in the prefix cache,
where a continuation finds them. An abort takes effect before the next step.

Everything here runs in the worker thread except `submit`, `post` and the callbacks, which run in the caller's loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch

from ttc.core import FinishReason, Usage
from ttc.embedded.alone import alone
from ttc.embedded.cache import PrefixTree, Segment
from ttc.embedded.decode import Decoder
from ttc.embedded.limits import Limits
from ttc.embedded.model import Body
from ttc.embedded.prefill import advance, score
from ttc.embedded.replies import Failed, Finished, Reply, Reported, Streamed, deliver
from ttc.embedded.requests import Draw, Job, Lead, Request
from ttc.embedded.sampler import Rows, Sampled, sample
from ttc.errors import EngineError

__all__ = ["Scheduler"]

T = TypeVar("T")

_GATHER_S = 0.0005
"""An idle worker waits this long after the first request, so that requests sent together are batched together."""


class Scheduler:
    """Owns the model, the cache and the worker thread."""

    def __init__(
        self,
        body: Body,
        make_decoder: Callable[[Body], Decoder],
        decode_text: Callable[[list[int]], str],
        *,
        limits: Limits,
        threads: int,
    ) -> None:
        self._make_decoder, self._decode_text = make_decoder, decode_text
        self._limits, self._threads = limits, threads
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outbox: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
        self._requests: set[Request] = set()
        self._pending: dict[tuple[int, ...], Job] = {}  # not yet prefilled, in order of arrival
        self._open: list[Job] = []  # prefilled, with draws that still wait for a row
        self._rows: list[Draw | Lead] = []
        self._table: Rows | None = None
        self._total = Usage()
        self._lock = threading.Lock()
        self._closed = False
        self.body = body
        self._decoder = alone(lambda: make_decoder(body))
        self._kv_bytes = body.dims.kv_bytes(body.dtype.itemsize)
        self._tree = PrefixTree(max(limits.cache_bytes // self._kv_bytes, 1))
        self._flops = self.body.dims.model_shape(self.body.dims.vocab).flops
        self._thread = threading.Thread(target=self._run, name="ttc-embedded", daemon=True)
        self._thread.start()

    # -- called from event loops -------------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` in the worker thread before its next step; raises EngineError after `close`."""
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
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

    def submit(self, request: Request) -> None:
        """Queue a request; its future is resolved in its own loop."""
        self.post(lambda: self._enqueue(request))

    def abort(self, request: Request) -> None:
        """Stop a request before the next step; its future is then resolved with what is done."""
        with contextlib.suppress(EngineError):
            self.post(lambda: self._abort(request))

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

    # -- for `call`: these run in the worker thread -------------------------------------------------------------------

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights and drop every cached key and value; raises EngineError while requests run."""
        if self._requests:
            raise EngineError(
                f"weights can be replaced only while the engine is idle: {len(self._requests)} requests run"
            )
        self.body.swap(state)
        self._tree.clear()
        self._decoder = self._make_decoder(self.body)

    def logprobs(self, ids: tuple[int, ...], start: int) -> tuple[tuple[float, ...], Usage]:
        """Log-probabilities of ids[start:] given what precedes them, and what computing them cost."""
        values, usage = score(ids, start, self.body, self._tree)
        with self._lock:
            self._total += usage
        return values, usage

    # -- the worker --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            running = True
            while running:
                try:
                    running = self._drain()
                    self._tick()
                except Exception as exc:  # whatever broke, nobody may be left waiting
                    self._fail(EngineError(f"the embedded engine failed: {type(exc).__name__}: {exc}"), exc)
                self._flush()
            self._fail(EngineError("the engine was closed"), None)
            self._flush()

    def _drain(self) -> bool:
        """Run queued actions, waiting for one when idle; False when it is time to stop."""
        if not (self._rows or self._pending or self._open):
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

    def _tick(self) -> None:
        self._admit()
        if self._rows:
            self._step()
        self._launch()

    def _enqueue(self, request: Request) -> None:
        self._requests.add(request)
        job = self._pending.get(request.ids)
        if job is None:
            job = self._pending[request.ids] = Job(request.ids)
        job.waiting += [Draw(request, job, d, key) for d, key in zip(request.draws, request.keys, strict=True)]
        job.room = max(job.room, len(job.ids) + request.sampling.max_tokens)
        if not request.draws:
            self._resolve(request)

    def _admit(self) -> None:
        """Prefill the oldest prompts for which rows are free, and give each a leading row."""
        if not self._pending:
            return
        used = len(self._rows) + sum(len(job.waiting) for job in self._open)
        longest = self._longest()
        chosen: list[Job] = []
        for job in self._pending.values():
            longest = max(longest, job.room)
            if used >= self._limits.rows(longest, self._kv_bytes):
                break
            used += max(len(job.waiting), 1)
            chosen.append(job)
        for job in advance(chosen, self.body, self._tree):
            del self._pending[job.ids]
            job.group = self._decoder.open(job.segment, len(job.waiting))
            self._decoder.add(job.group)
            self._rows.append(Lead(job))
            self._table = None

    def _longest(self) -> int:
        """Most tokens that any running prompt may come to, its new ones included."""
        return max((job.room for job in [*self._open, *(row.job for row in self._rows)]), default=0)

    def _step(self) -> None:
        """Decode one token for every row; then turn leading rows into open jobs."""
        rows, decoder = self._rows, self._decoder
        hidden = decoder.step([row.feed for row in rows], [row.position for row in rows])
        logits = self.body.logits(hidden)
        leads = [(i, row.job) for i, row in enumerate(rows) if isinstance(row, Lead)]
        if len(leads) < len(rows):
            live = [i for i, row in enumerate(rows) if not isinstance(row, Lead)]
            draws = [row for row in rows if not isinstance(row, Lead)]
            if self._table is None:
                self._table = _table(draws)
            picked = logits if not leads else logits[torch.tensor(live, device=logits.device)]
            result = sample(picked, self._table)
            np.add(self._table.positions, np.uint64(1), out=self._table.positions)
            self._take(draws, result)
        for i, job in leads:
            job.logits, job.last = logits[i].clone(), decoder.taken(i, 1)
            job.computed += 1
            decoder.absorb(i)
            self._open.append(job)
        for i in range(len(rows) - 1, -1, -1):
            row = rows[i]
            if isinstance(row, Lead) or row.ended:
                self._drop(i)

    def _launch(self) -> None:
        """Sample first tokens for waiting draws of open jobs while rows are free."""
        if not self._open:
            return
        starting: list[Draw] = []
        limit = self._limits.rows(self._longest(), self._kv_bytes)
        for job in self._open:
            free = max(limit - len(self._rows) - len(starting), 0)
            starting += job.waiting[:free]
            job.waiting = job.waiting[free:]
        if starting:
            logits = torch.stack([draw.job.logits for draw in starting if draw.job.logits is not None])
            for draw in starting:
                draw.computed = draw.job.charge()
            self._take(starting, sample(logits, _table(starting)))
            for draw in starting:
                if not draw.ended and draw.job.group is not None:
                    self._decoder.add(draw.job.group)
                    self._rows.append(draw)
                    draw.job.live += 1
            self._table = None
        opened, self._open = self._open, [job for job in self._open if job.waiting]
        for job in opened:
            self._release(job)

    def _take(self, draws: list[Draw], result: Sampled) -> None:
        """Append one sampled token to every draw and end those that are done."""
        tokens = result.tokens.tolist()
        if result.logprobs is not None and result.certainty is not None:
            for draw, logprob, certainty in zip(
                draws, result.logprobs.tolist(), result.certainty.tolist(), strict=True
            ):
                draw.logprobs.append(logprob)
                draw.certainty.append(certainty)
        for draw, token in zip(draws, tokens, strict=True):
            draw.ids.append(token)
            request = draw.request
            if request.on_tokens is not None:
                self._send(request, Streamed(request, (token,)))
            if token in request.rule.watch:
                reason = request.rule.reason(draw.ids)
                if reason is not None:
                    self._finish(draw, "stop", reason)
                    continue
            if len(draw.ids) >= request.sampling.max_tokens:
                self._finish(draw, "length", None)

    def _finish(self, draw: Draw, finish: FinishReason, reason: str | int | None) -> None:
        usage = draw.usage(self._flops, aborted=False)
        shown = draw.ids[:-1] if reason == "eos" else draw.ids
        draw.ended = True
        draw.request.done[draw.number] = draw.completion(self._decode_text(shown), finish, reason, usage)
        self._report(draw.request, usage)
        if len(draw.request.done) == len(draw.request.keys):
            self._resolve(draw.request)

    def _drop(self, row: int) -> None:
        """Free a row; a draw's keys and values go to the prefix cache."""
        entry = self._rows[row]
        job = entry.job
        if isinstance(entry, Draw):
            count = len(entry.ids) - 1
            if count > 0 and job.last is not None:
                kept = torch.cat((job.last, self._decoder.taken(row, count)), 3)
                self._tree.insert((*job.ids, *entry.ids[:-1]), Segment(job.segment, kept))
            job.live -= 1
        self._decoder.remove(row)
        last = self._rows.pop()
        if row < len(self._rows):
            self._rows[row] = last
        self._table = None
        if isinstance(entry, Draw):
            self._release(job)

    def _release(self, job: Job) -> None:
        """Close the job's group once nobody runs on it or waits for it."""
        if job.group is not None and not job.live and not job.waiting:
            self._decoder.close(job.group)
            job.group = job.logits = job.last = None

    # -- ends that are not normal ------------------------------------------------------------------------------------

    def _abort(self, request: Request) -> None:
        if request not in self._requests:
            return
        for row in range(len(self._rows) - 1, -1, -1):
            entry = self._rows[row]
            if isinstance(entry, Draw) and entry.request is request:
                self._cancel(entry)
                self._drop(row)
        for job in [*self._pending.values(), *self._open]:
            for draw in [draw for draw in job.waiting if draw.request is request]:
                draw.computed = job.charge()
                job.waiting.remove(draw)
                self._cancel(draw)
            if not job.waiting:
                self._pending.pop(job.ids, None)
        self._resolve(request)

    def _cancel(self, draw: Draw) -> None:
        draw.ended = True
        self._report(draw.request, draw.usage(self._flops, aborted=True))

    def _fail(self, error: EngineError, cause: Exception | None) -> None:
        """Fail every request and start from an empty state."""
        error.__cause__ = cause
        draws = [row for row in self._rows if isinstance(row, Draw) and not row.ended]
        jobs = {id(job): job for job in [*self._pending.values(), *self._open, *(row.job for row in self._rows)]}
        for job in jobs.values():
            draws += job.waiting
        for draw in draws:
            draw.computed += draw.job.charge()
            self._cancel(draw)
        for request in list(self._requests):
            self._requests.discard(request)
            self._send(request, Failed(request, error))
        self._rows, self._open, self._table = [], [], None
        self._pending.clear()
        self._decoder = self._make_decoder(self.body)

    # -- the way back ------------------------------------------------------------------------------------------------

    def _report(self, request: Request, usage: Usage) -> None:
        with self._lock:
            self._total += usage
        self._send(request, Reported(request, usage))

    def _resolve(self, request: Request) -> None:
        self._requests.discard(request)
        self._send(request, Finished(request))

    def _send(self, request: Request, event: Reply) -> None:
        self._outbox.setdefault(request.loop, []).append(event)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for loop, events in outbox.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed under us: nobody is left to tell
                loop.call_soon_threadsafe(deliver, events)


def _table(draws: list[Draw]) -> Rows:
    """The sampler's settings for `draws`, whose next token is at position + 1 of the newest."""
    settings = [draw.request.sampling for draw in draws]
    return Rows(
        temperature=np.array([s.temperature for s in settings], np.float32),
        top_p=np.array([s.top_p for s in settings], np.float32),
        top_k=np.array([s.top_k or 0 for s in settings], np.int64),
        keys=np.array([draw.key for draw in draws], np.uint64),
        positions=np.array([draw.position + 1 for draw in draws], np.uint64),
        wants_logprobs=any(s.logprobs for s in settings),
    )
