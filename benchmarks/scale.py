"""Time and memory of many problems on the simulated engine, and whether memory grows with their number.

    python -m benchmarks.scale --json benchmarks/results/scale.json

Each number of problems is solved in a process of its own by adaptive stopping (at most eight samples), streamed: an
answer is counted and dropped. `growth_mib` is the peak of resident memory above that of 100 problems, which includes
imports and problems in flight.

`--command` measures all of `ttc eval` instead: solving, recording, summary, page and figure, with one sample a problem.
Its records are synced to disk one by one, so the time depends on the disk of `TMPDIR`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import io
import json
import multiprocessing
import resource
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ttc.cli.cli import main as ttc
from ttc.core import Answer, Message, Problem, Sampling
from ttc.engines.simulated import simulated, truth
from ttc.session.solve import solve_all
from ttc.strategies.adaptive import adaptive

BASE = 100
COMMAND = "eval --engine simulated --task simulated --set task.level=mixed --strategy direct --baseline none"


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
    return {"problems": num, "accuracy": right / num, **_used(started)}


def command(num: int) -> dict[str, Any]:
    """Evaluate so many problems in this process as `ttc eval` does."""
    started = time.perf_counter()
    asked = shlex.split(COMMAND)
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        if ttc([*asked, "--limit", str(num), "--out", out]) != 0:
            raise RuntimeError(f"ttc eval failed on {num} problems")
        (entry,) = json.loads((Path(out) / "summary.json").read_text())["runs"]
        records = (Path(out) / "records.jsonl").stat().st_size
    found = {"problems": num, "accuracy": entry["accuracy"], "records_mib": round(records / 2**20, 1)}
    return {**found, **_used(started)}


def _used(started: float) -> dict[str, float]:
    """Resources used by this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": round(used.ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Measure and print, or save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--command", action="store_true", help="measure the whole of ttc eval")
    parser.add_argument(
        "--json", type=Path, help="where to save the result, beside what the file has of the other kind"
    )
    args = parser.parse_args()
    name, measure = ("command", command) if args.command else ("rows", run)
    found = json.loads(args.json.read_text()) if args.json and args.json.is_file() else {}
    rows = found[name] = []
    for num in (BASE, *args.problems):
        rows.append(_alone(measure, num))
        rows[-1]["growth_mib"] = round(rows[-1]["peak_mib"] - rows[0]["peak_mib"], 1)
        print(rows[-1], flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


def _alone(measure: Callable[[int], dict[str, Any]], num: int) -> dict[str, Any]:
    """Measure in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (num,))


if __name__ == "__main__":
    main()
