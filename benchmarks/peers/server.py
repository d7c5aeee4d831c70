"""The server: vLLM with the extended template, its counters, and the time it keeps working after a client is killed.

The command is vLLM's module form, since `vllm serve` does not start in its CPU build. One thread, eager, blocks of 32
tokens, whole-prompt prefill, developer mode (so that every row begins with an empty prefix cache).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HANDOVER = "\n\nTime is up, I must answer now.\n</think>\n\n"
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
KEPT = ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total", "prefix_cache_queries_total")
GAUGES = ("num_requests_running", "num_requests_waiting")


def command(python: Path, folder: Path, name: str, port: int, template: Path | None, dtype: str) -> list[str]:
    """What starts the server; `template` is None where the folder's own is used."""
    reasoning = {"reasoning_start_str": "<think>", "reasoning_end_str": HANDOVER}
    own = ["--reasoning-config", json.dumps(reasoning), "--chat-template", str(template)] if template else []
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--served-model-name", name, "--port", str(port), "--dtype", dtype, "--max-model-len", "2048"),
        *("--max-num-seqs", "256", "--enforce-eager", "--block-size", "32", "--no-enable-chunked-prefill"),
        *("--enable-prompt-tokens-details", "--trust-request-chat-template", *own),
    ]


@contextmanager
def serving(line: list[str], port: int, log: Path) -> Iterator[str]:
    """The server's address; it is started unless one answers there, and ended again if it was started here."""
    url = f"http://127.0.0.1:{port}"
    if _answers(url):
        served = json.load(urllib.request.urlopen(url + "/v1/models", timeout=20))["data"][0]["id"]
        if served not in line:
            raise RuntimeError(f"port {port} serves {served}: end that server, or take another --port")
        yield url
        return
    with log.open("wb") as sink:
        process = subprocess.Popen(line, env={**os.environ, **SETTINGS}, stdout=sink, stderr=sink)
    try:
        while not _answers(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}: see {log}")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url + "/health", timeout=5)
    except OSError:
        return False
    return True


def counters(url: str) -> dict[str, float]:
    """The server's counters and gauges by short name, and what it ended by reason."""
    text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    values: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:([a-z_:]+)(\{[^}]*\})?\s+([0-9.eE+-]+)$", text, re.M):
        if name == "request_success_total":
            name = "ended_" + re.findall(r'finished_reason="([^"]*)"', labels)[0]
        elif name not in KEPT + GAUGES:
            continue
        values[name] = values.get(name, 0.0) + float(value)
    for status, value in re.findall(r'^http_requests_total\{[^}]*/v1/[^}]*status="(...?)"[^}]*\}\s+(\S+)$', text, re.M):
        values["http_" + status] = values.get("http_" + status, 0.0) + float(value)
    return values


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, int]:
    """The difference of two readings of the counters."""
    names = sorted(name for name in {*before, *after} if name not in GAUGES)
    return {name: round(after.get(name, 0) - before.get(name, 0)) for name in names}


def at_work(url: str) -> int:
    """Sequences that the server is decoding or holds back."""
    values = counters(url)
    return round(sum(values.get(name, 0) for name in GAUGES))


def settle(url: str) -> None:
    """Wait until the server is idle and its counters no longer change."""
    while at_work(url):
        time.sleep(0.1)
    time.sleep(0.5)


def forget(url: str) -> None:
    """Empty the prefix cache."""
    urllib.request.urlopen(urllib.request.Request(url + "/reset_prefix_cache", method="POST"), timeout=60)
