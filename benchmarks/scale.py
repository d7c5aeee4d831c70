"""Many problems on the simulated engine: how long they take, and whether memory grows with their number.

    python -m benchmarks.scale --json benchmarks/results/scale.json

Each number of problems is solved in a process of its own by adaptive stopping (at most eight samples), streamed: an
answer is counted and dropped. `growth_mib` is the peak of resident memory above that of 100 problems, which pays for
the imports and for what is in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ttc.core import Answer, Message, Problem, Sampling
from ttc.engines.simulated import simulated, truth
from ttc.solve import solve_all
from ttc.strategies.adaptive import adaptive

BASE = 100


def asked(num: int) -> Iterator[Problem]:
    """Problems of all levels, made as they are needed."""
    for i in range(num):
        yield Problem(f"p{i}", (Message("user", f"What is quantity {i} at level {1 + i % 5}?"),), "number")


def run(num: int) -> dict[str, Any]:
    """Solve so many problems in this process."""
    started, strategy = time.perf_counter(), functools.partial(adaptive, n=8, rule="window", window=4)

    async def go() -> int:
        right = 0
        solved = solve_all(
            asked(num), engine=simulated(steps=4), strategy=strategy, seed=1, sampling=Sampling(max_tokens=512)
        )
        async for problem, answer in solved:
            right += isinstance(answer, Answer) and answer.final == truth(problem.messages[0].content)
        return right

    right = asyncio.run(go())
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "problems": num,
        "accuracy": right / num,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": round(used.ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Measure and print, or save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--json", type=Path, help="where to save the result")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for num in (BASE, *args.problems):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(run, (num,)))
        rows[-1]["growth_mib"] = round(rows[-1]["peak_mib"] - rows[0]["peak_mib"], 1)
        print(rows[-1], flush=True)
        if args.json:
            args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
