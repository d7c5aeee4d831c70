r"""A process of the command `ttc`: its start, its streams, its use of memory.

The command line's own modules are imported inside, so that Ctrl-C ends in one line from the first moment on. An
interrupt that hits a callback whose errors Python ignores, as during imports, is sent again. Asyncio's report on a task
that an interrupt ended is dropped.

A standard stream that was closed at the start is replaced by one that discards everything, so that its number goes to
no other file. Characters that the output's encoding lacks become plain ones (– is -) or Python's escapes (\xe9), halves
of characters included. Writes to a closed standard error are dropped, since a job must not die of a message; when the
reader of results leaves, the command ends (see `reader_is_gone`).

Few compiled kernels and no large freed blocks are kept, and garbage is collected rarely. torch keeps a compiled kernel
for every shape of a matrix product, by default the last 1,024, which can take a gigabyte. glibc takes a block from the
heap once one of its size has been freed, up to 32 MiB, and returns the heap only from its end: a process stays about as
large as its peak. Here blocks of 4 MiB or more are always separate pages, which are returned at once. Neither setting
cost measurable CPU time. Settings in the user's environment take precedence; without glibc, only the first applies.

Python looks for cycles after every 700 new objects, and sometimes among the hundreds of thousands of objects of torch
and a model, which stops all threads for a while. Cycles are rare here, so looking every 20,000 is enough.
"""

from __future__ import annotations

import codecs
import ctypes
import gc
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ttc.errors import ConfigError, missing_extra


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    try:
        collect_rarely()
        settle_streams()
        send_again()
        from ttc.cli.cli import main as run
        from ttc.cli.own import run_own

        silence_interrupted_tasks()
        run_own()
    except KeyboardInterrupt:
        os.write(2, b"ttc: interrupted\n")
        return 130
    except ModuleNotFoundError as exc:
        known = missing_extra(exc)
        if known is exc:
            raise
        os.write(2, f"ttc: error: {known}\n".encode())
        return 2
    return run()


PLAIN = {
    **dict.fromkeys("–—−─", "-"),
    **dict.fromkeys("│├", "|"),
    **{"└": "`", "…": "...", "×": "x", "±": "+-", "≥": ">=", "≤": "<=", "→": "->", "·": ".", "’": "'"},
}
_HANDLER = "ttc_plain"
_AGAIN_S = 0.01


def settle_streams() -> None:
    """Set up the three standard streams of this process."""
    codecs.register_error(_HANDLER, plain)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(number))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_HANDLER)
    if isinstance(sys.stderr, io.TextIOWrapper):
        kept = io.BufferedWriter(_Discarding(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(kept, sys.stderr.encoding, _HANDLER, line_buffering=True, write_through=True)


def plain(error: UnicodeError) -> tuple[str, int]:
    """Replace a character that an encoding lacks by a plain one, else by its number; an error handler for codecs."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = (PLAIN.get(sign) for sign in error.object[error.start : error.end])
    numbers = (
        sign.encode("ascii", "backslashreplace").decode("ascii") for sign in error.object[error.start : error.end]
    )
    return "".join(sign or number for sign, number in zip(signs, numbers, strict=True)), error.end


def typed_in(read: Callable[[], str]) -> str:
    """Return what `read` reads from standard input; raises ConfigError if that is no text."""
    try:
        return read()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"standard input is not {exc.encoding}: {exc.reason} at byte {exc.start}") from exc


def reader_is_gone() -> bool:
    """Whether nobody reads standard output any more, as after `| head`."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
    except (AttributeError, OSError, ValueError):  # no poll on this system, or no file behind the stream
        return True
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def leave_quietly() -> None:
    """Discard the buffer of standard output, so that Python's shutdown does not fail on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _Discarding(io.FileIO):
    """A stream that accepts everything, even when its reader has gone."""

    def write(self, data: Any, /) -> int:
        try:
            return int(super().write(data))
        except BrokenPipeError:
            return len(memoryview(data).cast("B"))


def _nowhere(number: int) -> io.TextIOWrapper:
    """A stream to nowhere, under the number of a closed one."""
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
    return open(number, "w" if number else "r", encoding="utf-8", closefd=False)


KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}
"""Decoding meets a new shape at every step, so kernels are seldom met again."""

MALLOPT = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 22),  # any value stops its default from growing with freed blocks
    "MALLOC_TRIM_THRESHOLD_": (-1, 1 << 26),  # which would also leave this at 128 KiB: pages go back and forth
    "MALLOC_ARENA_MAX": (-8, 2),
}
"""Numbers of glibc's `mallopt` and their values, by the variable that a user would set."""


def keep_little() -> None:
    """Limit kept kernels and blocks, before torch is imported, if the embedded engine runs in this process."""
    os.environ.update({name: value for name, value in KERNELS.items() if name not in os.environ})
    if not sys.platform.startswith("linux") or "GLIBC_TUNABLES" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, (option, value) in MALLOPT.items():
        if mallopt is not None and name not in os.environ:
            mallopt(option, value)


LEAST_BYTES = 3 << 29
"""Address space that the packaged model runs in, with some left; numpy's own libraries wait for ever without theirs."""


def memory_warning() -> str | None:
    """Name a limit on memory (`ulimit -v`) that torch, numpy or a model would meet in ways that do not name it."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= LEAST_BYTES:
        return None
    here, least = (f"{size >> 20:,} MiB" for size in (limit, LEAST_BYTES))
    return f"memory is limited to {here} here (ulimit -v); below {least} a command may hang: raise the limit"


def send_again() -> None:
    """Send an interrupt again that was swallowed by a callback: of a weak reference, a finalizer, or C."""
    report, main_thread = sys.unraisablehook, threading.get_ident()

    def swallowed(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            report(unraisable)
            return
        # not here: it would be swallowed again, as one is that comes while a busy machine still starts the timer
        delay_s = _AGAIN_S
        while True:
            try:
                threading.Timer(delay_s, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
                return
            except KeyboardInterrupt:
                delay_s *= 2

    sys.unraisablehook = swallowed


def silence_interrupted_tasks() -> None:
    """Drop asyncio's report on a task ended by an interrupt, as by a second Ctrl-C; the command reports its own end."""
    import logging

    def is_reported(record: logging.LogRecord) -> bool:
        return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)

    logging.getLogger("asyncio").addFilter(is_reported)


@contextmanager
def terminated_alike(numbers: list[int]) -> Iterator[None]:
    """Inside, make SIGTERM act like SIGINT and put its number into `numbers`; a second one ends the process at once.

    So a batch system's end of a job is as orderly as Ctrl-C. Only in the first of several processes, as the others
    report nothing, and only where no other handler is set.
    """
    is_first = os.environ.get("RANK", "0") == "0" and threading.current_thread() is threading.main_thread()
    if not is_first or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if numbers:
            os._exit(128 + number)
        numbers.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def collect_rarely() -> None:
    """Set the garbage collector's threshold for this process."""
    gc.set_threshold(20_000, 20, 20)
