"""A pool of killable worker processes with limits of time and memory, for threads and for asyncio.

Each worker is a fresh `python -m ttc.verifiers.workers.worker` (never a fork of this process, so threads of torch
cannot break it) that speaks length-prefixed JSON over pipes and gets an environment without the parent's secrets. A
request that does not answer within its limit loses its worker; a warm spare takes the place at once. The limit is on
what the request itself takes: time in which the machine kept its worker from running does not count, up to MOST_WALL
limits. Workers are replaced after `recycle` requests and end with their parent.

    pool = Pool(workers=2, timeout_s=1.5)
    reply = await pool.run({"call": "maths", ...})      in a coroutine
    reply = pool.submit({...}).result()                 in a thread

Cost: 30 MB and 0.2 s of start per worker, 40 MB and 0.6 s more where math-verify is asked; about 0.2 ms of overhead per
request. Left out: Windows; where there is no /proc, the limit is on wall time.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, TypeAlias, cast

from ttc.config.values import above, at_least
from ttc.core import Status, Verdict
from ttc.errors import VerifierError
from ttc.verifiers.workers.frames import MAX_FRAME, PREFIX, write_frame

SOFT = 0.75
"""The share of the limit after which the worker interrupts itself."""
MOST_WALL = 20
"""Limits of wall time after which a request ends, however little its worker has run."""
START_S = 60.0
MIN_MEMORY_MB = 256
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

Rest: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """What came back: `status` ok, timeout, limit or error, the worker's `data`, `seconds` of work, `waited` before."""

    status: str
    data: Mapping[str, Any]
    seconds: float
    waited: float


