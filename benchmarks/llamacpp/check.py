"""The openai engine against llama.cpp's own server, with checks that can fail; run by `run.sh`.

The parts of the engines' conformance suite that apply to a server which returns ids with whole answers only, every
strategy (also under thinking control) with its ledger, log-probabilities and greedy decoding against the embedded
engine, requests beyond the slots, a cancellation, and our ledger against the counters that the server itself exports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.machine import machine
from benchmarks.sglang_cpu.check import BASIC, QUESTIONS, attempt, checks_of, prompt, stop_strings_hold
from tests.ttc import test_conformance as conformance
from ttc.core import Sampling
from ttc.engines.embedded.engine import embedded
from ttc.engines.openai.engine import RemoteEngine
from ttc.engines.openai.factory import openai

LEFT_OUT = (
    conformance.test_a_cancelled_draw_is_aborted_and_its_tokens_are_overrun,  # needs ids as they come
    conformance.test_a_draw_resumed_in_pieces_equals_one_long_run,  # needs random numbers by position
)
COUNTERS = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total", "requests_processing")


async def equals_embedded(engine: Any, other: Any) -> str:
    """Two engines, one model, float32: greedy decoding gives the same tokens with the same log-probabilities."""
    worst = total = 0.0
    for question in QUESTIONS:
        sampling = Sampling(temperature=0.0, max_tokens=48, logprobs=True)
        (a,) = await engine.generate(prompt(engine, question), sampling, range(1), lambda usage: None)
        (b,) = await other.generate(prompt(other, question), sampling, range(1), lambda usage: None)
        if a.token_ids != b.token_ids:
            raise AssertionError(f"{a.token_ids} != {b.token_ids}")
        worst = max(worst, *(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)))
        total += len(a.token_ids)
    if not worst < 1e-2:
        raise AssertionError(f"largest difference {worst}")
    return f"{total:.0f} tokens the same, log-probabilities within {worst:.1e} nats"


async def seeds_hold(engine: Any) -> str:
    """Seeds give different draws, and one after the other the same ones again."""
    sampling = Sampling(seed=5, temperature=1.5, max_tokens=24)
    drawn = [
        (await engine.generate(prompt(engine), sampling, range(at, at + 1), lambda usage: None))[0].token_ids
        for at in (0, 1, 2, 3, 0, 1, 2, 3)
    ]
    if drawn[:4] != drawn[4:] or len(set(drawn)) < 2:
        raise AssertionError(f"{drawn}")
    return f"{len(set(drawn))} of 4 draws differ, all came again"


async def more_than_slots(engine: Any, url: str) -> str:
    """With many more requests than slots, the excess waits in the client and not in the server."""
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, (await asyncio.to_thread(metrics, url, ("requests_deferred",)))[0])
            await asyncio.sleep(0.02)

    watcher = asyncio.create_task(watch())
    sampling = Sampling(seed=5, temperature=1.0, max_tokens=64)
    drawn = await engine.generate(prompt(engine), sampling, range(256), lambda usage: None)
    watcher.cancel()
    if len(drawn) != 256 or most:
        raise AssertionError(f"{len(drawn)} draws, {most} waited at the server")
    return f"256 draws over {engine.features.slots} slots"


async def cancelled(engine: Any, url: str) -> str:
    """Cancelling draws frees their slots."""
    sampling = Sampling(seed=5, temperature=4.0, max_tokens=1500)
    tasks = [
        asyncio.create_task(engine.generate(prompt(engine), sampling, range(at, at + 1), lambda usage: None))
        for at in range(400)
    ]
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(1.5)
    (busy,) = metrics(url, ("requests_processing",))
    aborted = sum(task.cancelled() for task in tasks)
    if busy or not aborted:
        raise AssertionError(f"{busy} slots are busy after {aborted} draws were cancelled")
    return f"no slot is busy after {aborted} draws were cancelled"


def metrics(url: str, names: tuple[str, ...] = COUNTERS) -> list[int]:
    """The server's own counters."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[:1] != "#")
    return [int(float(lines[f"llamacpp:{name}"])) for name in names]


def whole_ledger(engine: Any, url: str, before: list[int]) -> str:
    """All of this run but the cancellation against the server's counters."""
    time.sleep(1)
    ours = engine.counters()
    counted = [ours.prompt - ours.cached, ours.cached, ours.generated + ours.overrun]
    theirs = [b - a for a, b in zip(before, metrics(url), strict=True)][:3]
    text = f"prompt computed, cached, decoded: {counted} here, {theirs} there, in {ours.calls} requests"
    if counted != theirs:
        raise AssertionError(text)
    return f"{text}; {engine.reconciliation().agreed} agreed, {engine.reconciliation().differed} differed"


def main() -> int:
    """Run every check; the number of failed ones is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="folder of the model that was converted")
    parser.add_argument("--url", required=True, help="the running server, http://127.0.0.1:8080")
    parser.add_argument("--version", help="of the source that it was built from")
    parser.add_argument("--out", type=pathlib.Path, help="write the results to this JSON file")
    args = parser.parse_args()
    engine = openai(base_url=f"{args.url}/v1", tokenizer=str(args.model))
    if not isinstance(engine, RemoteEngine):
        raise TypeError(f"not a RemoteEngine: {engine}")
    other = embedded(str(args.model), dtype="float32")
    begun = metrics(args.url)
    print(f"{engine.capabilities}")
    own: dict[str, Callable[[], Awaitable[str]]] = {
        "stop_strings_hold": lambda: stop_strings_hold(engine),
        "equals_embedded": lambda: equals_embedded(engine, other),
        "seeds_hold": lambda: seeds_hold(engine),
        "more_than_slots": lambda: more_than_slots(engine, args.url),
    }
    checks = checks_of("llamacpp", engine, [check for check in BASIC if check not in LEFT_OUT], own)
    checks["whole_ledger"] = lambda: whole_ledger(engine, args.url, begun)
    checks["cancelled"] = lambda: asyncio.run(cancelled(engine, args.url))
    results = {name: attempt(name, check) for name, check in checks.items()}
    asyncio.run(engine.close())
    if args.out is not None:
        conditions = {
            "date": time.strftime("%Y-%m-%d"),
            "source": args.version,
            "llama.cpp": engine.served.get("llama.cpp version"),
            "model": args.model.name,
            "machine": machine(),
            "load": os.getloadavg()[0],
        }
        command = "bash benchmarks/llamacpp/run.sh MODEL RESULT.json"
        found = {"command": command, "conditions": conditions, **results}
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return sum(not result["ok"] for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
