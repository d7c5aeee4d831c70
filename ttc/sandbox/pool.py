"""The host's side of the sandbox: zygotes that run scripts and tests under one tier, from a thread or a coroutine.

A `Worker` is the handle of one zygote: it starts it, requests cells, receives how they ended, and ends it. One thread
uses it at a time; a worker whose zygote has died or does not answer must be replaced. A `Sandbox` is a pool of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

from ttc.errors import ConfigError, VerifierError
from ttc.sandbox import wire
from ttc.sandbox.limits import ResourceLimits, Tier
from ttc.sandbox.wire import JOB, READY, REFUSED

START_S = 30.0
GRACE_S = 2.0
"""Seconds after a cell's wall limit in which the zygote must have killed it."""


@dataclass(frozen=True, slots=True)
class End:
    """How a cell ended: `status` as of wait(2), whether its wall time had run out, CPU seconds."""

    status: int
    late: bool
    cpu_s: float

    @property
    def cause(self) -> str:
        """Why it ended, in words; empty for exit code 0."""
        if self.late:
            return "wall time"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            return "processor time" if number == signal.SIGXCPU else f"killed by {signal.Signals(number).name}"
        code = os.waitstatus_to_exitcode(self.status)
        return f"exit code {code}" if code else ""


@dataclass(frozen=True, slots=True)
class Cell:
    """The host's ends of a cell's streams; `deadline` is when it is certainly gone, on the monotonic clock."""

    number: int
    job: int
    report: int
    output: int
    errors: int
    deadline: float


