"""Load on the endpoint: 200 concurrent streams on the embedded engine; some clients disconnect or read slowly.

    python -m benchmarks.serve_load --waves 8 --warmup 2 --out benchmarks/results/serve_load.json
    python -m benchmarks.serve_load --scripted --out benchmarks/results/serve_load_scripted.json
    GLIBC_TUNABLES=glibc.malloc.check=0 python -m benchmarks.serve_load --waves 8    # with glibc's own settings

Starts `ttc serve` in a process of its own and sends identical waves of streams. One client in five disconnects after a
few chunks, one in five reads slowly; the rest must each get a complete, valid reply. After every wave nothing may be
running, no additional file descriptor may be open, and no wave after the warm-up may raise resident memory by 2 %,
neither over the wave before nor over the highest so far. A client's behaviour is drawn from (seed, number of the
client), the same in every wave.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import httpx2

from benchmarks.machine import occasion
from benchmarks.served import cpu_s, serving_process

MESSAGES = ["12+30*2", "(4+5)*3-2", "7*8+1", "99-3*(2+4)", "(1+2)*(3+4)", "6*6-6"]
SLOW_S = 0.02
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Stream:
    """How one stream went; seconds."""

    kind: str
    ok: bool
    first_s: float
    total_s: float
    tokens: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The server between waves."""

    running: int
    sequences: int
    descriptors: int
    resident_kib: int
    cpu_s: float
    """Processor time of the server since it started."""


def main() -> None:
    """Run the waves and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--waves", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scripted", action="store_true", help="an engine without a model: the server alone")
    parser.add_argument("--kv-bytes", type=int, default=1 << 26, help="the engine's keys and values")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    load = round(os.getloadavg()[2], 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving_process(*_engine(args, pathlib.Path(folder)), env=ONE_THREAD) as (url, pid),
    ):
        rows = asyncio.run(_waves(url, pid, args))
    report = {
        **occasion(),
        "cpu_seconds": rows[-1]["state"]["cpu_s"],
        "streams": args.streams,
        "warmup_waves": args.warmup,
        "seed": args.seed,
        "load_before": load,
        "engine": "scripted" if args.scripted else "embedded",
        "allocator": {name: at for name, at in os.environ.items() if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))},
        "kv_bytes": None if args.scripted else args.kv_bytes,
        "waves": rows,
        "checks": _checks(rows, args.warmup),
    }
    print(_table(rows))
    print(json.dumps(report["checks"], indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _engine(args: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """Options of `ttc serve`: the packaged model, or replies that are read from a file."""
    if not args.scripted:
        return ["--set", f"engine.kv_bytes={args.kv_bytes}"]
    file = folder / "replies.json"
    reply = "a thought of some length, " * 4 + "</think>\n\nThe answer is 7."
    file.write_text(json.dumps({message: [reply] for message in MESSAGES}), encoding="utf-8")
    return [str(file), "--engine", "scripted", "--name", "nano-teacher", "--set", "engine.thinking=true"]


async def _waves(url: str, pid: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    async with httpx2.AsyncClient(timeout=None) as probe:
        before = await _state(probe, url, pid)
        rows.append({"wave": 0, "state": asdict(before)})
        for wave in range(1, args.waves + 1):
            started = time.perf_counter()
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            async with httpx2.AsyncClient(timeout=None, limits=limits) as client:
                streams = await asyncio.gather(*(_stream(client, url, i, args.seed) for i in range(args.streams)))
            seconds = time.perf_counter() - started
            state = await _settled(probe, url, pid)
            rows.append(_row(wave, streams, seconds, before, state))
            before = state
            print(f"wave {wave}: {seconds:.1f} s, {state}", file=sys.stderr, flush=True)
    return rows


async def _stream(client: httpx2.AsyncClient, url: str, number: int, seed: int) -> Stream:
    """One client: patient, slow, or gone after a few chunks."""
    draw = random.Random(f"{seed}/{number}")
    kind = draw.choice(["patient", "patient", "patient", "slow", "leaves"])
    leave_after = draw.randrange(1, 25)
    body = {
        "model": "nano-teacher",
        "messages": [{"role": "user", "content": draw.choice(MESSAGES)}],
        "seed": number,
        "max_tokens": 256,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first_s, chunks, text = time.perf_counter(), 0.0, 0, ""
    usage: dict[str, Any] = {}
    finish, ended = None, False
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            return Stream(kind, False, 0, time.perf_counter() - started, 0, f"status {response.status_code}")
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            chunks += 1
            first_s = first_s or time.perf_counter() - started
            if line == "data: [DONE]":
                ended = True
                break
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta = choice["delta"]
                text += (delta.get("reasoning") or "") + (delta.get("content") or "")
                finish = choice["finish_reason"] or finish
            if kind == "leaves" and chunks >= leave_after:
                return Stream(kind, True, first_s, time.perf_counter() - started, chunks)
            if kind == "slow":
                await asyncio.sleep(SLOW_S)
    valid = ended and finish in ("stop", "length") and bool(text) and usage.get("completion_tokens", 0) > 0
    return Stream(kind, valid, first_s, time.perf_counter() - started, usage.get("completion_tokens", 0))


async def _settled(probe: httpx2.AsyncClient, url: str, pid: int) -> State:
    """The state once no request is running, or after five seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        state = await _state(probe, url, pid)
        if (state.running, state.sequences) == (0, 0):
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    return await _state(probe, url, pid)


