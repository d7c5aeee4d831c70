"""Any verifier as a service: known cases first, then verdicts with a wall limit, a memory, metrics and an audit log.

    service = Service(math(), audit=Audit(path))
    service.start()                                   canaries; raises VerifierError naming the one that fails
    verdict = await service.verify(target, submission)        in any event loop
    verdict = service.submit(target, submission).result()     in any thread

A service is a verifier itself. A verdict comes in every case: an exception of the verifier is `error`, one that does
not end within `wall_s` is `timeout`. What was asked before is remembered by target, submission and
version, the latest `memory` of them; a `timeout` or an `error` never is.

The wall limit is a backstop behind the verifier's own, shorter limits. It covers waiting for its workers, so by default
it is what all requests at once would take one after the other, and no verdict is late only because others are slow.
Cost: 0.1 to 0.2 ms per verdict.

Verdicts are made in a thread with an event loop of its own, which can be given up when one hangs. A verdict past its
wall limit is taken back. If it was waiting, its task is cancelled; if its own code holds the loop, the loop is left
behind and everything else that was in it moves, with new limits, to a new one. So only the request that hangs is a
timeout. Which code holds the loop is known, because each step of each request is marked. Code that holds the whole
interpreter (one long call into C, such as a pathological `re` match) stops every thread; such work belongs into a
killable worker.

Its metrics are verdicts by status, how long they took and how many had none. Latency runs from the request to its
verdict, waiting included; work is what the verifier reports. Quantiles are those of the latest `KEPT` verdicts (nearest
rank). What was remembered counts by status, but not in the times. Left out: several verifiers behind one service,
network access.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from ttc.config.plugins import blamed
from ttc.config.values import above, at_least
from ttc.core import Json, Submission, TargetLike, Verdict, Verifier, written
from ttc.errors import ConfigError, PluginError, VerifierError
from ttc.verifiers.shared.contract import Canary, Card, card_of

KEPT = 10_000


class VerdictLog(Protocol):
    """Where every verdict is written with what it was made of, such as an `Audit`."""

    def log(
        self,
        label: Json,
        digest: str,
        target: TargetLike,
        submission: Submission,
        verifier: str,
        verdict: Verdict,
        remembered: bool,
    ) -> None:
        """Write one verdict; may be called from any thread."""
        ...

    def close(self) -> None:
        """Bring everything to where it stays."""
        ...


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds; all 0 without any verdict."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot. Rates are shares of all verdicts, those remembered included; 0 without any."""

    count: int
    by_status: Mapping[str, int]
    remembered: int
    timeout_rate: float
    error_rate: float
    latency_s: Quantiles
    work_s: Quantiles


class VerdictCounter:
    """Counts verdicts; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_status: Counter[str] = Counter()
        self._remembered = 0
        self._latency: deque[float] = deque(maxlen=KEPT)
        self._work: deque[float] = deque(maxlen=KEPT)

    def add(self, verdict: Verdict, latency_s: float, *, remembered: bool) -> None:
        """Count one verdict."""
        with self._lock:
            self._by_status[verdict.status] += 1
            self._remembered += remembered
            if not remembered:
                self._latency.append(latency_s)
                self._work.append(verdict.seconds)

    def snapshot(self) -> Metrics:
        """Return the figures as they are now."""
        with self._lock:
            by_status = dict(sorted(self._by_status.items()))
            remembered, latency, work = self._remembered, list(self._latency), list(self._work)
        count = sum(by_status.values())
        return Metrics(
            count,
            by_status,
            remembered,
            by_status.get("timeout", 0) / max(count, 1),
            by_status.get("error", 0) / max(count, 1),
            quantiles(latency),
            quantiles(work),
        )


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return the nearest-rank quantiles of `values`."""
    if not values:
        return Quantiles(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    return Quantiles(*(ordered[max(math.ceil(share * len(ordered)), 1) - 1] for share in (0.5, 0.9, 0.99, 1.0)))


CLOSE_S = 10.0
START_S = 30.0
"""Time for workers to start; all of the wall limit for a verifier without a card."""
_PASSING = ("timeout", "error")
"""Statuses that another try may change, so they are not remembered."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One request and the future that its caller holds."""

    target: TargetLike
    submission: Submission
    key: str
    label: Json
    began: float
    answer: Future[Verdict]


def digest(target: TargetLike, submission: Submission) -> str:
    """A hash of what a verifier is given: 32 hexadecimal digits.

    Raises:
        ConfigError: the target is not JSON data, or nested too deeply.
    """
    try:
        row = json.dumps([target, submission.text, submission.thinking, submission.finish_reason], sort_keys=True)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"target is not JSON data: {exc}") from exc
    return hashlib.blake2b(row.encode(), digest_size=16).hexdigest()


