"""What a cell does with a program: run it as a script, or load it and answer calls of its functions.

The program shares this process with the code below and may change all of it; what comes back is only what the program
claims that its functions return. It is compared elsewhere, with values that were never here.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from ttc.sandbox import values, wire
from ttc.sandbox.cell import JOB, REPORT

NAME = "solution"
LOADED = b"loaded"


def serve(job: Mapping[str, Any]) -> NoReturn:
    """Run job["source"] as a module, then answer calls; ends with the stream."""
    module = types.ModuleType(NAME)
    module.__dict__["__file__"] = f"{NAME}.py"
    sys.modules[NAME] = module
    try:
        exec(compile(job["source"], f"{NAME}.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as exc:  # also SystemExit: a program that leaves has no functions
        wire.write(REPORT, wire.GONE, describe(exc).encode("utf-8", "replace"))
        os._exit(1)
    wire.write(REPORT, wire.REPLY, LOADED)
    handles: list[object] = []
    while (frame := wire.read(JOB)) is not None:
        wire.write(REPORT, wire.REPLY, _answer(frame[1], module.__dict__, handles))
    os._exit(0)


def describe(exc: BaseException) -> str:
    """One line on an exception of the program, with the line of the program it came from."""
    line, trace = 0, exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == f"{NAME}.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(exc, SyntaxError):
        line = exc.lineno or 0
    return f"{type(exc).__name__}{f' in line {line}' if line else ''}: {str(exc)[:200]}"


def _answer(call: bytes, namespace: Mapping[str, Any], kept: list[object]) -> bytes:
    def keep(value: object) -> int:
        kept.append(value)
        return len(kept) - 1

    try:
        name, args, kwargs = values.load(call, kept.__getitem__)
        return values.dump(["value", _function(name, namespace)(*args, **kwargs)], keep)
    except BaseException as exc:  # whatever the program raises is an answer
        return values.dump(["raised", type(exc).__name__, describe(exc)], keep)


def _function(name: str, namespace: Mapping[str, Any]) -> Any:
    """That method of a new `Solution`, as contest sites call it, or the function `name`."""
    if hasattr(namespace.get("Solution"), name):
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"the program defines no {name}")
    return namespace[name]


SCRIPT_NAME = "program.py"


def script(job: Mapping[str, Any]) -> NoReturn:
    """Run job["source"] as `__main__` and end like an interpreter does."""
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = SCRIPT_NAME
    sys.modules["__main__"] = main
    status = _run(job["source"], main.__dict__)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        status = status or 1
    os._exit(status)


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
