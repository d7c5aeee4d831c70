"""A worker program for the tests of the pool: its one call misbehaves on request."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ttc.verifiers.workers.worker import serve

LOADS: list[str] = []


def load() -> None:
    """As long as an import that takes longer than a request may."""
    time.sleep(0.7)
    LOADS.append("late")


def work(until_s: float) -> None:
    """Until the process has taken so many seconds of a processor."""
    while time.process_time() < until_s:
        pass


def misbehave(request: Mapping[str, Any]) -> dict[str, Any]:
    how = request["how"]
    if how == "hang in C":
        # What a long call into a C library looks like from outside: signals are not handled.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
    while how in ("spin", "hang in C"):
        pass
    if how == "work":
        work(request["until_s"])
    if how == "work in a thread":
        time.sleep(request["first_s"])
        thread = threading.Thread(target=work, args=(request["until_s"],))
        thread.start()
        thread.join()
    if how == "sleep":
        time.sleep(60)
    if how == "memory":
        bytearray(1 << 40)
    if how == "exit":
        os._exit(3)
    if how == "recursion":
        return misbehave(request)
    if how == "raise":
        raise KeyError("broken")
    if how == "print":
        os.write(1, b"\x00\x00\x00\x01garbage")
        sys.stdout.write("garbage")
        sys.stdout.flush()
    return {
        "pid": os.getpid(),
        "environment": sorted(os.environ),
        "echo": request.get("echo"),
        "num_loads": len(LOADS),
        "spent_s": time.process_time(),
    }


if __name__ == "__main__":
    serve({"misbehave": misbehave, "late": misbehave}, int(sys.argv[1]), {"late": load})
