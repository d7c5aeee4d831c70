"""Any verifier as a service: known cases first, then verdicts with a wall limit, a memory, metrics and an audit log.

    service = Service(math(), audit=Audit(path))
    service.start()                                   canaries; raises VerifierError naming the one that fails
    verdict = await service.verify(target, submission)        in any event loop
    verdict = service.submit(target, submission).result()     in any thread

A service is a verifier itself. A verdict comes in every case: an exception of the verifier is `error`, one that does
not end within `wall_s` is `timeout` (see `lane`). What was asked before is remembered by target, submission and
version, the latest `memory` of them; a `timeout` or an `error` never is.

The wall limit is a backstop behind the verifier's own, shorter limits. It covers waiting for its workers, so by default
it is what all requests at once would take one after the other, and no verdict is late only because others are slow.
Cost: 0.1 to 0.2 ms per verdict.

Its metrics are verdicts by status, how long they took and how many had none. Latency runs from the request to its
verdict, waiting included; work is what the verifier reports. Quantiles are those of the latest `KEPT` verdicts (nearest
rank). What was remembered counts by status, but not in the times. Left out: several verifiers behind one service,
network access.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from ttc.config.plugins import blamed
from ttc.config.values import above, at_least
from ttc.core import Json, Submission, Target, Verdict, Verifier
from ttc.errors import PluginError, VerifierError
from ttc.verifiers.service.audit import Audit, Entry, digest
from ttc.verifiers.service.loop_thread import LoopThread
from ttc.verifiers.shared.contract import Canary, Card, card_of

__all__ = ["Metrics", "Quantiles", "Service", "VerdictCounter"]


KEPT = 10_000


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

    target: Target
    submission: Submission
    key: str
    label: Json
    began: float
    answer: Future[Verdict]


class Service:
    """See the module docstring."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        memory: int = 10_000,
        concurrency: int = 16,
        wall_s: float | None = None,
        audit: Audit | None = None,
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
        self._lane: LoopThread[Verdict] = LoopThread(wall_s, self._too_late)
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

    def submit(self, target: Target, submission: Submission, label: Json = None) -> Future[Verdict]:
        """Ask for a verdict from any thread; `label` is the caller's id in the audit log.

        Raises:
            ConfigError: the target is not JSON data.
        """
        job = _Job(target, submission, digest(target, submission), label, time.perf_counter(), Future())
        job.answer.set_running_or_notify_cancel()
        verdict = self._recall(job.key)
        if verdict is None:
            self._enqueue(job)
        else:
            self._answer(job, verdict, remembered=True)
        return job.answer

    async def verify(self, target: Target, submission: Submission) -> Verdict:
        """Compare `submission` with `target`."""
        return await asyncio.wrap_future(self.submit(target, submission))

    def check_gold(self, target: Target, item: str = "") -> None:
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

    async def _ask(self, target: Target, submission: Submission) -> Verdict:
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
                entry = Entry(job.label, job.key, job.target, job.submission, self.name, verdict, remembered)
                self._audit.append(entry)
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
