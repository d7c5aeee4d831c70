"""Delay of a small chat beside wide searches, in engine steps and CPU time.

    python -m benchmarks.serve_fairness --json benchmarks/results/serve_fairness.json

Serves the packaged model in this process with the limits of `ttc serve`, and sends one short chat after another: alone,
then beside four `majority` searches of 64 draws each. A chat waits for every step that the engine takes between its
question and its answer, so their number, the rows of each and the worker thread's CPU time in them are meaningful on a
busy machine, too: with the worker alone on a core, that time is the chat's latency. Goal: at most 3 times that of a
chat alone. One minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import occasion
from serve.operator.config import from_options
from serve.operator.keys import ANYONE
from serve.requests.fields import SamplingRequest, ServeRequest
from serve.requests.search import SearchRequest
from serve.requests.thinking import ThinkingRequest
from serve.running.catalogue import Catalogue
from serve.running.events import Done, RequestFailed
from serve.running.service import InferenceService
from ttc.core import Message
from ttc.engines.embedded.engine import EmbeddedEngine

GOAL = 3.0
SEARCHES, WIDTH = 4, 64


@dataclass(slots=True)
class WorkerMeter:
    """Steps of the worker, the rows of each, and its processor seconds so far."""

    steps: int = 0
    seconds: float = 0.0
    rows: list[int] = field(default_factory=list)

    def around(self, batch: Any) -> None:
        """Count every step of `batch` from now on."""
        tick: Callable[[], None] = batch.tick

        def counted() -> None:
            begun = time.thread_time()
            self.rows.append(len(batch.rows))
            tick()
            self.steps += 1
            self.seconds += time.thread_time() - begun

        batch.tick = counted


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=20)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    rows = asyncio.run(measured(args.chats))
    ratio = rows["beside"]["cpu_ms"] / rows["alone"]["cpu_ms"]
    report = {
        **occasion(),
        "searches": SEARCHES,
        "width": WIDTH,
        "chats": args.chats,
        **rows,
        "ratio": round(ratio, 2),
        "within_goal": ratio <= GOAL,
    }
    print("| a chat | steps, median | rows of a step, most | processor time, median |\n|---|---|---|---|")
    for name in ("alone", "beside"):
        row = rows[name]
        print(f"| {name} | {row['steps']:.0f} | {row['rows']} | {row['cpu_ms']:.1f} ms |")
    print(f"ratio {ratio:.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


async def measured(chats: int) -> dict[str, Any]:
    """Both rows of the table."""
    config = from_options(None, None, None, None, None, {})
    catalogue = Catalogue.load(config)
    service = InferenceService(config, catalogue)
    engine = next(iter(catalogue)).engine
    if not isinstance(engine, EmbeddedEngine):
        raise TypeError("the packaged model runs on the embedded engine")
    meter = WorkerMeter()
    meter.around(engine._scheduler._batch)
    try:
        await asked(service, chat(0))  # warms up
        alone = [await cost(meter, asked(service, chat(i))) for i in range(chats)]
        searches = [asyncio.create_task(asked(service, search(i))) for i in range(SEARCHES)]
        await asyncio.sleep(1)
        beside = [await cost(meter, asked(service, chat(i))) for i in range(chats)]
        running = sum(not task.done() for task in searches)
        for task in searches:
            task.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
    finally:
        await catalogue.close()
    if running < SEARCHES:
        raise RuntimeError(f"only {running} of {SEARCHES} searches ran to the end of the chats: ask for fewer")
    return {"alone": summary(alone), "beside": summary(beside)}


async def cost(meter: WorkerMeter, work: Coroutine[Any, Any, None]) -> tuple[int, float, int]:
    """Steps and processor milliseconds of the worker while `work` runs, and the most rows of a step."""
    steps, seconds, first = meter.steps, meter.seconds, len(meter.rows)
    await work
    return meter.steps - steps, (meter.seconds - seconds) * 1000, max(meter.rows[first:], default=0)


def summary(costs: list[tuple[int, float, int]]) -> dict[str, Any]:
    """The medians."""
    steps, cpu_ms, rows = zip(*costs, strict=True)
    middle = round(statistics.median(cpu_ms), 2)
    return {"steps": statistics.median(steps), "cpu_ms": middle, "rows": max(rows)}


def chat(number: int) -> ServeRequest:
    """A small chat."""
    return ServeRequest(
        model="nano-teacher",
        messages=(Message("user", f"{number}+{number * 7 % 10}"),),
        sampling=SamplingRequest(max_tokens=24),
        thinking=ThinkingRequest(budget=0),
        search=SearchRequest(seed=number),
    )


def search(number: int) -> ServeRequest:
    """A wide search that takes long."""
    return ServeRequest(
        model="nano-teacher",
        messages=(Message("user", f"({number}+5)*3-2"),),
        sampling=SamplingRequest(max_tokens=1200),
        thinking=ThinkingRequest(budget=900, min_tokens=800),
        search=SearchRequest(strategy="majority", params={"n": WIDTH}, seed=number),
    )


async def asked(service: InferenceService, request: ServeRequest) -> None:
    """Wait for the whole reply; raises RuntimeError when it failed."""
    async with await service.open(request, ANYONE, f"r{request.search.seed}") as job:
        while True:
            event = await job.next()
            if isinstance(event, RequestFailed):
                raise RuntimeError(event.error.message)
            if isinstance(event, Done):
                return


if __name__ == "__main__":
    main()
