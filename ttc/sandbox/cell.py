"""One program's process: a fork of the zygote that confines itself permanently, then runs the program or serves it.

Before it confines itself it holds only what the program may see: the descriptors of its job, report, output and error
streams. The job (source, input, calls) comes directly from the host, not through the zygote's memory, so no later fork
can find it there.

A program runs here as a script; or it is loaded, and then calls of its functions are answered (`serving`). It shares
this process with the code below and may change all of it; a result is only the program's claim about what its functions
return. It is compared in another process, with values that were never here.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import errno
import fcntl
import io
import json
import os
import resource
import signal
import stat
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from ttc.sandbox import kernel, limits, memory_files, wire
from ttc.sandbox.kernel import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from ttc.sandbox.serving import JOB, REPORT

Mode: TypeAlias = Callable[[Mapping[str, Any]], NoReturn]
_CLEAR_OF = 32


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a cell confines itself: Landlock's version (0: none), a prepared filter, the user to become, the limits."""

    landlock: int
    filter: bytes | None
    user: int | None
    max_threads: int | None
    limits: limits.ResourceLimits


def enter(descriptors: tuple[int, ...], parent: int, confinement: Confinement, modes: Mapping[str, Mode]) -> NoReturn:
    """Turn this fork into a cell with the streams (job, report, output, errors); never returns."""
    status = 70
    try:
        _take(descriptors)
        frame = wire.read(JOB)
        if frame is None:
            os._exit(0)
        job = json.loads(frame[1])
        _input(job.get("stdin"))
        try:
            _confine(parent, confinement)
        except OSError as exc:
            wire.write(REPORT, wire.REFUSED, str(exc).encode())
            os._exit(status)
        _open_streams()
        vars(os).update(fstat=_stat_of_open)
        wire.write(REPORT, wire.READY, b"")
        modes[job["mode"]](job)
    finally:
        os._exit(status)


def _take(descriptors: tuple[int, ...]) -> None:
    """Move the given descriptors to their numbers and close all others."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    job, report, output, errors = (fcntl.fcntl(each, fcntl.F_DUPFD, _CLEAR_OF) for each in descriptors)
    for source, place in ((job, JOB), (report, REPORT), (output, 1), (errors, 2)):
        os.dup2(source, place, inheritable=False)
    os.closerange(REPORT + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65_536))


def _input(text: str | None) -> None:
    """Make `text` the standard input: an unlinked file that the program can read and seek but not extend."""
    if text is None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    elif hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    if text is not None:
        data = memoryview(text.encode("utf-8", "surrogatepass"))
        while data:
            data = data[os.write(descriptor, data) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    if descriptor != 0:
        os.dup2(descriptor, 0)
        os.close(descriptor)


def _confine(parent: int, confinement: Confinement) -> None:
    os.chdir("/")
    _volunteer()
    limits.apply(confinement.limits, confinement.max_threads)
    if confinement.user is not None:
        limits.drop_user(confinement.user)
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 0)
        # set after the change of user, which clears it; the parent may have died before
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    if confinement.landlock:
        kernel.restrict_files(confinement.landlock)
    if confinement.filter is not None:
        kernel.restrict_calls(confinement.filter, os.uname().machine, os.getpid())


def _volunteer() -> None:
    """Make this process the first to be killed when the machine runs out of memory; skipped without /proc."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _open_streams() -> None:
    """Give the program standard streams on its own descriptors."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def _stat_of_open(descriptor: int) -> os.stat_result:
    """Kind and size of an open file; replaces `os.fstat`, whose system call may take a path and is refused."""
    try:
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError as exc:
        if exc.errno != errno.ESPIPE:
            raise
        return os.stat_result((stat.S_IFIFO | 0o600, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    size = os.lseek(descriptor, 0, os.SEEK_END)
    os.lseek(descriptor, place, os.SEEK_SET)
    return os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, 0, 0, size, 0, 0, 0))


# -- what a confined cell does with a script ---------------------------------------------------------------------------
SCRIPT_NAME = "program.py"


def script(job: Mapping[str, Any]) -> NoReturn:
    """Run job["source"] as `__main__` and end like an interpreter does."""
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = SCRIPT_NAME
    sys.modules["__main__"] = main
    _name_streams()
    if "tempfile" in job["source"]:
        memory_files.install()
    status = _run(job["source"], main.__dict__)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        status = status or 1
    os._exit(status)


_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


def _name_streams() -> None:
    """Let a script open its standard streams by their names, as it may by their numbers."""
    original = io.open

    def opened(file: Any, *rest: Any, **options: Any) -> Any:
        is_stream = isinstance(file, str) and file in _STREAMS
        return original(os.dup(_STREAMS[file]) if is_stream else file, *rest, **options)

    vars(builtins).update(open=opened)
    vars(io).update(open=opened)


def _run(source: str, namespace: dict[str, Any]) -> int:
    try:
        exec(compile(source, SCRIPT_NAME, "exec", dont_inherit=True), namespace)
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return (exc.code or 0) & 255
        sys.stderr.write(f"{exc.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
