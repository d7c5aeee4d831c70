"""The worker process of the pool: `python -m ttc.verifiers.workers.worker maths|patterns|schemas MEMORY_MB`.

Reads length-prefixed JSON requests on standard input, writes one reply each on standard output. Every request brings
its limits. A soft alarm, after so much of the processor's time, ends most over-long work inside the process and keeps
it warm; the parent kills it when that fails; a CPU limit ends it when the parent is gone; a thread ends it when its
parent changes.

    request   {"call": "maths", "soft_s": 1.2, "cpu_s": 2, ...}
    reply     {"status": "ok", ...} or {"status": "timeout" | "limit" | "error", "reason": "..."}

`maths` compares answers; `patterns` and `schemas` run those of tasks over text: Python's `re` backtracks, and a schema
may hold patterns as well, so both can take exponential time on a hostile text. What a program imports, it imports
before it is ready, so that no request pays for it. What few calls need (`later`) is imported when the parent
asks for it, before the first of these:

    request   {"load": "latex"}
    reply     {"status": "ready"}

Left out: a sandbox. Nothing here runs text as code; code tasks need a jail, not this.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from ttc.verifiers.workers.frames import read_frame, write_frame

Call: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]


class SoftTimeout(BaseException):
    """The alarm; not an Exception, so that no library swallows it."""


def serve(calls: Mapping[str, Call], memory_mb: int, later: Mapping[str, Callable[[], None]] | None = None) -> None:
    """Answer requests by name of call until the input ends; never returns into a half-read stream.

    `later` has the imports of calls that few requests make.
    """
    loads = later or {}
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a library prints must not reach the pipe.
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGPROF, _alarm)
    sys.setrecursionlimit(4000)
    sys.set_int_max_str_digits(20_000)
    _limit(resource.RLIMIT_AS, memory_mb << 20)
    write_frame(replies, {"status": "ready", "later": [*loads]})
    while (request := read_frame(requests)) is not None:
        if "load" in request:
            _limit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU)[1])
            loads[request["load"]]()
            write_frame(replies, {"status": "ready"})
        else:
            write_frame(replies, answer(calls, request))


def answer(calls: Mapping[str, Call], request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request under its limits; every outcome is a reply."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + request["cpu_s"]))
    try:
        signal.setitimer(signal.ITIMER_PROF, request["soft_s"])
        try:
            return {"status": "ok", **calls[request["call"]](request)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except SoftTimeout:
        return {"status": "timeout", "reason": "soft limit"}
    except MemoryError:
        return {"status": "limit", "reason": "memory"}
    except RecursionError:
        return {"status": "limit", "reason": "depth"}
    except Exception as exc:
        # A library that fails on hostile text is an outcome to report, never the end of the worker.
        return {"status": "error", "reason": f"{type(exc).__name__}: {exc}"[:200]}


def _alarm(_signal: int, _frame: types.FrameType | None) -> NoReturn:
    raise SoftTimeout


def _limit(which: int, value: int) -> None:
    """Lower a soft limit; systems that do not know it (memory on macOS) leave the wall clock as the limit."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


# -- what it is asked ------------------------------------------------------------------------------------------------
_DEPTH = 200


def search(request: Mapping[str, Any]) -> dict[str, Any]:
    """Whether each of request["patterns"] occurs in request["text"] (or is all of it, with "whole")."""
    flags = int(request["flags"])
    compiled = [re.compile(pattern, flags) for pattern in request["patterns"]]
    find = [pattern.fullmatch if request["whole"] else pattern.search for pattern in compiled]
    return {"found": [match(request["text"]) is not None for match in find]}


def validate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Whether request["text"] is JSON that request["schema"] allows, and if not, where it fails first."""
    import jsonschema
    import referencing

    try:
        value = json.loads(request["text"], parse_constant=_no_number, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as exc:
        return {"valid": False, "reason": f"not JSON ({exc})"[:200]}
    if _deeper(value, _DEPTH):
        return {"valid": False, "reason": f"limit: nested deeper than {_DEPTH}"}
    schema = request["schema"]
    # An empty registry: a reference to another place is an error, never a download.
    checker = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(
        schema, registry=referencing.Registry()
    )
    error = jsonschema.exceptions.best_match(checker.iter_errors(value))
    return {"valid": error is None, "reason": "" if error is None else f"{error.json_path}: {error.message}"[:200]}


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [child for item in layer for child in _children(item)]
        if not layer:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def serve_maths(memory_mb: int) -> None:
    """Serve comparisons: with numbers, and with math-verify, whose import takes half a second."""
    from ttc.verifiers.maths.judging import judge

    serve({"maths": judge, "latex": judge}, memory_mb, {"latex": _load_math_verify})


def _load_math_verify() -> None:
    import latex2sympy2_extended  # noqa: F401
    import math_verify.grader

    math_verify.grader.logger.disabled = True


def serve_patterns(memory_mb: int) -> None:
    """Serve searches for patterns."""
    serve({"search": search}, memory_mb)


def serve_schemas(memory_mb: int) -> None:
    """Serve checks against schemas."""
    with contextlib.suppress(ImportError):  # then every request says what is missing
        import jsonschema  # noqa: F401
        import referencing  # noqa: F401
    serve({"validate": validate}, memory_mb)


_PROGRAMS = {"maths": serve_maths, "patterns": serve_patterns, "schemas": serve_schemas}

if __name__ == "__main__":
    _PROGRAMS[sys.argv[1]](int(sys.argv[2]))