class Service:
    """See the module docstring."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        memory: int = 10_000,
        concurrency: int = 16,
        wall_s: float | None = None,
        audit: VerdictLog | None = None,
    ) -> None:
        """Serve `verifier`, which is closed with the service, as is `audit`.

        Args:
            verifier: what decides.
            memory: how many verdicts are remembered; 0 for none.
            concurrency: how many requests the verifier has at once; the others wait, their limit has not begun.
            wall_s: seconds after which a verdict is a `timeout`; None: START_S and `concurrency` times the card's.
            audit: where every verdict is logged.
        """
        card = card_of(verifier)
        wall_s = START_S + concurrency * (card.max_s if card else 0.0) if wall_s is None else wall_s
        at_least("verification service", 0, memory=memory)
        at_least("verification service", 1, concurrency=concurrency)
        above("verification service", 0, wall_s=wall_s)
        self.name, self.version = verifier.name, verifier.version
        self._verifier, self._audit = verifier, audit
        self._memory: OrderedDict[str, Verdict] = OrderedDict()
        self._memory_size, self._wall_s = memory, wall_s
        self._lane: _LoopThread = _LoopThread(wall_s, self._too_late)
        self._meter = VerdictCounter()
        self._lock = threading.Lock()
        self._free, self._waiting = concurrency, deque[_Job]()
        self._closed = False

    @property
    def card(self) -> Card | None:
        """The verifier's; None when it declares none."""
        return card_of(self._verifier)

    def start(self) -> None:
        """Run the canaries of the card, all at once, and wait for them; they stand in no log and no metrics.

        Raises:
            VerifierError: one got another verdict than is known; names it.
        """
        canaries = self.card.canaries if self.card else ()
        futures = [self._lane.submit(partial(self._ask, canary.target, canary.submission)) for canary in canaries]
        for canary, future in zip(canaries, futures, strict=True):
            self._check(canary, future.result())

    def submit(self, target: TargetLike, submission: Submission, label: Json = None) -> Future[Verdict]:
        """Ask for a verdict from any thread; `label` is the caller's id in the audit log.

        Raises:
            ConfigError: the target is not JSON data.
        """
        job = _Job(
            written(target), submission, digest(written(target), submission), label, time.perf_counter(), Future()
        )
        job.answer.set_running_or_notify_cancel()
        verdict = self._recall(job.key)
        if verdict is None:
            self._enqueue(job)
        else:
            self._answer(job, verdict, remembered=True)
        return job.answer

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Compare `submission` with `target`."""
        return await asyncio.wrap_future(self.submit(target, submission))

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Ask the verifier."""
        self._verifier.check_gold(target, item)

    def metrics(self) -> Metrics:
        """Figures since the start, canaries left out."""
        return self._meter.snapshot()

    async def close(self) -> None:
        """Close the verifier and the audit log; what is still running fails."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            job.answer.set_exception(VerifierError("the service was closed before the verdict was there"))
        ended = await asyncio.to_thread(self._lane.close, self._verifier.close(), CLOSE_S)
        if self._audit is not None:
            self._audit.close()
        if not ended:
            raise VerifierError(f"verifier {self.name} did not close within {CLOSE_S:g} s")

    async def _ask(self, target: TargetLike, submission: Submission) -> Verdict:
        began = time.perf_counter()
        try:
            verdict: object = await self._verifier.verify(target, submission)
        except VerifierError:
            raise
        except SystemExit as exc:  # a verdict in every case: what a verifier should never do is an error
            return self._broken(f"SystemExit: {exc}", began)
        except Exception as exc:
            fault = blamed(exc)
            return self._broken(str(fault) if isinstance(fault, PluginError) else f"{type(exc).__name__}: {exc}", began)
        if not isinstance(verdict, Verdict):
            return self._broken(f"{self.name} returned {type(verdict).__name__}, not a Verdict", began)
        return verdict

    def _broken(self, reason: str, began: float) -> Verdict:
        return Verdict("error", reason=reason[:200], version=self.version, seconds=time.perf_counter() - began)

    def _too_late(self) -> Verdict:
        reason = f"wall limit of the service ({self._wall_s:g} s)"
        return Verdict("timeout", reason=reason, version=self.version, seconds=self._wall_s)

    def _check(self, canary: Canary, verdict: Verdict) -> None:
        if verdict.status != canary.status:
            raise VerifierError(
                f"verifier {self.name} ({self.version}) fails a known case: {canary.text[:80]!r} held to "
                f"{str(canary.target)[:80]!r} must be {canary.status}, got {verdict.status} ({verdict.reason}); "
                "do not use its verdicts before this is found out"
            )

    def _enqueue(self, job: _Job) -> None:
        with self._lock:
            if self._free < 1 and not self._closed:
                self._waiting.append(job)
                return
            self._free -= 1
        self._begin(job)

    def _begin(self, job: _Job) -> None:
        try:
            worked = self._lane.submit(partial(self._ask, job.target, job.submission))
        except VerifierError as exc:  # closed
            job.answer.set_exception(exc)
        else:
            worked.add_done_callback(partial(self._finish, job))

    def _finish(self, job: _Job, worked: Future[Verdict]) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            self._free += following is None
        if following is not None:
            self._begin(following)
        error = worked.exception()
        if error is not None:
            job.answer.set_exception(error)
            return
        self._remember(job.key, worked.result())
        self._answer(job, worked.result(), remembered=False)

    def _answer(self, job: _Job, verdict: Verdict, *, remembered: bool) -> None:
        self._meter.add(verdict, time.perf_counter() - job.began, remembered=remembered)
        try:
            if self._audit is not None:
                self._audit.log(job.label, job.key, job.target, job.submission, self.name, verdict, remembered)
        except Exception as exc:  # a verdict that could not be logged is not handed out; the caller learns why
            job.answer.set_exception(exc)
        else:
            job.answer.set_result(verdict)

    def _recall(self, key: str) -> Verdict | None:
        with self._lock:
            verdict = self._memory.get(key)
            if verdict is not None:
                self._memory.move_to_end(key)
        return None if verdict is None else dataclasses.replace(verdict, seconds=0.0)

    def _remember(self, key: str, verdict: Verdict) -> None:
        if verdict.status in _PASSING or not self._memory_size:
            return
        with self._lock:
            self._memory[key] = verdict
            if len(self._memory) > self._memory_size:
                self._memory.popitem(last=False)


Work: TypeAlias = Callable[[], Coroutine[Any, Any, Verdict]]


@dataclass(slots=True)
class _Request:
    number: int
    work: Work
    future: Future[Verdict]
    deadline: float
    task: asyncio.Task[None] | None = None


class _LoopThread:
    """Runs work in its loop, each within `wall_s` seconds; a hung one gives `on_timeout()`.

    Its futures may be awaited from any loop and any thread. Make it in any thread; `close` ends it.
    """

    def __init__(self, wall_s: float, on_timeout: Callable[[], Verdict]) -> None:
        self._wall_s, self._on_timeout = wall_s, on_timeout
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: dict[int, _Request] = {}
        self._loop: _Loop | None = None
        self._closed = threading.Event()

    def submit(self, work: Work) -> Future[Verdict]:
        """Start `work`; the future is done within the wall limit and a little."""
        request = _Request(next(self._numbers), work, Future[Verdict](), time.monotonic() + self._wall_s)
        request.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed.is_set():
                raise VerifierError("the service is closed")
            if self._loop is None:
                self._loop = _Loop()
                threading.Thread(target=self._watch, name="ttc-verdict-watch", daemon=True).start()
            self._running[request.number] = request
            self._start(request, self._loop)
        return request.future

    def close(self, last: Coroutine[Any, Any, None], timeout_s: float) -> bool:
        """Fail what still runs, run `last` in the loop and end it; False when that did not end in time."""
        with self._lock:
            self._closed.set()
            loop, self._loop = self._loop or _Loop(), None
            left = list(self._running.values())
            self._running.clear()
        for request in left:
            request.future.set_exception(VerifierError("the service was closed before the verdict was there"))
        ended = asyncio.run_coroutine_threadsafe(last, loop.loop)
        try:
            ended.result(timeout_s)
        except TimeoutError:
            return False
        finally:
            loop.stop()
        return True

    def _start(self, request: _Request, loop: _Loop) -> None:
        def create() -> None:
            request.task = loop.loop.create_task(_Marked(self._serve(request, loop), request.number, loop))

        loop.loop.call_soon_threadsafe(create)

    async def _serve(self, request: _Request, loop: _Loop) -> None:
        try:
            result = await request.work()
        except asyncio.CancelledError:
            if self._take(request, loop):
                request.future.set_exception(VerifierError("a verifier cancelled its own work"))
            raise
        except BaseException as exc:  # also a SystemExit of the work, which must not end the loop
            if self._take(request, loop):
                request.future.set_exception(exc)
        else:
            if self._take(request, loop):
                request.future.set_result(result)

    def _take(self, request: _Request, loop: _Loop) -> bool:
        """Whether this loop may answer the request: it has not been answered, and belongs to this loop."""
        with self._lock:
            return loop is self._loop and self._running.pop(request.number, None) is not None

    def _watch(self) -> None:
        while not self._closed.wait(min(0.25, self._wall_s / 4)):
            with self._lock:
                late = self._take_late()
            for request in late:
                request.future.set_result(self._on_timeout())

    def _take_late(self) -> list[_Request]:
        """Take out the requests that are past their limit; called with the lock held."""
        now = time.monotonic()
        loop = self._loop
        if loop is None:
            return []
        number, since = loop.step
        if number and now - since > self._wall_s:
            self._replace(loop)
            return [self._running.pop(number)] if number in self._running else []
        if number and now - since > self._wall_s / 4:
            return []  # the others are late because this one holds the loop
        late = [request for request in self._running.values() if request.deadline < now]
        for request in late:
            del self._running[request.number]
            if request.task is not None:
                loop.loop.call_soon_threadsafe(request.task.cancel)
        return late

    def _replace(self, stuck: _Loop) -> None:
        stuck.stop()
        self._loop = fresh = _Loop()
        number, _ = stuck.step
        for request in self._running.values():
            if request.number != number:
                request.deadline = time.monotonic() + self._wall_s
                self._start(request, fresh)


class _Loop:
    """A loop, its thread, and the request whose step it is in with the time that step began; 0 between steps."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.step: tuple[int, float] = (0, 0.0)
        self._thread = threading.Thread(target=self._run, name="ttc-verdicts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end; one that hangs ends when its work does."""
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


class _Marked(Coroutine[Any, Any, None]):
    """A coroutine that notes in `loop.step` when one of its steps begins and ends."""

    def __init__(self, inner: Coroutine[Any, Any, None], number: int, loop: _Loop) -> None:
        self._inner, self._number, self._loop = inner, number, loop

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, *args: Any) -> Any:
        return self._step(self._inner.throw, *args)

    def _step(self, resume: Callable[..., Any], *args: Any) -> Any:
        self._loop.step = (self._number, time.monotonic())
        try:
            return resume(*args)
        finally:
            self._loop.step = (0, 0.0)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()