class Worker:
    """A running zygote of `tier`; a rich one has numpy, where it is installed, and event loops."""

    def __init__(self, tier: Tier, *, is_rich: bool = False) -> None:
        self._tier, self.is_rich = tier, is_rich
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._ends: dict[int, End] = {}
        self._running: dict[int, Cell] = {}
        self.is_broken = False
        self.num_served = 0
        self._control, theirs = socket.socketpair()
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        with theirs:
            self._process = self._spawn(theirs.fileno())
        try:
            self._line(time.monotonic() + START_S)
        except VerifierError:
            self.close()
            raise

    def start(self, job: Mapping[str, Any], limits: ResourceLimits, *, role: int = 0, listens: bool = False) -> Cell:
        """Fork a cell and send its job; `role` distinguishes cells that run together, `listens` opens its output.

        Raises:
            VerifierError: the zygote is gone, or the cell could not be confined.
        """
        cell = self._fork(limits, role, listens)
        try:
            wire.send(cell.job, JOB, json.dumps(job).encode("ascii"), cell.deadline)
            kind, text = wire.receive(cell.report, cell.deadline)
        except wire.StreamEnded as exc:
            if self._end(cell, kill=True).late:  # its time ran out before it began: `finish` reports that
                return cell
            self.finish(cell)
            raise VerifierError(f"a sandboxed program could not be started {self._complaint()}") from exc
        if kind != READY:
            self.finish(cell)
            why = text.decode(errors="replace") if kind == REFUSED else "it sent nonsense"
            raise VerifierError(f"a program could not be confined: {why}")
        return cell

    def finish(self, cell: Cell, *, kill: bool = True) -> End:
        """Wait for a cell's end, at once with `kill`, and close its streams."""
        for descriptor in (cell.job, cell.report, cell.output, cell.errors):
            os.close(descriptor)
        del self._running[cell.number]
        self._end(cell, kill)
        return self._ends.pop(cell.number)

    def _end(self, cell: Cell, kill: bool) -> End:
        if kill:
            self._say({"kill": cell.number})
        while cell.number not in self._ends:
            message = self._line(cell.deadline)
            if "cell" in message:
                number = message.pop("cell")
                self._ends[number] = End(**message)
        return self._ends[cell.number]

    def close(self) -> None:
        """End the zygote, and with it all cells."""
        for cell in list(self._running.values()):
            with suppress(VerifierError):
                self.finish(cell)
        self.is_broken = True
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._complaints.close()

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._tier.command(descriptor, self.is_rich),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                env={} if self._tier.prefix else {"PYTHONHASHSEED": "0"},
                cwd="/",
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        except OSError as exc:
            self._control.close()
            self._complaints.close()
            raise VerifierError(f"the sandbox's zygote cannot be started: {exc}") from exc

    def _fork(self, limits: ResourceLimits, role: int, listens: bool) -> Cell:
        number = next(self._numbers)
        self.num_served += 1
        theirs: list[int] = []
        try:
            job_r, job = os.pipe()
            report, report_w = os.pipe()
            theirs += [job_r, report_w]
            output, errors = (_stream(theirs, listens), _stream(theirs, listens))
            for descriptor in (job, report, output, errors):
                os.set_blocking(descriptor, False)
            deadline = time.monotonic() + limits.wall_s + GRACE_S
            cell = Cell(number, job, report, output, errors, deadline)
            self._running[number] = cell
            line = {"cell": number, "role": role, "limits": dataclasses.asdict(limits), **self._tier.request()}
            self._say(line, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return cell

    def _say(self, message: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
        data = json.dumps(message).encode("ascii") + b"\n"
        try:
            # a line is far smaller than the socket's buffer, so it is sent at once
            self._control.settimeout(GRACE_S)
            socket.send_fds(self._control, [data], descriptors or [])
        except OSError as exc:
            self.is_broken = True
            raise VerifierError(f"the sandbox's zygote is gone {self._complaint()}") from exc

    def _line(self, deadline: float) -> dict[str, Any]:
        """The next line of the zygote; raises VerifierError when none comes in time."""
        while b"\n" not in self._buffer:
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._control.recv(65_536)
            except OSError:  # the time has run out, or the stream is broken
                data = b""
            if not data:
                self.is_broken = True
                raise VerifierError(f"the sandbox's zygote does not answer {self._complaint()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _complaint(self) -> str:
        self._complaints.seek(0)
        return f"({self._complaints.read()[-1000:].decode(errors='replace').strip() or 'no message'})"


def _stream(theirs: list[int], listens: bool) -> int:
    """Our end of a pipe, whose other end is added to `theirs`; without `listens` the program's output is discarded."""
    ours, other = os.pipe()
    if not listens:
        os.close(other)
        other = os.open(os.devnull, os.O_WRONLY)
    theirs.append(other)
    return ours


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RECYCLE = 5000
"""Cells after which a zygote is replaced."""


class Work(Protocol[T_co]):
    """Work for a worker: a `Script` or `Suite`."""

    @property
    def is_rich(self) -> bool:
        """Whether it needs a rich zygote."""
        ...

    def run(self, worker: Worker) -> T_co:
        """Run it in cells of `worker`."""
        ...


class Sandbox:
    """`workers` zygotes of `tier`, each used by one thread; they start on first use and `close` ends them."""

    def __init__(self, tier: Tier, *, workers: int = 2) -> None:
        if workers < 1:
            raise ConfigError(f"a sandbox needs workers >= 1, got {workers}")
        self.tier = tier
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="ttc-sandbox")
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def submit(self, work: Work[T]) -> Future[T]:
        """Queue work; its time starts when a worker begins it. A dead zygote is replaced once, then VerifierError."""
        if self._closed:
            raise VerifierError("the sandbox is closed")
        return self._threads.submit(self._serve, work)

    async def run(self, work: Work[T]) -> T:
        """Run work from a coroutine; cancelling removes it from the queue."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Finish running work, drop queued work, end every zygote."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, work: Work[T]) -> T:
        worker = self._take(work.is_rich)
        try:
            return work.run(worker)
        except VerifierError:
            if not worker.is_broken:
                raise
        finally:
            self._give(worker)
        fresh = Worker(self.tier, is_rich=work.is_rich)
        try:
            return work.run(fresh)
        finally:
            self._give(fresh)

    def _take(self, is_rich: bool) -> Worker:
        with self._lock:
            for worker in reversed(self._idle):
                if worker.is_rich == is_rich:
                    self._idle.remove(worker)
                    return worker
        return Worker(self.tier, is_rich=is_rich)

    def _give(self, worker: Worker) -> None:
        if worker.is_broken or worker.num_served >= RECYCLE:
            worker.close()
            return
        with self._lock:
            self._idle.append(worker)


def _close_all(idle: list[Worker]) -> None:
    while idle:
        idle.pop().close()