async def _state(probe: httpx2.AsyncClient, url: str, pid: int) -> State:
    text = (await probe.get(f"{url}/metrics")).text

    def gauge(name: str) -> int:
        return sum(int(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\d+)$", text, re.M))

    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    resident = re.search(r"VmRSS:\s+(\d+)", status)
    return State(
        running=gauge("ttc_num_requests_running"),
        sequences=gauge("ttc_num_sequences_running"),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        resident_kib=int(resident[1]) if resident else 0,
        cpu_s=round(cpu_s(pid), 2),
    )


def _row(wave: int, streams: list[Stream], seconds: float, before: State, state: State) -> dict[str, Any]:
    whole = [stream for stream in streams if stream.kind != "leaves"]
    patient = [stream for stream in streams if stream.kind == "patient"]
    return {
        "wave": wave,
        "seconds": round(seconds, 2),
        "streams": len(streams),
        "left": len(streams) - len(whole),
        "slow": len(whole) - len(patient),
        "valid": sum(stream.ok for stream in whole),
        "wanted": len(whole),
        "tokens_per_s": round(sum(stream.tokens for stream in whole) / seconds, 1),
        "cpu_s": round(state.cpu_s - before.cpu_s, 2),
        "first_chunk_p50_s": round(statistics.median(stream.first_s for stream in patient), 3),
        "reply_p50_s": round(statistics.median(stream.total_s for stream in patient), 3),
        "reply_max_s": round(max(stream.total_s for stream in patient), 3),
        "notes": sorted({stream.note for stream in streams if stream.note}),
        "state": asdict(state),
    }


def _checks(rows: list[dict[str, Any]], warmup: int) -> dict[str, Any]:
    start, waves = rows[0]["state"], rows[1:]
    kept = [row["state"]["resident_kib"] for row in waves[max(warmup - 1, 0) :]]
    growth = [after / before - 1 for before, after in itertools.pairwise(kept)]
    raised = [after / high - 1 for high, after in zip(itertools.accumulate(kept, max), kept[1:], strict=False)]
    return {
        "every_reply_valid": all(row["valid"] == row["wanted"] for row in waves),
        "running_back_to_start": all(row["state"]["running"] == row["state"]["sequences"] == 0 for row in waves),
        "descriptors_back_to_start": all(row["state"]["descriptors"] <= start["descriptors"] for row in waves[-1:]),
        "largest_growth_of_memory_between_waves": round(max(growth, default=0.0), 4),
        "largest_growth_of_memory_over_the_highest_before": round(max(raised, default=0.0), 4),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| wave | s | CPU s | valid | left | tokens/s | first chunk p50 | reply p50 | running | descriptors | MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows[1:]:
        state = row["state"]
        lines.append(
            f"| {row['wave']} | {row['seconds']} | {row['cpu_s']} | {row['valid']} of {row['wanted']} | "
            f"{row['left']} | {row['tokens_per_s']} | {row['first_chunk_p50_s']} | {row['reply_p50_s']} | "
            f"{state['running']} | {state['descriptors']} | {state['resident_kib'] / 1024:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
