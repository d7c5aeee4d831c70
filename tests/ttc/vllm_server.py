"""A real vLLM server on loopback, in a process of its own, for tests of what talks to one.

It is started by its module: the `vllm` command needs a distribution called vllm, which the CPU build is not.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ttc.openai_setup import free_port

START_S = 480.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
OPTIONS = ["--block-size", "32", "--enforce-eager", "--enable-prompt-tokens-details"]
OPTIONS += ["--no-enable-chunked-prefill"]  # with it, seeded requests kill the CPU build of vLLM 0.32


@contextlib.contextmanager
def vllm_server(model: str, folder: Path, *options: str) -> Iterator[str]:
    """Serve `model`; gives the address without /v1. `folder` takes the log."""
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *OPTIONS, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=os.environ | ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _wait(health: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the server; a server that ended says why."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(health, timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")


def counted(url: str) -> Counter[str]:
    """VLLM's own counters of tokens."""
    text = urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10).read().decode()
    found: Counter[str] = Counter()
    for name, value in re.findall(r"^vllm:(\w+)_total\{[^}]*\} (\S+)$", text, re.M):
        found[name] += int(float(value))
    return found
