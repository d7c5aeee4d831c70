"""Memory of the endpoint over thousands of requests that are all different, for several sizes of the prefix cache.

    python -m benchmarks.serve_memory --kv-mib 64 128 --json benchmarks/results/serve_memory.json
    python -m benchmarks.serve_memory --engine simulated --json benchmarks/results/serve_memory_simulated.json

Starts `ttc serve` with the packaged model for each size, or with an engine that computes nothing (the server alone),
and sends `--requests` chats, `--clients` at once, no two of which share more than their template. Resident memory
(VmRSS of /proc) is read every 500 requests. There is a plateau if the last half adds less than 2 % to the memory after
the first half. About six minutes of a core for 10,000 requests and one size; without a model two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import httpx2

from benchmarks.machine import occasion
from benchmarks.served import serving_process

EVERY = 500
GOAL = 0.02


def main() -> None:
    """Measure each size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-mib", type=int, nargs="+", default=[64], help="engine.kv_bytes, in MiB; 0 is the default")
    parser.add_argument("--engine", choices=("embedded", "simulated"), default="embedded")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    report: dict[str, Any] = {
        **occasion(),
        "engine": args.engine,
        "requests": args.requests,
        "clients": args.clients,
        "max_tokens": args.max_tokens,
        "sizes": [],
    }
    for size in args.kv_mib:
        report["sizes"].append(measured(size, args))
        print(row(report["sizes"][-1]), flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measured(size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Resident MiB every 500 requests with a cache of `size` MiB."""
    options = ["--set", f"engine.kv_bytes={size << 20}"] if size and args.engine == "embedded" else []
    options = options if args.engine == "embedded" else ["--engine", args.engine, "--scorer", args.engine]
    with serving_process(*options, env={"OMP_NUM_THREADS": "1"}) as (url, pid):
        resident = asyncio.run(waves(url, pid, args))
    half = resident[: len(resident) // 2 + 1]
    growth = max(resident) / max(half) - 1
    return {"kv_mib": size, "resident_mib": resident, "last_half_adds": round(growth, 4), "plateau": growth < GOAL}


async def waves(url: str, pid: int, args: argparse.Namespace) -> list[float]:
    """Send everything; the first figure is that of the server that has answered nothing."""
    resident = [resident_mib(pid)]
    limits = httpx2.Limits(max_connections=args.clients)
    async with httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        for begin in range(0, args.requests, EVERY):
            numbers = iter(range(begin, min(begin + EVERY, args.requests)))
            await asyncio.gather(*(worker(client, model, numbers, args.max_tokens) for _ in range(args.clients)))
            resident.append(resident_mib(pid))
    return resident


async def worker(client: httpx2.AsyncClient, model: str, numbers: Any, max_tokens: int) -> None:
    """One client: the next of `numbers`, until there is none."""
    for number in numbers:
        text = f"{number}+{number * 7919 % 100003}*{number * 104729 % 99991}-{number % 97}"
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
        reply = await client.post("/v1/chat/completions", json={**body, "seed": number})
        reply.raise_for_status()


def resident_mib(pid: int) -> float:
    """VmRSS."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return round(int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024, 1)


def row(size: dict[str, Any]) -> str:
    """One line of the table."""
    resident: Sequence[float] = size["resident_mib"]
    marks = [resident[0], resident[len(resident) // 4], resident[len(resident) // 2], resident[-1]]
    kv = f"{size['kv_mib']} MiB" if size["kv_mib"] else "default"
    shown = " | ".join(f"{mark:.0f}" for mark in marks)
    return f"| {kv} | {shown} | {size['last_half_adds']:.2%} | {'yes' if size['plateau'] else 'no'} |"


if __name__ == "__main__":
    main()
