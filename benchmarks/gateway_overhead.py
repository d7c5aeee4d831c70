"""Overhead of `ttc serve --upstream A,B`: the same chats sent directly to A and B, and through the gateway.

    python -m benchmarks.gateway_overhead --json benchmarks/results/gateway_overhead.json
    python -m benchmarks.gateway_overhead --requests 150 --against CHECKOUT

A and B are processes that answer every chat at once with a stream of a few words, so only the gateway is measured.
Direct runs and runs through the gateway alternate, and each goes first in turn. Reported are medians of a request's
time over all runs, their difference (goal: less than 2 ms), and the gateway's processor time per request. Two minutes
on an idle machine; on a busy one only the CPU time is meaningful: `--against` compares that of this checkout's gateway
with another's, alternating over the same A and B, for one client. On a shared machine, real-time scheduling (`chrt
--fifo 10 python -m ...`, which needs root) lets all processes run as on an idle one; the report records it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx2

from benchmarks.machine import occasion
from benchmarks.served import cpu_s, serving_process

WORDS = ("The", " answer", " is", " 7", ".")
CLIENTS = (1, 8)
GOAL_S = 0.002


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of a run")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path, help="another checkout of this repository")
    args = parser.parse_args()
    if args.against is not None:
        compare((args.against, pathlib.Path.cwd()), args)
        return
    load = round(os.getloadavg()[0], 2)
    with upstream() as one, upstream() as two, gateway(f"{one},{two}") as (front, pid):
        rows = [measured(clients, (one, two), front, pid, args) for clients in CLIENTS]
    report = {
        **occasion(),
        "load_before": load,
        "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
        "requests": args.requests,
        "runs": args.runs,
        "rows": rows,
    }
    print("| clients | direct, median | through the gateway, median | added | CPU time of the gateway |")
    print("|---|---|---|---|---|")
    for row in rows:
        times = " | ".join(f"{row[name]:.2f} ms" for name in ("straight_ms", "through_ms", "added_ms", "cpu_ms"))
        print(f"| {row['clients']} | {times} |")
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measured(clients: int, behind: tuple[str, str], front: str, pid: int, args: argparse.Namespace) -> dict[str, Any]:
    """The medians with so many clients at once."""
    straight: list[float] = []
    through: list[float] = []
    spent = 0.0
    for number in range(args.runs + 1):
        order = [(straight, behind), (through, (front,))]
        for times, urls in order if number % 2 else reversed(order):
            before = cpu_s(pid)
            taken = asyncio.run(run(urls, clients, args.requests))
            if number:  # the first pair warms both up
                times += taken
                spent += (cpu_s(pid) - before) if times is through else 0
    middle = statistics.median(straight) * 1000, statistics.median(through) * 1000
    added = middle[1] - middle[0]
    per_request = spent * 1000 / max(len(through), 1)
    return {
        "clients": clients,
        "straight_ms": round(middle[0], 3),
        "through_ms": round(middle[1], 3),
        "added_ms": round(added, 3),
        "cpu_ms": round(per_request, 3),
        "within_goal": added < GOAL_S * 1000,
    }


def compare(roots: tuple[pathlib.Path, ...], args: argparse.Namespace) -> None:
    """Print the processor time a request of the gateways of several checkouts."""
    spent: dict[pathlib.Path, list[float]] = {root: [] for root in roots}
    with contextlib.ExitStack() as stack:
        behind = ",".join(stack.enter_context(upstream()) for _ in range(2))
        gateways = {root: stack.enter_context(gateway(behind, root)) for root in roots}
        for number in range(args.runs + 1):
            for root in roots if number % 2 else reversed(roots):
                url, pid = gateways[root]
                before = cpu_s(pid)
                asyncio.run(run((url,), 1, args.requests))
                if number:  # the first pair warms both up
                    spent[root].append((cpu_s(pid) - before) * 1000 / args.requests)
    for root, times in spent.items():
        print(f"{root}: {statistics.median(times):.2f} ms a chat ({min(times):.2f} to {max(times):.2f})")


async def run(urls: tuple[str, ...], clients: int, requests: int) -> list[float]:
    """Seconds of each request."""
    taken: list[float] = []
    numbers = iter(range(requests))
    places = itertools.cycle(urls)
    async with httpx2.AsyncClient(timeout=30) as client:

        async def worker() -> None:
            for number in numbers:
                messages = [{"role": "user", "content": f"question {number}"}]
                body = {"model": "up", "messages": messages, "stream": True, "max_tokens": 16}
                begun = time.perf_counter()
                async with client.stream("POST", f"{next(places)}/chat/completions", json=body) as reply:
                    reply.raise_for_status()
                    text = "".join([part async for part in reply.aiter_text()])
                taken.append(time.perf_counter() - begun)
                if "[DONE]" not in text:
                    raise RuntimeError(text[-300:])

        await asyncio.gather(*(worker() for _ in range(clients)))
    return taken


@contextlib.contextmanager
def gateway(behind: str, root: pathlib.Path | None = None) -> Iterator[tuple[str, int]]:
    """The address of `ttc serve`, of the checkout at `root`, in front of `behind`, and its process."""
    place = {} if root is None else {"PYTHONPATH": str(root.resolve())}
    with serving_process("up", "--upstream", behind, env=place, cwd=root) as (url, pid):
        yield f"{url}/v1", pid


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    """The address of a server that answers at once."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=answer, args=(theirs,), daemon=True)
    child.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        child.terminate()
        child.join(10)


def answer(pipe: Any) -> None:
    """Print the port, then serve until the process ends."""

    async def serve() -> None:
        server = await asyncio.start_server(converse, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
            await reader.readexactly(size)
            writer.write(listed() if head.startswith(b"get ") else streamed())
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def listed() -> bytes:
    """The reply that lists the one model."""
    return whole(b'{"object": "list", "data": [{"id": "up"}]}', b"application/json")


def streamed() -> bytes:
    """A reply as a stream."""
    events: list[dict[str, Any]] = [
        {"id": "x", "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in WORDS
    ]
    events += [{"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    events += [{"id": "x", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(WORDS)}}]
    text = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    return whole(text + b"data: [DONE]\n\n", b"text/event-stream")


def whole(content: bytes, kind: bytes) -> bytes:
    """An HTTP reply."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(content), content)


if __name__ == "__main__":
    main()
