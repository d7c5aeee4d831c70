"""The embedded engine in several processes: each holds the model and decodes its share of the draws.

Two threads of one process do not decode a small model twice as fast, since the steps between the matrix products hold
the GIL. Two processes do. Randomness is keyed by path, so it does not matter where a draw runs: results are those of
one process on the same machine, bit for bit in batch-invariant mode. Cost: weights, caches and start-up once per
process, and a prompt is computed once more where its draws are split. Left out: several GPUs per process, and
restarting a replica that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from pathlib import Path as Folder
from typing import Any

import torch

from ttc.concurrent import gather, settle
from ttc.core import Capabilities, Completion, Path, Prompt, Sampling, Usage, UsageSink
from ttc.engines.embedded.core.batch import default_kv_bytes
from ttc.engines.embedded.core.model import pick_device
from ttc.engines.embedded.routing import Router
from ttc.engines.embedded.wire import (
    Abort,
    Call,
    CallEnd,
    Drop,
    Generate,
    Load,
    NewTokens,
    Report,
    ScoreCall,
    UsageReport,
    receive,
    send,
)
from ttc.engines.shared.shape import read_config
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import OnTokens, StreamingTokenEngine, check_start
from ttc.errors import ConfigError, EngineError, TTCError

_END_S = 10.0
"""A replica that has not ended this long after the request to stop is killed."""


def start(folder: Folder, model: str | None, options: Mapping[str, Any], processes: int) -> ReplicatedEngine:
    """Start replicas with `options` of `ttc.engines.embedded.engine.embedded`; returns when all have loaded the model.

    Raises:
        ConfigError: the options cannot be used.
        EngineError: a replica died while it started.
    """
    read_config(folder)  # reports a missing folder or file before any process is started
    place = pick_device(str(options["device"]))
    shares = _on_a_cpu(options["kv_bytes"], processes) if place.type == "cpu" else _on_gpus(place, processes)
    replicas = [Replica({**options, "model": model, **share}) for share in shares]
    try:
        ready = [replica.ready() for replica in replicas]
    except TTCError:
        for replica in replicas:
            replica.close()
        raise
    capabilities = replace(ready[0], max_concurrency=sum(each.max_concurrency for each in ready))
    return ReplicatedEngine(Text(folder), capabilities, replicas)


def _on_a_cpu(kv_bytes: int | None, processes: int) -> list[dict[str, Any]]:
    """Options that give each replica its share of the memory."""
    share = (kv_bytes or default_kv_bytes(torch.device("cpu"))) // processes
    return [{"device": "cpu", "kv_bytes": share}] * processes


def _on_gpus(place: torch.device, processes: int) -> list[dict[str, Any]]:
    """Options that give each replica its own GPU, from the first on."""
    have = torch.cuda.device_count()
    if str(place) != "cuda" or processes > have:
        raise ConfigError(
            f"embedded: processes={processes} needs a GPU for each process, from cuda:0 on, and there are {have}: set "
            f'processes={have} and device="cuda", or device="{place}" without processes'
        )
    return [{"device": f"cuda:{index}"} for index in range(processes)]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that a replica has not ended yet; the future belongs to `loop`."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    on_usage: UsageSink
    on_tokens: Callable[[tuple[int, ...]], None] | None = None

    def take(self, reports: Sequence[Report]) -> None:
        """Deliver reports, in the loop of the call."""
        for report in reports:
            if isinstance(report, UsageReport):
                self.on_usage(report.usage)
            elif isinstance(report, NewTokens) and self.on_tokens is not None:
                self.on_tokens(report.ids)
            elif isinstance(report, CallEnd) and not self.future.done():
                self._end(report)

    def _end(self, ended: CallEnd) -> None:
        if ended.how == "failed":
            self.future.set_exception(ended.value)
        elif ended.how == "cancelled":
            self.future.cancel()
        else:
            self.future.set_result(ended.value)


class Replica:
    """The parent's end of one process: sends calls; a thread delivers reports to the event loops that wait for them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._connection, theirs = Pipe()
        # without the working folder, which may hold a file ttc.py
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        environment = {**os.environ, "OMP_NUM_THREADS": str(options["threads"]), "PYTHONPATH": path}
        with theirs:
            command = [sys.executable, "-P", "-m", "ttc.engines.embedded.replica", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the terminal is the parent's to handle
            )
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._total = Usage()
        self._gone = ""
        self._reader = threading.Thread(target=self._read, name="ttc-replica-reader", daemon=True)
        send(self._connection, dict(options))

    def ready(self) -> Capabilities:
        """Wait until the model is loaded; raises the error of loading it, or EngineError when the process died."""
        try:
            message = receive(self._connection)
        except (EOFError, OSError) as exc:
            raise EngineError(f"a replica of the embedded engine died as it started ({self._exit()})") from exc
        if isinstance(message, TTCError):
            raise message
        self._reader.start()
        return message  # type: ignore[no-any-return]  # the other end is this package

    async def call(
        self, call: Call, on_usage: UsageSink, on_tokens: Callable[[tuple[int, ...]], None] | None = None
    ) -> Any:
        """Make a call and wait for its result; cancelling aborts it. Raises EngineError when the replica is gone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        number = next(self._numbers)
        with self._lock:
            if self._gone:
                raise EngineError(self._gone)
            self._waiting[number] = _Waiting(loop, future, on_usage, on_tokens)
            self._send(number, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with self._lock:
                if number in self._waiting:
                    self._send(number, Abort())
            await settle([future])
            raise

    def post(self, message: Drop) -> None:
        """Send a message without an answer; ignored when the replica is gone."""
        with self._lock:
            if not self._gone:
                self._send(next(self._numbers), message)

    def counters(self) -> Usage:
        """The sum of all usage reports."""
        with self._lock:
            return self._total

    def close(self) -> None:
        """End the process; waiting calls fail with EngineError. May be called twice."""
        with self._lock:
            self._gone = self._gone or "the engine is closed"
            if not self._connection.closed:
                with contextlib.suppress(OSError):
                    send(self._connection, None)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader.is_alive():
            self._reader.join()  # the pipe ends with the process
        self._connection.close()
        self._fail()

    def _send(self, number: int, call: Call) -> None:
        with contextlib.suppress(OSError):  # the reader notices the end of the pipe and fails all waiting calls
            send(self._connection, (number, call))

    def _read(self) -> None:
        """Receive reports until the pipe ends."""
        while True:
            try:
                reports: list[tuple[int, Report]] = receive(self._connection)
            except (EOFError, OSError):
                break
            self._sort(reports)
        with self._lock:
            self._gone = self._gone or f"a replica of the embedded engine died ({self._exit()})"
        self._fail()

    def _sort(self, reports: Sequence[tuple[int, Report]]) -> None:
        for number, group in itertools.groupby(reports, key=lambda pair: pair[0]):
            own_reports = [report for _, report in group]
            with self._lock:
                waiting = self._waiting[number]
                self._total = sum(
                    (report.usage for report in own_reports if isinstance(report, UsageReport)), self._total
                )
                if any(isinstance(report, CallEnd) for report in own_reports):
                    del self._waiting[number]
            _deliver(waiting, own_reports)

    def _fail(self) -> None:
        with self._lock:
            left, self._waiting = self._waiting, {}
        for waiting in left.values():
            _deliver(waiting, [CallEnd("failed", EngineError(self._gone))])

    def _exit(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"exit code {self._process.wait(_END_S)}"
        return "still running"


def _deliver(waiting: _Waiting, reports: Sequence[Report]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no receiver
        waiting.loop.call_soon_threadsafe(waiting.take, reports)


class ReplicatedEngine(StreamingTokenEngine):
    """Implements Engine, StreamingEngine, TopLogprobEngine, LogprobEngine and WeightSync over replicas."""

    def __init__(self, text: Text, capabilities: Capabilities, replicas: Sequence[Replica]) -> None:
        super().__init__(text, capabilities)
        self._replicas = replicas
        self._router = Router(len(replicas))

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it."""
        values: tuple[float, ...] = await self._score(ScoreCall(tuple(token_ids), start), on_usage)
        return values

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """See `ttc.core.TopLogprobEngine`; `start` as in `logprobs`."""
        rows: tuple[Mapping[int, float], ...] = await self._score(ScoreCall(tuple(token_ids), start, k), on_usage)
        return rows

    async def _score(self, call: ScoreCall, on_usage: UsageSink) -> Any:
        check_start(len(call.ids), call.start)
        self._check_room(len(call.ids), 0)
        replica = self._router.idlest()
        with self._router.running([(replica, range(1))]):
            return await self._replicas[replica].call(call, on_usage)

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; raises EngineError while requests run, before any replica has changed."""
        running = sum(self._router.load)
        if running:
            raise EngineError(f"weights can be replaced only while the engine is idle: {running} draws run")
        call = Load({name: tensor.detach().cpu() for name, tensor in state.items()})
        await gather(replica.call(call, lambda usage: None) for replica in self._replicas)

    def prune(self, problem_id: str, path: Path) -> None:
        """See `ttc.core.SearchAware`."""
        for replica in self._replicas:
            replica.post(Drop(problem_id, path))

    def release(self, problem_id: str) -> None:
        """See `ttc.core.SearchAware`."""
        for replica in self._replicas:
            replica.post(Drop(problem_id, None))

    def counters(self) -> Usage:
        """See `ttc.core.Engine`."""
        return sum((replica.counters() for replica in self._replicas), Usage())

    async def close(self) -> None:
        """See `ttc.core.Engine`; may be called twice."""
        loop = asyncio.get_running_loop()
        await gather(_in_thread(loop, replica.close) for replica in self._replicas)

    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        self._check(prompt, sampling)
        parts = self._router.split(prompt, draws) if draws else []
        message = _plain(prompt)
        # counted before the first await, so that from here on new weights are refused
        with self._router.running(parts):
            shares = await gather(self._part(message, sampling, *part, on_usage, on_tokens) for part in parts)
        return [completion for completions in shares for completion in completions]

    async def _part(
        self,
        prompt: Prompt,
        sampling: Sampling,
        replica: int,
        draws: range,
        on_usage: UsageSink,
        on_tokens: OnTokens | None,
    ) -> list[Completion]:
        call = Generate(prompt, sampling, draws, on_tokens is not None)
        completions: list[Completion] = await self._replicas[replica].call(call, on_usage, on_tokens)
        return completions


async def _in_thread(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    await loop.run_in_executor(None, action)


def _plain(prompt: Prompt) -> Prompt:
    """The prompt without the fields that a replica does not need."""
    return replace(prompt, text="", messages=(), logprobs=None, certainty=None)