class Pool:
    """Up to `workers` processes that run requests, as many as are asked at once, and one warm spare; `close` ends all.

    `program` is what the interpreter runs as a worker, a module or a script that calls `worker.serve`.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        timeout_s: float = 1.5,
        memory_mb: int = 2048,
        recycle: int = 2000,
        program: Sequence[str] = ("-m", "ttc.verifiers.workers.worker", "maths"),
    ) -> None:
        at_least("verifier", 1, workers=workers, recycle=recycle)
        at_least("verifier", MIN_MEMORY_MB, memory_mb=memory_mb)
        above("verifier", 0, timeout_s=timeout_s)
        self.timeout_s, self.memory_mb = timeout_s, memory_mb
        self._command = (sys.executable, "-P", *program, str(memory_mb))
        self._recycle, self._num_workers = recycle, workers
        self._lock = threading.Lock()
        self._ready: list[_Worker] = []
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._finalizer = weakref.finalize(self, _kill_all, self._ready)
        self.num_started = 0

    def submit(self, request: Mapping[str, Any]) -> Future[WorkerReply]:
        """Queue a request; it gets `timeout_s` of the time of the worker that takes it up, once that is ready."""
        with self._lock:
            if self._closed:
                raise VerifierError("the pool is closed")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._num_workers, thread_name_prefix="ttc-verifier")
            threads = self._threads
        return threads.submit(self._serve, dict(request), time.perf_counter())

    async def run(self, request: Mapping[str, Any]) -> WorkerReply:
        """Run a request from a coroutine; cancelling gives up the place in the queue."""
        return await asyncio.wrap_future(self.submit(request))

    def close(self) -> None:
        """End every worker; what is queued fails."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)
        self._finalizer()

    def _serve(self, request: dict[str, Any], queued: float) -> WorkerReply:
        worker = self._take(request["call"])
        self._keep_a_spare()
        began = time.perf_counter()
        limits = {"soft_s": SOFT * self.timeout_s, "cpu_s": math.ceil(self.timeout_s) + 1}
        data = worker.ask({**request, **limits}, self.timeout_s)
        seconds = time.perf_counter() - began
        if worker.is_broken or worker.num_served >= self._recycle or data.get("reason") == "memory":
            self._replace(worker)
        else:
            self._give(worker)
        return WorkerReply(str(data.pop("status")), data, seconds, began - queued)

    def _take(self, call: str) -> _Worker:
        """A worker that is ready for a call; prefers one that has finished its start."""
        with self._lock:
            if not self._ready:
                self._ready.append(self._start())
            self._ready.sort(key=lambda worker: worker.is_ready, reverse=True)
            worker = self._ready.pop(0)
        if not worker.wait_ready(call, START_S):
            message = worker.complaint()
            worker.kill()
            raise VerifierError(f"no verifier worker could be started: {message}")
        return worker

    def _keep_a_spare(self) -> None:
        """Start one where none is left, now that the worker that is asked has had the processor for its own start."""
        with self._lock:
            if not self._ready and not self._closed:
                self._ready.append(self._start())

    def _give(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._ready.insert(0, worker)
                return
        worker.kill()

    def _replace(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            if not self._closed:
                self._ready.append(self._start())

    def _start(self) -> _Worker:
        self.num_started += 1
        return _Worker(self._command)


def _kill_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().kill()


class _Worker:
    """One process and its pipes; used by one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
        self._requests, self._replies = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        self.is_ready = False
        self._later: set[str] = set()
        self.num_served = 0
        self.is_broken = False

    def wait_ready(self, call: str, timeout_s: float) -> bool:
        """Wait for the end of the start, and of what a call needs; False when the process died or took too long."""
        deadline = time.perf_counter() + timeout_s
        if not self.is_ready:
            started = self._read(lambda: deadline - time.perf_counter())
            self.is_ready, self._later = started.get("status") == "ready", {*started.get("later", ())}
        if self.is_ready and call in self._later:
            self._later.discard(call)
            with suppress(BrokenPipeError):  # the read says so
                write_frame(self._requests, {"load": call})
            self.is_ready = self._read(lambda: deadline - time.perf_counter()).get("status") == "ready"
        return self.is_ready

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for the reply, or say why none came; then the worker `is_broken`."""
        rest = self._rest(timeout_s)
        self.num_served += 1
        try:
            write_frame(self._requests, request)
        except BrokenPipeError:
            return self._broken(*self._death())
        return self._read(rest)

    def _rest(self, limit_s: float) -> Rest:
        """The seconds that a request has left, from now on: of wall time, and of its own where it was kept waiting."""
        began, (_, spent_s) = time.perf_counter(), _progress(self._process.pid)

        def rest() -> float:
            wall_s = time.perf_counter() - began
            if wall_s < limit_s or wall_s > MOST_WALL * limit_s:
                return limit_s - wall_s
            waits, now_s = _progress(self._process.pid)
            return limit_s - (now_s - spent_s) if waits else 0.0

        return rest

    def _read(self, rest: Rest) -> dict[str, Any]:
        head = self._read_exactly(PREFIX.size, rest)
        if isinstance(head, dict):
            return head
        (length,) = PREFIX.unpack(head)
        if length > MAX_FRAME:
            return self._broken("error", "an oversized reply")
        body = self._read_exactly(length, rest)
        message: dict[str, Any] = body if isinstance(body, dict) else json.loads(body)
        return message

    def _broken(self, status: str, reason: str) -> dict[str, Any]:
        self.is_broken = True
        return {"status": status, "reason": reason}

    def _death(self) -> tuple[str, str]:
        """Status and reason of a worker that ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code == -signal.SIGXCPU:
            return "timeout", "CPU limit"
        return "error", f"the worker died ({'signal' if code and code < 0 else 'exit code'} {abs(code or 0)})"

    def _read_exactly(self, count: int, rest: Rest) -> bytes | dict[str, Any]:
        descriptor = self._replies.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        data = b""
        while len(data) < count:
            # What is there counts, however late this process comes to read it.
            while not poll.poll(max(left_s := rest(), 0.0) * 1000):
                if left_s <= 0:
                    return self._broken("timeout", "hard limit")
            chunk = os.read(descriptor, count - len(data))
            if not chunk:
                return self._broken(*self._death())
            data += chunk
        return data

    def complaint(self) -> str:
        """The end of what the process wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace").strip() or "no message"

    def kill(self) -> None:
        """End the process and its group, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._requests, self._replies, self._errors):
            # A request half written to a dead worker cannot be flushed any more.
            with suppress(BrokenPipeError):
                pipe.close()


def _progress(pid: int) -> tuple[bool, float]:
    """Whether a process is kept from running, and the processor seconds it took.

    It is where one of its threads is in line for a processor, stopped, or waits for a disk, from which its own code may
    have to come back: on a busy machine the others wait for that one, which holds Python's lock.
    """
    try:
        threads = [_fields(f"/proc/{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")]
        fields = _fields(f"/proc/{pid}")
    except OSError:  # no such system, or the process has ended, of which its pipe tells
        return False, 0.0
    is_kept = any(thread[0] in "RDTt" for thread in threads)
    return is_kept, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _fields(folder: str) -> list[str]:
    """What the system says of a process or thread, from its state on."""
    with open(f"{folder}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _environment() -> dict[str, str]:
    """What a worker needs to start, and nothing else: secrets in the parent's environment stay there."""
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path)
    return {**variables, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


MEMORY_MB = 512
_STATUSES: Mapping[str, Status] = {"timeout": "timeout", "limit": "limit"}


def text_pool(workers: int, timeout_s: float, what: Literal["patterns", "schemas"]) -> Pool:
    """A pool of workers for patterns or schemas; nothing starts before the first request."""
    program = ("-m", "ttc.verifiers.workers.worker", what)
    return Pool(workers=workers, timeout_s=timeout_s, memory_mb=MEMORY_MB, program=program)


def without_reply(reply: WorkerReply) -> Verdict:
    """The verdict where a worker gave no result: a limit, a timeout or an error, with its reason."""
    return Verdict(_STATUSES.get(reply.status, "error"), reason=str(reply.data.get("reason") or reply.status))
