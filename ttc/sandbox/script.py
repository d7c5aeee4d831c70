"""Run a program as a script: standard input in, standard output and the exit status out."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from typing import Any, NoReturn

NAME = "program.py"


def script(job: Mapping[str, Any]) -> NoReturn:
    """Run job["source"] as `__main__` and end like an interpreter does."""
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = NAME
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
        exec(compile(source, NAME, "exec", dont_inherit=True), namespace)
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return (exc.code or 0) & 255
        sys.stderr.write(f"{exc.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
