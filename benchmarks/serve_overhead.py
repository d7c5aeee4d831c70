"""Overhead of `ttc serve` over vLLM: the same requests to `vllm serve` and `ttc serve --engine vllm`, interleaved.

    python -m benchmarks.serve_overhead --python .venv-vllm/bin/python --model build/smollm2 \
        --out benchmarks/results/serve_overhead.json

Both run in the environment of --python (vLLM and ttckit[serve]), each with vLLM's engine in a process of its own and
the same options. Greedy chats of a fixed length are sent by 1, 4 and 16 clients, whole (or with --stream streamed);
runs of the two alternate, so that changes of the machine affect both, and each goes first in turn. Reported are the
medians over runs: throughput in generated tokens a second, and the latency of a request; the goal is a ratio of at
least 0.95, and less than 5 ms more. The range of the ratio is over pairs of neighbouring runs. The CPU time is that of
the HTTP process, without vLLM's own, which waits by spinning; it hardly depends on other load. About ten minutes on two
idle cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.machine import commit
from benchmarks.served import cpu_s

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
VLLM = ["--max-model-len", "2048", "--block-size", "32", "--enforce-eager", "--no-enable-chunked-prefill"]
OURS = ["engine.in_process=false", "engine.max_context=2048", f"engine.kv_cache_bytes={1 << 30}"]
START_S = 600.0
GOAL_RATIO, GOAL_S = 0.95, 0.005
QUESTION = "Tell me about the number {}."


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one server: generated tokens a second, median latency of a request, CPU of the HTTP process."""

    tokens_per_s: float
    latency_s: float
    cpu_ms_per_token: float


def main() -> None:
    """Start both, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="python of an environment with vLLM and ttckit[serve]")
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, help="requests of one run; by default 4 per client and at least 8")
    parser.add_argument("--stream", action="store_true", help="stream the replies")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    model = str(pathlib.Path(args.model).resolve())
    vllm = [args.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *VLLM]
    vllm += ["--served-model-name", "m", "--host", "127.0.0.1", "--port"]
    ours = [args.python, "-m", "ttc", "serve", model, "--engine", "vllm", "--name", "m"]
    ours += [part for option in OURS for part in ("--set", option)] + ["--port"]
    started, load = time.perf_counter(), os.getloadavg()[2]
    with _server(vllm) as theirs, _server(ours) as mine:
        rows = asyncio.run(_measure({"vllm": theirs, "ttc": mine}, args))
    report = {
        "model": pathlib.Path(model).name,
        "runs": args.runs,
        "commit": commit(),
        "streamed": args.stream,
        "max_tokens": args.max_tokens,
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        "seconds": round(time.perf_counter() - started),
        "rows": rows,
    }
    print(_table(rows))
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    url: str
    pid: int


@contextmanager
def _server(command: list[str]) -> Iterator[Server]:
    """Run a server on a free port until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, str(port)], env=os.environ | ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait(url, process)
            yield Server(url, process.pid)
        except SystemExit:
            log.seek(0)
            print(log.read()[-3000:])
            raise
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx2.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx2.HTTPError:
            time.sleep(0.5)
    raise SystemExit(f"{url} did not start")


async def _measure(servers: dict[str, Server], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for clients in args.clients:
        requests = args.requests or max(4 * clients, 8)
        runs: dict[str, list[Run]] = {name: [] for name in servers}
        for server in servers.values():
            await _run(server, clients, requests, args)  # warm up: every prompt is then in both prefix caches
        for turn in range(args.runs):
            for name in list(servers)[:: -1 if turn % 2 else 1]:
                runs[name].append(await _run(servers[name], clients, requests, args))
        rows.append(_row(clients, requests, runs))
        print(rows[-1], flush=True)
    return rows


async def _run(server: Server, clients: int, requests: int, args: argparse.Namespace) -> Run:
    latencies: list[float] = []
    tokens = 0
    numbers = iter(range(requests))

    async def one_client(http: httpx2.AsyncClient) -> None:
        nonlocal tokens
        for number in numbers:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": QUESTION.format(number)}],
                "temperature": 0,
                "max_tokens": args.max_tokens,
                **({"stream": True, "stream_options": {"include_usage": True}} if args.stream else {}),
            }
            started = time.perf_counter()
            response = await http.post(f"{server.url}/v1/chat/completions", json=body)
            response.raise_for_status()
            latencies.append(time.perf_counter() - started)
            tokens += _completion_tokens(response.text, args.stream)

    before, started = cpu_s(server.pid), time.perf_counter()
    async with httpx2.AsyncClient(timeout=600) as http:
        await asyncio.gather(*(one_client(http) for _ in range(clients)))
    seconds = time.perf_counter() - started
    return Run(tokens / seconds, statistics.median(latencies), 1000 * (cpu_s(server.pid) - before) / tokens)


def _completion_tokens(text: str, stream: bool) -> int:
    """Of a reply, or of the last chunk of a stream."""
    if stream:
        text = [line for line in text.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
    return int(json.loads(text)["usage"]["completion_tokens"])


def _row(clients: int, requests: int, runs: dict[str, list[Run]]) -> dict[str, Any]:
    def median(name: str, field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs[name])

    ratio = median("ttc", "tokens_per_s") / median("vllm", "tokens_per_s")
    added = median("ttc", "latency_s") - median("vllm", "latency_s")
    pairs = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in zip(runs["ttc"], runs["vllm"], strict=True)]
    return {
        "clients": clients,
        "requests": requests,
        "vllm_tokens_per_s": round(median("vllm", "tokens_per_s"), 1),
        "ttc_tokens_per_s": round(median("ttc", "tokens_per_s"), 1),
        "throughput_ratio": round(ratio, 3),
        "ratio_range": [round(min(pairs), 3), round(max(pairs), 3)],
        "vllm_latency_s": round(median("vllm", "latency_s"), 4),
        "ttc_latency_s": round(median("ttc", "latency_s"), 4),
        "added_latency_s": round(added, 4),
        "vllm_cpu_ms_per_token": round(median("vllm", "cpu_ms_per_token"), 3),
        "ttc_cpu_ms_per_token": round(median("ttc", "cpu_ms_per_token"), 3),
        "meets_goal": ratio >= GOAL_RATIO and added < GOAL_S,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| clients | vllm serve, tokens/s | ttc serve, tokens/s | ratio (range) | added median latency, ms | "
        "HTTP process, CPU ms a token: vllm, ttc |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['clients']} | {row['vllm_tokens_per_s']} | {row['ttc_tokens_per_s']} | {row['throughput_ratio']} "
        f"({row['ratio_range'][0]} to {row['ratio_range'][1]}) | {1000 * row['added_latency_s']:.1f} | "
        f"{row['vllm_cpu_ms_per_token']}, {row['ttc_cpu_ms_per_token']} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
