"""`ttc serve` in a process of its own, for scripts that use a model over HTTP; the address is read from its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from evals.task import Item

START_S = 300.0


class ServingEnded(RuntimeError):
    """The server ended, or did not listen in time; the message is its output."""


@contextmanager
def serving(*words: str | Path) -> Iterator[str]:
    """Run `ttc serve WORDS` on a free port; gives its address, without a slash at the end."""
    with serving_process(*words) as (url, _):
        yield url


@contextmanager
def serving_process(
    *words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[tuple[str, int]]:
    """The same in the folder `cwd`, with the variables `env` added to this environment; gives its process, too.

    Its log goes to a file: a pipe that nobody reads would stop it once it is full.
    """
    command = [sys.executable, "-m", "ttc", "serve", *map(str, words), "--port", "0"]
    with (
        tempfile.NamedTemporaryFile("w+") as log,
        subprocess.Popen(command, stderr=log, env={**os.environ, **(env or {})}, cwd=cwd) as server,
    ):
        try:
            yield _address(server, Path(log.name)), server.pid
        finally:
            server.terminate()


def greedy_texts(model: Path, items: Sequence[Item], max_tokens: int) -> list[str]:
    """What `ttc serve MODEL` answers to the questions of these items, greedily."""
    texts = []
    with serving(model, "--name", "student") as url, httpx2.Client(base_url=url, timeout=120) as client:
        for item in items:
            messages = [{"role": "user", "content": item.problem.messages[0].content}]
            body = {"model": "student", "messages": messages, "temperature": 0, "max_tokens": max_tokens}
            reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            texts.append(str(reply["choices"][0]["message"]["content"] or ""))
    return texts


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    began = time.monotonic()
    while (address := re.search(r'"listening on ([^"\s]+)"', text := log.read_text())) is None:
        if server.poll() is not None or time.monotonic() - began > START_S:
            raise ServingEnded(f"ttc serve did not come up: {text}")
        time.sleep(0.1)
    return address[1]
