"""A process that has imported everything, and runs `ttc` in a child per line: {"args": [..], "log": .., "after": ..}.

A child is killed (SIGKILL) `after` seconds (null: never). Answers a line: [exit status, or minus the signal, seconds].
A start costs a fork instead of an import of torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import transformers

import distill.commands.distill
import ttc.engines.embedded.engine
from ttc.cli.cli import main

LOADED = (transformers, distill.commands.distill, ttc.engines.embedded.engine)


def run(args: list[str], log: Path, after: float | None) -> tuple[int, float]:
    """Run `ttc ARGS` in a child; returns how it ended and how long it lived."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w")
        status = main(args)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        lived = time.monotonic() - began
        if done:
            return os.waitstatus_to_exitcode(status), lived
        if after is not None and lived > after:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(run(asked["args"], Path(asked["log"]), asked["after"])) + "\n")
        sys.stdout.flush()
